/* SPDX-License-Identifier: Apache-2.0 */
/* mount_notify.c - see mount.h: notifications of uses by .expertfs/want, if the mount's socket is not accessible. */
#include "mount.h"

#include "sys.h"

#include <string.h>

/* send_lock held: writes the queued lines, then line. Errors are ignored. */
static void mount_write_unsent(struct efs_mount *m, const char *line, size_t bytes)
{
    char text[EFS_WANT_BYTES];
    pthread_mutex_lock(&m->lock);
    size_t used = m->unsent_bytes;
    memcpy(text, m->text, used);
    m->unsent_bytes = 0;
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
    return true;
}
