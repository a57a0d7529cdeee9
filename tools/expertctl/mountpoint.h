/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.h - finds the mounts that commands are given. */
#ifndef EXPERTCTL_MOUNTPOINT_H
#define EXPERTCTL_MOUNTPOINT_H

#include "expertfs.h"

#include <mntent.h>
#include <stdio.h>

#define CTL_XATTR "user.expertfs."

/* The root of the expertfs mount that path is in, for free(). -ENODEV: it is in none (or in one of an earlier version);
 * what the system says. */
errint_t ctl_mount_of(const char *path, char **root, struct efs_error *err);
/* Is it the root of a mount? */
bool ctl_is_mount(const char *path);
/* As efs_store_open(); of a mountpoint the error names its store. */
errint_t ctl_store_open(const char *path, struct efs_store **store, struct efs_error *err);
/* The next mount of type fuse.expertfs in a table that setmntent(3) has opened; false: there is none. Its source is the
 * store, unless -o fsname named another. No daemon is asked. */
#define CTL_MOUNTS "/proc/self/mounts"
#define CTL_MOUNT_BYTES 16384 /* of text */
bool ctl_mounts_next(FILE *table, struct mntent *entry, char *text, int room);
/* The one mount of type fuse.expertfs, for free(). -ENOENT: there is none; -E2BIG: several, err names them. */
errint_t ctl_mount_only(char **root, struct efs_error *err);

#endif
