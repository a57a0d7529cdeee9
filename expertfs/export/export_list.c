/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_list.c - see export_internal.h. The list is sent in packets of one layer or a part of a layer, as fast as the
 * client reads. It may change meanwhile: clients request it again from time to time.
 */
#include "export_internal.h"
#include "expertfs-private.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define EXPERTS_PER_CALL 64u /* experts per call of efs_experts_kept_full() */

static void list_packet_begin(struct efs_export_kept *p)
{
    *p = (struct efs_export_kept){.head = {.version = EFS_EXPORT_VERSION, .kind = EFS_EXPORT_KEPT}};
}

static errint_t list_packet_send(const struct efsd_export_client *s, struct efs_export_kept *p, bool last)
{
    p->last = last;
    p->head.bytes = (uint32_t)(offsetof(struct efs_export_kept, expert) + p->head.count * sizeof(p->expert[0]));
    return efsd_export_client_send(s, &p->head, -1);
}

/* Adds an expert. false: it is of another layer than the packet, or the packet is full. */
static bool list_packet_add(struct efs_export_kept *p, const struct efs_expert_info *info)
{
    char stack[sizeof(p->stack)] = "";
    const char *dash = strrchr(info->name, '-'); /* "encoder-L03/E017" */
    if (dash && (size_t)(dash - info->name) < sizeof(stack))
        memcpy(stack, info->name, (size_t)(dash - info->name));
    if (p->head.count == 0) {
        p->layer = info->layer;
        memcpy(p->stack, stack, sizeof(stack));
    } else if (p->head.count == EFS_EXPORT_LISTED || p->layer != info->layer || strcmp(p->stack, stack) != 0) {
        return false;
    }
    p->expert[p->head.count++] = info->expert;
    p->raw_bytes += info->raw_bytes;
    return true;
}

/* Fills a packet with experts from *at on, and sets *at to the first one that is not in it. true: no experts are
 * left. */
static bool list_packet_fill(struct efsd_export_client *s, struct efs_export_kept *p, uint32_t *at)
{
    const struct efsd *daemon = s->export->daemon;
    uint32_t kept[EXPERTS_PER_CALL];
    list_packet_begin(p);
    while (*at < daemon->expert_count) {
        uint32_t end = daemon->expert_count - *at < EXPERTS_PER_CALL ? daemon->expert_count : *at + EXPERTS_PER_CALL;
        uint32_t count = efs_experts_kept_full(daemon->fs, *at, end, kept);
        for (uint32_t i = 0; i < count; i++) {
            struct efs_expert_info info;
            if (efs_expert_info(daemon->fs, efs_id(kept[i]), &info) == 0 && !list_packet_add(p, &info)) {
                *at = kept[i];
                return false;
            }
        }
        *at = end;
    }
    return true;
}

void efsd_export_list_continue(struct efsd_export_client *s)
{
    while (s->list_at != UINT32_MAX) {
        struct efs_export_kept packet;
        uint32_t next = s->list_at;
        bool last = list_packet_fill(s, &packet, &next);
        errint_t rc = list_packet_send(s, &packet, last);
        if (rc == -EAGAIN) {
            efsd_export_client_poll(s, true);
            return;
        }
        s->list_at = rc || last ? UINT32_MAX : next; /* efsd_export_client_receive() ends a failed connection */
    }
}

void efsd_export_list(struct efsd_export_client *s)
{
    s->list_at = 0;
    efsd_export_list_continue(s);
}
