/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.h - checks of a mountpoint, removal of dead mounts, remount. */
#ifndef EFSD_MOUNTPOINT_H
#define EFSD_MOUNTPOINT_H

#include "options.h"

/*
 * Checks that a store can be mounted on path, which is absolute. Errors, with a hint in err: -ENOTDIR; -ENOTCONN: a
 * mount whose daemon has died; unless nonempty, -EBUSY: a FUSE mount with entries, or -ENOTEMPTY: any other directory
 * with entries, which the mount would hide; or the error of stat(2) or statvfs(3). May block on the daemon of an
 * existing mount. Always sets *lock to a descriptor that locks the directory, or to -1. Until the caller closes it,
 * other daemons that call this function for path wait, for at most 10 s.
 */
errint_t efsd_mountpoint_check(const char *path, bool nonempty, int *lock, struct efs_error *err);

/* Returns -ENOTCONN; err names the dead mount that contains path, and the command that removes it. */
errint_t efsd_mountpoint_dead(const char *path, struct efs_error *err);

/* Unmounts mounts from the top of path while their type is fuse.expertfs and their daemon has died. */
void efsd_mountpoint_recover(const char *path);

/* mount -o remount: applies ro or rw, and noexec, to the topmost mount at options->mountpoint, which must have this
 * type, and sets the tunables in options by its attributes; those set before one that is refused stay.
 * Other options are ignored. -errno: err has the daemon's reason. */
errint_t efsd_mountpoint_remount(const struct efsd_options *options, struct efs_error *err);

#endif
