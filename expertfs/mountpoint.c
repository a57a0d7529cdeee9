/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.c - see mountpoint.h. */
#include "mountpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "expertfs-private.h"
#include "log.h"
#include "mount_table.h"

#define LOCK_TRIES 1000
#define LOCK_PAUSE_US 10000

/* Type and source of the topmost mount at path. false: no mount, or the mount table cannot be read. */
static bool mountpoint_has(const char *path, char type[64], char source[512])
{
    struct efs_mounts table;
    struct efs_mount_entry mount;
    bool found = false;
    efs_mounts_open(&table, "self");
    while (efs_mounts_next(&table, &mount)) { /* the last match is the topmost mount */
        if (strcmp(mount.path, path) != 0)
            continue;
        found = true;
        snprintf(type, 64, "%s", mount.type);
        snprintf(source, 512, "%s", mount.source);
    }
    efs_mounts_close(&table);
    return found;
}

/* Serialises daemons that mount on the same path: each waits until the previous one has mounted or failed, but at most
 * LOCK_TRIES * LOCK_PAUSE_US, because any user who can read the directory can lock it. Returns a descriptor, after a
 * timeout without the lock, or -1 if the directory cannot be opened. */
static int mountpoint_lock(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int tries = 0; fd >= 0 && tries < LOCK_TRIES; tries++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            break;
        usleep(LOCK_PAUSE_US);
    }
    return fd;
}

