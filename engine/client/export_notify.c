/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_notify.c - see export.h: requests whose experts the client has already. Nothing is waited for, so they are
 * told some at a time: a packet each, as if they were asked for, before the next that is.
 */
#include "export_core.h"

#include <stddef.h>
#include <string.h>

size_t efs_export_packet_bytes(const struct efs_export_ask *ask)
{
    return offsetof(struct efs_export_ask, item) + ask->count * sizeof(ask->item[0]);
}

bool efs_export_notify(struct efs_export *h, const char *stack, uint32_t layer, const struct efs_need *needs,
                       uint32_t count)
{
    struct efs_export_ask ask = {.version = EFS_EXPORT_VERSION, .kind = EFS_EXPORT_ASK, .layer = layer, .count = count};
    if (count > EFS_EXPORT_ITEMS || strlen(stack) >= sizeof(ask.stack) ||
        efs_export_packet_bytes(&ask) > sizeof(h->told) - h->told_bytes)
        return false;
    strcpy(ask.stack, stack);
    for (uint32_t i = 0; i < count; i++) {
        ask.item[i].expert = needs[i].expert;
        ask.item[i].tokens = needs[i].tokens;
        ask.item[i].tag = EFS_EXPORT_TOLD;
    }
    memcpy(h->told + h->told_bytes, &ask, efs_export_packet_bytes(&ask));
    h->told_bytes += efs_export_packet_bytes(&ask);
    return true;
}

bool efs_export_take_notified(struct efs_export *h, struct efs_export_ask *packet)
{
    if (h->told_bytes == 0)
        return false;
    memcpy(packet, h->told, offsetof(struct efs_export_ask, item));
    size_t bytes = efs_export_packet_bytes(packet);
    memcpy(packet, h->told, bytes);
    h->told_bytes -= bytes;
    memmove(h->told, h->told + bytes, h->told_bytes);
    return true;
}
