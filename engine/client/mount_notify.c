/* SPDX-License-Identifier: Apache-2.0 */
/* mount_notify.c - see mount.h: notifications of uses by .expertfs/want, if the mount's socket is not accessible. */
#include "mount.h"

#include "sys.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* send_lock held: writes the queued lines, then line. Errors are ignored. */
static void mount_write_unsent(struct efs_mount *m, const char *line, size_t bytes)
{
    char text[EFS_WANT_BYTES];
    pthread_mutex_lock(&m->lock);
    size_t used = m->unsent_bytes;
    memcpy(text, m->text, used);
    m->unsent_bytes = m->unsent_lines = 0;
    pthread_mutex_unlock(&m->lock);
    if (used && used + bytes > sizeof(text)) {
        efs_sys_pwrite(m->want, text, used, 0);
        used = 0;
    }
    memcpy(text + used, line, bytes);
    used += bytes;
    if (used)
        efs_sys_pwrite(m->want, text, used, 0);
}

void efs_mount_notify(struct efs_mount *m, const char *line, size_t bytes)
{
    if (m->want < 0)
        return;
    pthread_mutex_lock(&m->send_lock);
    mount_write_unsent(m, line, bytes);
    pthread_mutex_unlock(&m->send_lock);
}

bool efs_mount_notify_later(struct efs_mount *m, const char *line, size_t bytes)
{
    if (m->want < 0)
        return true;
    if (bytes > sizeof(m->text) - m->unsent_bytes)
        return false;
    memcpy(m->text + m->unsent_bytes, line, bytes);
    m->unsent_bytes += bytes;
    m->unsent_lines++;
    return true;
}

void efs_mount_flush(struct efs_mount *m)
{
    pthread_mutex_lock(&m->lock);
    const bool lines = m->unsent_lines >= EFS_NOTIFY_BATCH;
    pthread_mutex_unlock(&m->lock);
    bool sent = pthread_mutex_trylock(&m->send_lock) == 0;
    if (sent) {
        if (lines)
            mount_write_unsent(m, "", 0);
        sent = !m->export || efs_export_flush(m, MSG_DONTWAIT) != -EAGAIN;
        pthread_mutex_unlock(&m->send_lock);
    }
    if (sent)
        return;
    pthread_mutex_lock(&m->lock);
    efs_mount_wake_maintenance(m);
    pthread_mutex_unlock(&m->lock);
}
