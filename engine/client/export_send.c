/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_send.c - see export.h: sends packets. Those that need no answer at once are queued and sent before the next
 * packet that does, or by efs_mount_flush(): uses of experts that the client holds already (mount_notify.c);
 * tags that were dropped or cancelled; windows that were unmapped.
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

/* Lock held. The next queued packet. false: none. */
static bool export_peek(const struct efs_mount *m, struct efs_export_ask *packet)
{
    const struct efs_export *h = m->export;
    if (m->uses_bytes) {
        memcpy(packet, m->uses, sizeof(packet->head));
        memcpy(packet, m->uses, packet->head.bytes);
        return true;
    }
    *packet = efs_export_packet(h->queue[0].kind);
    for (uint32_t i = 0; i < h->queued && i < EFS_EXPORT_ITEMS && h->queue[i].kind == packet->head.kind; i++)
        packet->item[packet->head.count++].tag = h->queue[i].number;
    efs_export_end_packet(packet);
    return h->queued;
}

/* Lock held. Removes that packet, which was sent. Dropped tags are free: the mount receives the drops before later
 * requests. */
static void export_sent(struct efs_mount *m, const struct efs_export_ask *packet)
{
    struct efs_export *h = m->export;
    if (packet->head.kind == EFS_EXPORT_ASK) {
        m->uses_bytes -= packet->head.bytes;
        m->uses_count -= !(packet->form & EFS_EXPORT_MORE);
        memmove(m->uses, m->uses + packet->head.bytes, m->uses_bytes);
        return;
    }
    for (uint32_t i = 0; packet->head.kind == EFS_EXPORT_DROP && i < packet->head.count; i++)
        efs_export_free_tag(h, packet->item[i].tag);
    h->unmapped -= packet->head.kind == EFS_EXPORT_UNMAPPED ? packet->head.count : 0;
    h->queued -= packet->head.count;
    memmove(h->queue, h->queue + packet->head.count, h->queued * sizeof(h->queue[0]));
}

/* Lock held, released meanwhile. Sends all queued packets, then `last` (NULL: nothing more). -EAGAIN: with
 * MSG_DONTWAIT, the socket is full, and the rest stays queued. */
static errint_t export_send_queued(struct efs_mount *m, const struct efs_export_head *last, int flags)
{
    struct efs_export *h = m->export;
    struct efs_export_ask packet;
    errint_t rc = 0;
    while (rc == 0 && !h->failed && (export_peek(m, &packet) || last)) {
        bool queued = export_peek(m, &packet);
        pthread_mutex_unlock(&m->lock);
        rc = export_send_packet(h, queued ? &packet.head : last, flags);
        pthread_mutex_lock(&m->lock);
        if (rc == 0 && queued)
            export_sent(m, &packet);
        else
            last = NULL;
    }
    if (h->failed)
        rc = -EPIPE;
    if (rc < 0 && rc != -EAGAIN)
        efs_export_fail(m);
    return rc;
}

errint_t efs_export_send(struct efs_mount *m, const struct efs_export_head *last, int flags)
{
    static const struct efs_export_head keep = {sizeof(keep), EFS_EXPORT_VERSION, EFS_EXPORT_KEEP, 0},
                                        list = {sizeof(list), EFS_EXPORT_VERSION, EFS_EXPORT_LIST, 0};
    pthread_mutex_lock(&m->lock);
    const bool due = efs_protected_set_is_old(m);
    m->listing |= due; /* the answer may be received before this thread has the lock again */
    errint_t rc = due ? export_send_queued(m, &list, flags) : 0;
    if (due && rc == 0)
        m->idle_count = 0;
    else if (due)
        m->listing = false;
    if (rc == 0)
        rc = export_send_queued(m, last, flags);
    if (rc == 0 && efs_export_keeps_untold(m)) {
        m->export->told_keep = true;
        if (send(m->export->room, &keep, sizeof(keep), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            efs_export_keep_nothing(m);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}