/* A directory that cannot be read counts as empty, because its owner may mount on it. */
static bool mountpoint_is_empty(const char *path)
{
    DIR *directory = opendir(path);
    const struct dirent *entry;
    bool empty = true;
    while (directory && empty && (entry = readdir(directory)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (directory)
        closedir(directory);
    return empty;
}

/* Path of the dead mount that contains path; the caller frees it. NULL: not found. */
static char *dead_mount(const char *path)
{
    struct efs_mounts table;
    struct efs_mount_entry mount;
    struct statfs fs;
    int id, fd;
    char *above = strdup(path), *slash, *found = NULL;
    while (above && (fd = efsd_mount_open(above, &id)) < 0 && (slash = strrchr(above, '/')) && slash > above)
        *slash = '\0';
    if (above && fd >= 0 && fstatfs(fd, &fs) < 0 && errno == ENOTCONN) {
        found = efsd_mounts_find(&table, id, &mount) ? strdup(mount.path) : NULL;
        efs_mounts_close(&table);
    }
    if (above && fd >= 0)
        close(fd);
    free(above);
    return found;
}

errint_t efsd_mountpoint_dead(const char *path, struct efs_error *err)
{
    char *mount = dead_mount(path);
    if (mount)
        efs_fail(err, -ENOTCONN, "%s: a mount whose daemon died is still there\nhint: remove it: fusermount3 -u %s",
                 path, EFS_WORD(mount));
    else /* path leads into it through a symbolic link */
        efs_fail(err, -ENOTCONN,
                 "%s: a mount whose daemon died is on the way there\nhint: findmnt names it, fusermount3 -u removes it",
                 path);
    free(mount);
    return -ENOTCONN;
}

errint_t efsd_mountpoint_check(const char *path, bool nonempty, int *lock, struct efs_error *err)
{
    struct stat st;
    struct statvfs fs;
    char type[64], source[512];
    /* Opening the root of an autofs mount blocks until the mount that triggers it, this one, is done. */
    bool on_demand = mountpoint_has(path, type, source) && strcmp(type, "autofs") == 0;
    *lock = on_demand ? -1 : mountpoint_lock(path);
    bool mounted = mountpoint_has(path, type, source);
    /* statvfs() sends a request to the daemon of an existing mount; stat() may be answered from the kernel's attribute
     * cache. */
    if (stat(path, &st) || (!on_demand && statvfs(path, &fs))) {
        errint_t rc = -errno;
        return rc == -ENOTCONN ? efsd_mountpoint_dead(path, err) : efs_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    if (!S_ISDIR(st.st_mode))
        return efs_fail(err, -ENOTDIR, "%s: not a directory\nhint: the store comes first, then where to mount it",
                        path);
    if (nonempty || on_demand || mountpoint_is_empty(path))
        return 0;
    if (mounted && strncmp(type, "fuse.", 5) == 0)
        return efs_fail(
            err, -EBUSY,
            "%s: %s is mounted there already\nhint: unmount it (fusermount3 -u %s), or mount over it with -o "
            "nonempty",
            path, source, EFS_WORD(path));
    return efs_fail(err, -ENOTEMPTY, "%s: the directory is not empty\nhint: -o nonempty mounts over what is in it",
                    path);
}

static bool mount_is_ours(const struct efs_mount_entry *mount)
{
    return strcmp(mount->type, "fuse.expertfs") == 0;
}

void efsd_mountpoint_recover(const char *path)
{
    errint_t rc = 0;
    for (bool dead = true; dead && !rc;) {
        struct efs_mounts table = {0};
        struct efs_mount_entry mount;
        struct statfs fs;
        int id, fd = efsd_mount_open(path, &id);
        dead = fd >= 0 && fstatfs(fd, &fs) < 0 && errno == ENOTCONN; /* fstat() may use the attribute cache */
        if (fd >= 0)
            close(fd);
        bool ours = dead && efsd_mounts_find(&table, id, &mount) && mount_is_ours(&mount);
        rc = ours ? efsd_mount_detach(&mount) : -ENOENT;
        efs_mounts_close(&table);
    }
}

static errint_t remount_flags(const char *path, const char *by_descriptor, const struct efsd_options *options,
                              bool read_only, struct efs_error *err)
{
    const unsigned long flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | (read_only ? MS_RDONLY : 0) |
                                (efsd_options_mounts_with(options, "noexec") ? MS_NOEXEC : 0);
    if (mount(NULL, by_descriptor, NULL, flags, NULL) == 0)
        return 0;
    return efs_fail(err, -errno, "%s: remount: %s", path,
                    errno == EINVAL ? "not mounted: a folder of a mount" : strerror(errno));
}

/* Sets one tunable, unless it has that value. */
static errint_t remount_tune(const char *path, const char *by_descriptor, const char *name, const char *value,
                             struct efs_error *err)
{
    char attribute[64], is[256], answer[1024];
    snprintf(attribute, sizeof(attribute), "user.expertfs.%s", name);
    ssize_t n = getxattr(by_descriptor, attribute, is, sizeof(is) - 1);
    is[n < 0 ? 0 : n] = '\0';
    if (strcmp(is, value) == 0 || setxattr(by_descriptor, attribute, value, strlen(value), 0) == 0)
        return 0;
    errint_t rc = -errno;
    n = getxattr(by_descriptor, "user.expertfs.answer", answer, sizeof(answer) - 1);
    answer[n < 0 ? 0 : n] = '\0';
    bool answered = n > 0 && rc != -EACCES;
    size_t bytes = strlen(name);
    if (answered && strncmp(answer, name, bytes) == 0 && answer[bytes] == '=')
        return efs_fail(err, rc, "%s: remount: %s", path, answer);
    return efs_fail(err, rc, "%s: remount: %s=%s: %s", path, name, value, answered ? answer : strerror(-rc));
}

/* Tunables can be set only while the mount is rw. */
static errint_t remount_apply(const char *path, const char *by_descriptor, const struct efsd_options *options,
                              struct efs_error *err)
{
    bool tunes = false;
    for (size_t i = 0; i < EFS_TUNABLES; i++)
        tunes |= options->tune[i] != NULL;
    errint_t rc = remount_flags(path, by_descriptor, options, options->read_only && !tunes, err);
    for (size_t i = 0; i < EFS_TUNABLES && !rc; i++)
        if (options->tune[i])
            rc = remount_tune(path, by_descriptor, efs_tunables[i].name, options->tune[i], err);
    if (tunes && options->read_only) {
        struct efs_error ignored;
        errint_t failed = remount_flags(path, by_descriptor, options, true, rc ? &ignored : err);
        rc = rc ? rc : failed;
    }
    return rc;
}

errint_t efsd_mountpoint_remount(const struct efsd_options *options, struct efs_error *err)
{
    const char *path = options->mountpoint;
    char by_descriptor[64];
    struct efs_mounts table;
    struct efs_mount_entry entry;
    int id, fd = efsd_mount_open(path, &id);
    if (fd < 0)
        return efs_fail(err, fd, "%s: %s", path, strerror(-fd));
    errint_t rc = efsd_mounts_find(&table, id, &entry) && mount_is_ours(&entry) ? 0 : -EINVAL;
    efs_mounts_close(&table);
    snprintf(by_descriptor, sizeof(by_descriptor), "/proc/self/fd/%d", fd);
    if (rc)
        efs_fail(err, rc, "%s: not mounted: no mount of expertfs to remount", path);
    else
        rc = remount_apply(path, by_descriptor, options, err);
    close(fd);
    return rc;
}
