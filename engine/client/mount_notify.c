/* SPDX-License-Identifier: Apache-2.0 */
/* mount_notify.c - see mount.h: notifications of uses. They are queued as packets (efs_export_ask) and sent over the
 * socket, or written as lines of .expertfs/want if it is not accessible. */
#include "mount.h"

#include "sys.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define EXPERT_BYTES 24u /* " 4294967295*4294967295" */

_Static_assert(EFS_EXPORT_ITEMS *EXPERT_BYTES + 64 <= EFS_WANT_LINE_BYTES, "the experts of a packet fit into a line");
_Static_assert(EFS_MOUNT_EXPERTS *EXPERT_BYTES <= EFS_USES_BYTES, "a request fits into the queue");
_Static_assert(2 * EFS_USES_BYTES + 64 <= EFS_WANT_BYTES, "the queue fits into one write: an item has 12 bytes");

bool efs_mount_notify_later(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                            uint32_t count, enum efs_form form)
{
    const size_t heads = (count + EFS_EXPORT_ITEMS - 1) / EFS_EXPORT_ITEMS * offsetof(struct efs_export_ask, item);
    struct efs_export_ask ask = efs_export_packet(EFS_EXPORT_ASK);
    if (m->want < 0 && !efs_export_works(m->export))
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

/* Lock held. Writes lines such as "3: 17*12 4*1\n", one for each request, each of at most EFS_WANT_LINE_BYTES. */
static size_t uses_print(const struct efs_mount *m, char *text)
{
    size_t used = 0, line = 0;
    struct efs_export_ask ask = {.form = 0};
    for (size_t at = 0; at < m->uses_bytes; at += ask.head.bytes) {
        const bool more = ask.form & EFS_EXPORT_MORE; /* this is the same request */
        memcpy(&ask.head, m->uses + at, sizeof(ask.head));
        memcpy(&ask, m->uses + at, ask.head.bytes);
        if (!more || used - line + ask.head.count * EXPERT_BYTES > EFS_WANT_LINE_BYTES) {
            if (used)
                text[used++] = '\n';
            line = used;
            used += (size_t)snprintf(text + used, EFS_WANT_BYTES - used, *ask.stack ? "%s-L%02u:" : "%s%u:", ask.stack,
                                     ask.layer);
        }
        for (uint32_t i = 0; i < ask.head.count; i++)
            used +=
                (size_t)snprintf(text + used, EFS_WANT_BYTES - used, " %u*%u", ask.item[i].expert, ask.item[i].tokens);
    }
    if (used)
        text[used++] = '\n';
    return used;
}

/* send_lock held. Errors are ignored: 0. */
static errint_t mount_write_uses(struct efs_mount *m)
{
    char *text = efs_sys_calloc(1, EFS_WANT_BYTES);
    pthread_mutex_lock(&m->lock);
    const size_t bytes = text ? uses_print(m, text) : 0;
    m->uses_bytes = m->uses_count = 0;
    pthread_mutex_unlock(&m->lock);
    if (bytes)
        efs_sys_pwrite(m->want, text, bytes, 0);
    free(text);
    return 0;
}

void efs_mount_flush(struct efs_mount *m, bool block)
{
    errint_t rc = -EAGAIN;
    if ((block ? pthread_mutex_lock : pthread_mutex_trylock)(&m->send_lock) == 0) {
        pthread_mutex_lock(&m->lock);
        const bool socket = efs_export_works(m->export);
        pthread_mutex_unlock(&m->lock);
        rc = socket ? efs_export_send(m, NULL, block ? 0 : MSG_DONTWAIT) : mount_write_uses(m);
        pthread_mutex_unlock(&m->send_lock);
    }
    if (rc == -EAGAIN)
        efs_mount_signal(m->wake);
}
