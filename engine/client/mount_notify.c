/* SPDX-License-Identifier: Apache-2.0 */
/* mount_notify.c - see mount.h: notifications of uses by .expertfs/want, if the mount's socket is not accessible. */
#include "mount.h"

#include "sys.h"

#include <string.h>

/* telling held: write what is to be told, and line behind it. What the mount thinks of it changes nothing here. */
static void mount_write_told(struct efs_mount *m, const char *line, size_t bytes)
{
    char text[EFS_WANT_BYTES];
    pthread_mutex_lock(&m->lock);
    size_t used = m->told_bytes;
    memcpy(text, m->text, used);
    m->told_bytes = 0;
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

void efs_mount_tell(struct efs_mount *m, const char *line, size_t bytes)
{
    if (m->want < 0)
        return;
    pthread_mutex_lock(&m->telling);
    mount_write_told(m, line, bytes);
    pthread_mutex_unlock(&m->telling);
}

bool efs_mount_tell_later(struct efs_mount *m, const char *line, size_t bytes)
{
    if (m->want < 0)
        return true;
    if (bytes > sizeof(m->text) - m->told_bytes)
        return false;
    memcpy(m->text + m->told_bytes, line, bytes);
    m->told_bytes += bytes;
    return true;
}
