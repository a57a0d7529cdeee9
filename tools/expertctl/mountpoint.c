/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.c - see mountpoint.h. */
#include "mountpoint.h"

#include "child.h"
#include "expertfs-private.h"
#include "control_file.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

bool ctl_is_mount(const char *path)
{
    return getxattr(path, CTL_XATTR "answer", NULL, 0) >= 0;
}

errint_t ctl_store_open(char *path, struct efs_store **store, struct efs_error *err)
{
    errint_t rc = efs_store_open(path, store, err);
    struct efs_error ignored;
    char *config = NULL, name[4200];
    if (rc == -EISDIR && tools_control_read(path, "config", &config, &ignored) == 0)
        efs_fail(err, rc, "%s: is a mount; its store is %s\nhint: `expertctl get` and `status` read mounts", path,
                 tools_line_path(config, "store", name, sizeof(name)));
    free(config);
    efs_hide_secret(path);
    return rc;
}

static void mount_drop(struct ctl_mounts *mounts, size_t at)
{
    free(mounts->mount[at].path);
    free(mounts->mount[at].source);
    memmove(&mounts->mount[at], &mounts->mount[at + 1], (--mounts->count - at) * sizeof(*mounts->mount));
}

/* Whether a newer mount at path, inside the mount `parent`, hides this one: it has the same path, or is above it in the
 * same parent mount. */
static bool mount_is_hidden(const struct ctl_mount *mount, const char *path, int parent)
{
    size_t bytes = strlen(path);
    bool same = strcmp(mount->path, path) == 0;
    return same || (mount->parent == parent && strncmp(mount->path, path, bytes) == 0 && mount->path[bytes] == '/');
}

/* The user who mounted, from the options of the file system. */
static uid_t mount_user(const char *options)
{
    const char *id = strstr(options, "user_id=");
    return id ? (uid_t)strtoul(id + strlen("user_id="), NULL, 10) : 0;
}

/* Adds a mount, and drops the mounts that it hides. Bind mounts are skipped: of a whole mount by its device, of a
 * folder by its root, which is not "/". */
static errint_t mounts_take(struct ctl_mounts *mounts, const struct efs_mount_entry *is, struct efs_error *err)
{
    bool ours = strcmp(is->type, "fuse.expertfs") == 0 && strcmp(is->root, "/") == 0;
    for (size_t i = mounts->count; i-- > 0;)
        if (mount_is_hidden(&mounts->mount[i], is->path, is->parent))
            mount_drop(mounts, i);
        else if (mounts->mount[i].device == is->device)
            ours = false;
    if (!ours)
        return 0;
    struct ctl_mount *more = reallocarray(mounts->mount, mounts->count + 1, sizeof(*more));
    if (!more)
        return efs_fail(err, -ENOMEM, "no memory for the mounts");
    const uid_t user = mount_user(is->options);
    mounts->mount = more;
    more += mounts->count++;
    *more = (struct ctl_mount){.path = strdup(is->path),
                               .source = strdup(is->source),
                               .device = is->device,
                               .parent = is->parent,
                               .user = user,
                               .usable = user == geteuid() || strstr(is->options, "allow_other")};
    return more->path && more->source ? 0 : efs_fail(err, -ENOMEM, "no memory for the mounts");
}

errint_t ctl_mounts_find(struct ctl_mounts *mounts, struct efs_error *err)
{
    struct efs_mounts table;
    struct efs_mount_entry mount;
    *mounts = (struct ctl_mounts){.count = 0};
    errint_t rc = efs_mounts_open(&table, "self");
    if (rc < 0)
        efs_fail(err, rc, "/proc/self/mountinfo: %s", strerror(-rc));
    while (rc == 0 && efs_mounts_next(&table, &mount))
        rc = mounts_take(mounts, &mount, err);
    efs_mounts_close(&table);
    if (rc < 0)
        ctl_mounts_free(mounts);
    return rc;
}

void ctl_mounts_free(struct ctl_mounts *mounts)
{
    while (mounts->count)
        mount_drop(mounts, mounts->count - 1);
    free(mounts->mount);
    mounts->mount = NULL;
}

struct probe {
    const char *root, *file;
};

static int probe(const void *arg)
{
    const struct probe *of = arg;
    struct efs_error ignored;
    char *text;
    bool read = tools_control_read(of->root, of->file, &text, &ignored) == 0;
    size_t bytes = read ? strlen(text) : 0;
    return read && write(STDOUT_FILENO, text, bytes) == (ssize_t)bytes ? 0 : 1;
}

char *ctl_mount_probe(const char *root, const char *file, int timeout_ms)
{
    char *text;
    if (ctl_child_run(probe, &(struct probe){root, file}, timeout_ms, &text, NULL) == 0 && text && *text)
        return text;
    free(text);
    return NULL;
}

bool ctl_may_mount(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
    return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & (1u << CAP_SYS_ADMIN));
}
