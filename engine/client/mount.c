/* SPDX-License-Identifier: Apache-2.0 */
/* mount.c - see mount.h: creation and end. */
#include "mount.h"

#include "deadline.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/magic.h>

#define CONTROL_BYTES 12288u /* of a control file that are read: .expertfs/config has two paths and some lines */

#define LAST_UNNAMED 15u /* version of the socket protocol: later ones are in .expertfs/version */

#define LAYERS_BYTES (32u << 20) /* at most, of .expertfs/layers: twice what a mount holds of open control files */

/* Reads the start of a control file, terminated. Control files have a size of 0: on a FUSE mount, one with a size is a
 * file of the checkpoint, such as a copy of another mount's: -ENODEV. */
static errint_t mount_read_control(const struct efs_mount *m, const char *path, char text[CONTROL_BYTES])
{
    struct stat st;
    int fd = efs_sys_openat(m->root, path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    ssize_t n = efs_sys_fstat(fd, &st);
    if (n == 0 && st.st_size && efs_sys_filesystem(fd) == FUSE_SUPER_MAGIC)
        n = -ENODEV;
    if (n == 0)
        n = efs_sys_pread(fd, text, CONTROL_BYTES - 1, 0);
    efs_sys_close(fd);
    text[n < 0 ? 0 : n] = '\0';
    return n < 0 ? (errint_t)n : 0;
}

errint_t efs_mount_layers(const struct efs_mount *m, char **out)
{
    size_t used = 0, room = 256u << 10;
    char *text = efs_sys_malloc(room);
    int fd = efs_sys_openat(m->root, ".expertfs/layers", O_RDONLY | O_NONBLOCK, 0);
    ssize_t n = fd < 0 ? fd : text ? 1 : -ENOMEM;
    while (n > 0 && (n = efs_sys_pread(fd, text + used, room - 1 - used, used)) > 0) {
        used += (size_t)n;
        if (room - 1 - used > 0)
            continue;
        char *more = room < LAYERS_BYTES ? realloc(text, room *= 2) : NULL;
        n = more ? n : room < LAYERS_BYTES ? -ENOMEM : -EUCLEAN;
        text = more ? more : text;
    }
    if (fd >= 0)
        efs_sys_close(fd);
    if (n == 0)
        text[used] = '\0';
    else
        free(text);
    *out = n == 0 ? text : NULL;
    return (errint_t)n;
}

errint_t efs_mount_hash(const struct efs_mount *m, uint64_t *hash)
{
    char text[CONTROL_BYTES], digits[17] = "";
    errint_t rc = mount_read_control(m, ".expertfs/config", text);
    const char *line = rc == 0 ? strstr(text, "\nstore_hash: ") : NULL;
    if (rc < 0)
        return rc;
    if (!line || sscanf(line, "\nstore_hash: %16[0-9a-f]\n", digits) != 1 || !strstr(text, "\nin_place: "))
        return -EPROTO;
    *hash = strtoull(digits, NULL, 16);
    return strstr(text, "\nin_place: yes\n") ? -EINVAL : 0;
}

/* text: of .expertfs/version. -EPROTONOSUPPORT: the mount does not speak this library's version of the socket protocol.
 */
static errint_t mount_check_protocol(const char *text, struct efs_error *err)
{
    const char *line = strstr(text, "\nsocket_protocol: ");
    unsigned is = 0; /* the mount is older than that line */
    if (line && sscanf(line, "\nsocket_protocol: %9u", &is) == 1 && is == EFS_EXPORT_VERSION)
        return 0;
    return efs_fail(
        err, -EPROTONOSUPPORT,
        "the mount speaks version %u%s of the socket's protocol, this program speaks version %u\nhint: the %s",
        is ? is : LAST_UNNAMED, is ? "" : " or less", EFS_EXPORT_VERSION,
        is > EFS_EXPORT_VERSION ? "program is of an older expertfs: install or build it again"
                                : "mount is of an older expertfs: `expertctl down` and `up` make it again");
}

static errint_t mount_start(struct efs_mount *m, struct efs_error *err)
{
    char text[CONTROL_BYTES];
    errint_t rc = mount_read_control(m, ".expertfs/version", text);
    if (rc == 0 && strncmp(text, "version:", 8) != 0)
        rc = -ENODEV;
    if (rc < 0)
        return efs_fail(err, rc == -ENOENT || rc == -ENOTDIR ? -ENODEV : rc,
                        "not a mount of expertfs: .expertfs/version: %s", strerror(rc == -ENODEV ? EINVAL : -rc));
    rc = mount_check_protocol(text, err);
    m->no_view =
        rc == 0 && mount_read_control(m, ".expertfs/config", text) == 0 && strstr(text, "\nview_hidden: yes\n");
    if (rc == 0)
        rc = efs_export_connect(m->root, &m->export, err);
    if (rc < 0)
        return rc;
    rc = efs_maintenance_start(m);
    return rc < 0 ? efs_fail(err, rc, "no thread: %s", strerror(-rc)) : 0;
}

errint_t efs_mount_new(int root, struct efs_mount **out, struct efs_error *err)
{
    struct efs_mount *m = efs_sys_calloc(1, sizeof(*m));
    if (!m) {
        efs_sys_close(root);
        return efs_fail(err, -ENOMEM, "no memory");
    }
    m->root = root;
    m->wake = -1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->send_lock, NULL);
    efs_cond_init(&m->arrived);
    errint_t rc = mount_start(m, err);
    if (rc < 0)
        efs_mount_free(m, false);
    else
        *out = m;
    return rc;
}

void efs_mount_free(struct efs_mount *m, bool forked)
{
    const int all[] = {m->root, m->wake};
    if (!forked && m->export)
        efs_maintenance_stop(m);
    /* If a thread held the lock at the fork, the lists may be inconsistent: their memory is freed when this process
     * ends. */
    const bool whole = pthread_mutex_trylock(&m->lock) == 0;
    efs_export_free(m->export, forked, whole);
    if (whole)
        efs_experts_free(m);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] >= 0)
            efs_sys_close(all[i]);
    if (whole)
        pthread_mutex_unlock(&m->lock);
    if (!forked) {
        pthread_cond_destroy(&m->arrived);
        pthread_mutex_destroy(&m->send_lock);
        pthread_mutex_destroy(&m->lock);
    }
    free(m);
}
