/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.c - see mountpoint.h. */
#include "mountpoint.h"

#include "expertfs-private.h"
#include "mounted.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

errint_t ctl_mount_of(const char *path, char **root, struct efs_error *err)
{
    struct stat here, above;
    char *at, *slash;
    errint_t rc = efs_absolute_path(path, &at, err);
    if (rc < 0)
        return rc;
    char *up = strdup(at);
    if (!up || stat(at, &here) < 0) {
        rc = -errno;
        free(at);
        free(up);
        return efs_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    while (up[1] && (slash = strrchr(up, '/'))) {
        slash[slash == up] = '\0';
        if (stat(up, &above) < 0 || above.st_dev != here.st_dev)
            break;
        strcpy(at, up);
    }
    free(up);
    if (!ctl_is_mount(at)) {
        free(at);
        return efs_fail(err, -ENODEV,
                        "%s: not in a mount of expertfs that can be tuned; %s`expertctl list' shows the mounts", path,
                        S_ISREG(here.st_mode) ? "a store is mounted first: expertfs STORE MOUNTPOINT; " : "");
    }
    *root = at;
    return 0;
}

bool ctl_is_mount(const char *path)
{
    return getxattr(path, CTL_XATTR "answer", NULL, 0) >= 0;
}

errint_t ctl_store_open(const char *path, struct efs_store **store, struct efs_error *err)
{
    errint_t rc = efs_store_open(path, store, err);
    struct efs_error ignored;
    char *config = NULL, name[4200];
    if (rc == -EISDIR && tools_mounted_read(path, "config", &config, &ignored) == 0)
        efs_fail(err, rc, "%s: is a mount; its store is %s; `expertctl get` and `status` read mounts", path,
                 tools_line_path(config, "store", name, sizeof(name)));
    free(config);
    return rc;
}

bool ctl_mounts_next(FILE *table, struct mntent *entry, char *text, int room)
{
    while (getmntent_r(table, entry, text, room))
        if (strcmp(entry->mnt_type, "fuse.expertfs") == 0)
            return true;
    return false;
}

errint_t ctl_mount_only(char **root, struct efs_error *err)
{
    struct mntent entry;
    char text[CTL_MOUNT_BYTES], names[512] = "";
    size_t count = 0, used = 0;
    FILE *table = setmntent(CTL_MOUNTS, "re");
    errint_t rc = table ? 0 : efs_fail(err, -errno, CTL_MOUNTS ": %s", strerror(errno));
    *root = NULL;
    while (table && ctl_mounts_next(table, &entry, text, sizeof(text))) {
        if (used < sizeof(names))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", count ? ", " : "", entry.mnt_dir);
        free(*root);
        *root = strdup(entry.mnt_dir);
        count++;
    }
    if (table)
        endmntent(table);
    if (rc == 0 && count != 1)
        rc = count ? efs_fail(err, -E2BIG, "which mount? there are %s", names)
                   : efs_fail(err, -ENOENT, "there is no mount of expertfs");
    else if (rc == 0 && !*root)
        rc = efs_fail(err, -ENOMEM, "no memory");
    if (rc < 0) {
        free(*root);
        *root = NULL;
    }
    return rc;
}
