/* SPDX-License-Identifier: Apache-2.0 */
/* mount_notify.c - see mount.h: notifications of uses. They are queued as packets (efs_export_ask). */
#include "mount.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

_Static_assert(EFS_MOUNT_EXPERTS * sizeof(((struct efs_export_ask *)0)->item[0]) + 1024 <= EFS_USES_BYTES,
               "a request fits into the queue");

bool efs_mount_notify_later(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                            uint32_t count, enum efs_form form)
{
    const size_t heads = (count + EFS_EXPORT_ITEMS - 1) / EFS_EXPORT_ITEMS * offsetof(struct efs_export_ask, item);
    struct efs_export_ask ask = efs_export_packet(EFS_EXPORT_ASK);
    if (!efs_export_works(m->export))
        return true;
    if (heads + count * sizeof(ask.item[0]) > sizeof(m->uses) - m->uses_bytes)
        return false;
    ask.layer = layer;
    memcpy(ask.stack, stack, strnlen(stack, sizeof(ask.stack) - 1));
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = i % EFS_EXPORT_ITEMS;
        ask.item[at].expert = needs[i].expert;
        ask.item[at].tokens = needs[i].tokens;
        ask.item[at].tag = EFS_EXPORT_NOTIFY;
        if (at + 1 < EFS_EXPORT_ITEMS && i + 1 < count)
            continue;
        ask.form = (uint32_t)form | (i + 1 < count ? EFS_EXPORT_MORE : 0);
        ask.head.count = at + 1;
        efs_export_end_packet(&ask);
        memcpy(m->uses + m->uses_bytes, &ask, ask.head.bytes);
        m->uses_bytes += ask.head.bytes;
    }
    m->uses_count++;
    return true;
}

void efs_mount_flush(struct efs_mount *m, bool block)
{
    errint_t rc = -EAGAIN;
    int busy = block ? pthread_mutex_lock(&m->send_lock) : pthread_mutex_trylock(&m->send_lock);
    if (!busy) {
        rc = efs_export_send(m, NULL, block ? 0 : MSG_DONTWAIT);
        pthread_mutex_unlock(&m->send_lock);
    }
    if (rc == -EAGAIN)
        efs_mount_signal(m->wake);
}
