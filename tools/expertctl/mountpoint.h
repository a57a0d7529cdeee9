/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.h - finds the mounts that commands are given. */
#ifndef EXPERTCTL_MOUNTPOINT_H
#define EXPERTCTL_MOUNTPOINT_H

#include "expertfs.h"

#include <sys/types.h>

#define CTL_XATTR "user.expertfs."

/* The root of the expertfs mount that path is in, for free(). -ENODEV: it is in none (or in one of an earlier version);
 * what the system says. */
errint_t ctl_mount_of(const char *path, char **root, struct efs_error *err);
/* Is it the root of a mount? */
bool ctl_is_mount(const char *path);
/* As efs_store_open(); of a mountpoint the error names its store. */
errint_t ctl_store_open(const char *path, struct efs_store **store, struct efs_error *err);
/* The mounts of type fuse.expertfs by mountinfo, each once, in the order in which they were made. No daemon is asked.
 */
struct ctl_mounts {
    struct ctl_mount {
        char *path, *source; /* source: the store, unless -o fsname named another */
        dev_t device;
        int parent; /* id of the mount that it is mounted in */
    } * mount;
    size_t count;
};
errint_t ctl_mounts_find(struct ctl_mounts *mounts, struct efs_error *err);
void ctl_mounts_free(struct ctl_mounts *mounts);
/* The one mount of type fuse.expertfs, for free(). -ENOENT: there is none; -E2BIG: several, err names them. */
errint_t ctl_mount_only(char **root, struct efs_error *err);

#endif
