/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_send.c - see export.h: sends packets. Those that need no answer at once are queued and sent before the next
 * packet that does, or by efs_mount_flush(): tags that were dropped or cancelled, windows that were unmapped.
 */
#include "export.h"

#include "mount.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

struct efs_export_ask efs_export_packet(enum efs_export_kind kind)
{
    return (struct efs_export_ask){.head = {.version = EFS_EXPORT_VERSION, .kind = kind}};
}

void efs_export_end_packet(struct efs_export_ask *packet)
{
    packet->head.bytes =
        (uint32_t)(offsetof(struct efs_export_ask, item) + packet->head.count * sizeof(packet->item[0]));
}

/* ---- with efs_mount.send_lock held: no other thread removes queued packets ---- */

static errint_t export_send_packet(const struct efs_export *h, const struct efs_export_head *packet, int flags)
{
    ssize_t n;
    do
        n = send(h->fd, packet, packet->bytes, MSG_NOSIGNAL | flags);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

/* Lock held. A packet of the oldest queued numbers, all of one kind. */
static struct efs_export_ask export_next(const struct efs_export *h)
{
    struct efs_export_ask packet = efs_export_packet(h->queue[0].kind);
    for (uint32_t i = 0; i < h->queued && i < EFS_EXPORT_ITEMS && h->queue[i].kind == packet.head.kind; i++)
        packet.item[packet.head.count++].tag = h->queue[i].number;
    efs_export_end_packet(&packet);
    return packet;
}

/* Lock held. Removes the numbers of that packet, which was sent. Dropped tags are free: the mount receives the drops
 * before later requests. */
static void export_sent(struct efs_export *h, const struct efs_export_ask *packet)
{
    for (uint32_t i = 0; packet->head.kind == EFS_EXPORT_DROP && i < packet->head.count; i++)
        efs_export_free_tag(h, packet->item[i].tag);
    h->unmapped -= packet->head.kind == EFS_EXPORT_UNMAPPED ? packet->head.count : 0;
    h->queued -= packet->head.count;
    memmove(h->queue, h->queue + packet->head.count, h->queued * sizeof(h->queue[0]));
}

errint_t efs_export_send(struct efs_mount *m, const struct efs_export_head *last, int flags)
{
    struct efs_export *h = m->export;
    errint_t rc = 0;
    pthread_mutex_lock(&m->lock);
    while (rc == 0 && !h->failed && (h->queued || last)) {
        const bool queued = h->queued;
        struct efs_export_ask packet;
        if (queued)
            packet = export_next(h);
        pthread_mutex_unlock(&m->lock);
        rc = export_send_packet(h, queued ? &packet.head : last, flags);
        pthread_mutex_lock(&m->lock);
        if (rc == 0 && queued)
            export_sent(h, &packet);
        else
            last = NULL;
    }
    if (h->failed)
        rc = -EPIPE;
    if (rc < 0 && rc != -EAGAIN)
        efs_export_fail(m);
    pthread_mutex_unlock(&m->lock);
    return rc;
}
