/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.c - see mountpoint.h. */
#include "mountpoint.h"

#include <dirent.h>
#include <errno.h>
#include <mntent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* What is mounted on path last; false: nothing is, or it is not known. */
static bool mountpoint_has(const char *path, char type[64], char source[512])
{
    FILE *table = setmntent("/proc/self/mounts", "re");
    struct mntent entry;
    char room[8192];
    bool found = false;
    while (table && getmntent_r(table, &entry, room, sizeof(room))) {
        if (strcmp(entry.mnt_dir, path) != 0)
            continue;
        found = true;
        snprintf(type, 64, "%s", entry.mnt_type);
        snprintf(source, 512, "%s", entry.mnt_fsname);
    }
    if (table)
        endmntent(table);
    return found;
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

errint_t efsd_mountpoint_check(const char *path, bool nonempty, struct efs_error *err)
{
    struct stat st;
    struct statvfs fs;
    char type[64], source[512];
    bool mounted = mountpoint_has(path, type, source);
    /* Who looks into a place that is mounted on demand waits for the mount that this is. */
    bool on_demand = mounted && strcmp(type, "autofs") == 0;
    /* statvfs() asks the daemon of a mount that is there already, where stat() is answered from the kernel's memory. */
    if (stat(path, &st) || (!on_demand && statvfs(path, &fs))) {
        errint_t rc = -errno;
        return rc == -ENOTCONN
                   ? efs_fail(err, rc, "%s: a mount whose daemon died is still there; remove it: fusermount3 -u %s",
                              path, path)
                   : efs_fail(err, rc, "%s: %s", path, strerror(-rc));
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
