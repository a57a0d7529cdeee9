/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_notify.c - see export.h: notifications for requests whose experts the client holds already. They need no
 * answer, so they are queued, one packet per request, and sent before the next packet that needs one.
 */
#include "export_internal.h"

#include <stddef.h>
#include <string.h>

struct efs_export_ask efs_export_packet(enum efs_export_kind kind)
{
    return (struct efs_export_ask){.head = {.version = EFS_EXPORT_VERSION, .kind = kind}};
}

void efs_export_packet_end(struct efs_export_ask *packet)
{
    packet->head.bytes =
        (uint32_t)(offsetof(struct efs_export_ask, item) + packet->head.count * sizeof(packet->item[0]));
}

bool efs_export_notify(struct efs_export *h, const char *stack, uint32_t layer, const struct efs_need *needs,
                       uint32_t count, enum efs_form form)
{
    struct efs_export_ask ask = efs_export_packet(EFS_EXPORT_ASK);
    if (count > EFS_EXPORT_ITEMS || strlen(stack) >= sizeof(ask.stack))
        return false;
    ask.layer = layer;
    ask.form = form;
    ask.head.count = count;
    efs_export_packet_end(&ask);
    if (ask.head.bytes > sizeof(h->unsent) - h->unsent_bytes)
        return false;
    strcpy(ask.stack, stack);
    for (uint32_t i = 0; i < count; i++) {
        ask.item[i].expert = needs[i].expert;
        ask.item[i].tokens = needs[i].tokens;
        ask.item[i].tag = EFS_EXPORT_NOTIFY;
    }
    memcpy(h->unsent + h->unsent_bytes, &ask, ask.head.bytes);
    h->unsent_bytes += ask.head.bytes;
    return true;
}

bool efs_export_pop_notification(struct efs_export *h, struct efs_export_ask *packet)
{
    if (h->unsent_bytes == 0)
        return false;
    memcpy(packet, h->unsent, sizeof(packet->head));
    size_t bytes = packet->head.bytes;
    memcpy(packet, h->unsent, bytes);
    h->unsent_bytes -= bytes;
    memmove(h->unsent, h->unsent + bytes, h->unsent_bytes);
    return true;
}
