/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.c - see mountpoint.h. */
#include "mountpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "mounts.h"

#define LOCK_TRIES 1000
#define LOCK_PAUSE_US 10000

/* What is mounted on path; false: nothing is, or it is not known. */
static bool mountpoint_has(const char *path, char type[64], char source[512])
{
    struct efsd_mounts table;
    struct efsd_mount mount;
    bool found = false;
    efsd_mounts_open(&table);
    while (efsd_mounts_next(&table, &mount)) { /* the last one is on top */
        if (strcmp(mount.path, path) != 0)
            continue;
        found = true;
        snprintf(type, 64, "%s", mount.type);
        snprintf(source, 512, "%s", mount.source);
    }
    efsd_mounts_close(&table);
    return found;
}

/* Of several daemons that start at once here the others wait until this one has mounted or failed, but not for ever: a
 * user who may read the directory can lock it, too. A descriptor, or -1 where that is not possible. */
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

/* A directory that cannot be read counts as empty: its owner may mount on it. */
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

errint_t efsd_mountpoint_dead(const char *path, struct efs_error *err)
{
    return efs_fail(err, -ENOTCONN,
                    "%s: a mount whose daemon died is there, or above; findmnt names it, fusermount3 -u removes it",
                    path);
}

errint_t efsd_mountpoint_check(const char *path, bool nonempty, int *lock, struct efs_error *err)
{
    struct stat st;
    struct statvfs fs;
    char type[64], source[512];
    /* Who looks into a place that is mounted on demand waits for the mount that this is. */
    bool on_demand = mountpoint_has(path, type, source) && strcmp(type, "autofs") == 0;
    *lock = on_demand ? -1 : mountpoint_lock(path);
    bool mounted = mountpoint_has(path, type, source);
    /* statvfs() asks the daemon of a mount that is there already, where stat() is answered from the kernel's memory. */
    if (stat(path, &st) || (!on_demand && statvfs(path, &fs))) {
        errint_t rc = -errno;
        return rc == -ENOTCONN ? efsd_mountpoint_dead(path, err) : efs_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    if (!S_ISDIR(st.st_mode))
        return efs_fail(err, -ENOTDIR, "%s: not a directory; the store comes first, then where to mount it", path);
    if (nonempty || on_demand || mountpoint_is_empty(path))
        return 0;
    if (mounted && strncmp(type, "fuse.", 5) == 0)
        return efs_fail(err, -EBUSY,
                        "%s: %s is mounted there already; unmount it (fusermount3 -u %s), or mount over it with -o "
                        "nonempty",
                        path, source, path);
    return efs_fail(err, -ENOTEMPTY, "%s: the directory is not empty; -o nonempty mounts over what is in it", path);
}

void efsd_mountpoint_recover(const char *path, const char *subtype)
{
    char type[64];
    errint_t rc = 0;
    snprintf(type, sizeof(type), "fuse.%s", subtype ? subtype : "expertfs");
    for (bool dead = true; dead && !rc;) {
        struct efsd_mounts table = {0};
        struct efsd_mount mount;
        struct statfs fs;
        int id, fd = efsd_mount_open(path, &id);
        dead = fd >= 0 && fstatfs(fd, &fs) < 0 && errno == ENOTCONN; /* fstat() may be answered by the kernel */
        if (fd >= 0)
            close(fd);
        bool ours = dead && efsd_mounts_find(&table, id, &mount) && strcmp(mount.type, type) == 0;
        rc = ours ? efsd_mount_detach(&mount) : -ENOENT;
        efsd_mounts_close(&table);
    }
}
