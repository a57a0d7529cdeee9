/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.c - see mountpoint.h. */
#include "mountpoint.h"

#include <errno.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

/* Cut path to its folder; false for "/". */
static bool to_parent(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || !path[1])
        return false;
    slash[slash == path] = '\0';
    return true;
}

errint_t ctl_mount_of(const char *path, char **root, struct efs_error *err)
{
    struct stat here, above;
    char *at = realpath(path, NULL);
    char *up = at ? strdup(at) : NULL;
    if (!up || stat(at, &here) < 0) {
        errint_t rc = -errno;
        free(at);
        free(up);
        return efs_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    while (to_parent(up) && stat(up, &above) == 0 && above.st_dev == here.st_dev)
        strcpy(at, up);
    free(up);
    if (getxattr(at, CTL_XATTR "answer", NULL, 0) < 0) {
        free(at);
        return efs_fail(err, -ENODEV, "%s: not in a mount of expertfs that can be tuned", path);
    }
    *root = at;
    return 0;
}

errint_t ctl_mount_only(char **root, struct efs_error *err)
{
    FILE *table = setmntent("/proc/self/mounts", "re");
    struct mntent entry;
    char room[8192], names[512] = "";
    unsigned count = 0;
    *root = NULL;
    if (!table)
        return efs_fail(err, -errno, "/proc/self/mounts: %s", strerror(errno));
    while (getmntent_r(table, &entry, room, sizeof(room))) {
        if (strcmp(entry.mnt_type, "fuse.expertfs") != 0)
            continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s%s", count++ ? ", " : "", entry.mnt_dir);
        free(*root);
        *root = strdup(entry.mnt_dir);
    }
    endmntent(table);
    if (count == 1 && *root)
        return 0;
    free(*root);
    *root = NULL;
    return count ? efs_fail(err, -E2BIG, "which mount? there are %s", names)
                 : efs_fail(err, -ENOENT, "there is no mount of expertfs");
}

void ctl_mount_answer(const char *root, char *text, size_t room)
{
    ssize_t n = getxattr(root, CTL_XATTR "answer", text, room - 1);
    text[n < 0 ? 0 : n] = '\0';
}
