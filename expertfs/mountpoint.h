/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.h - may a store be mounted here? */
#ifndef EFSD_MOUNTPOINT_H
#define EFSD_MOUNTPOINT_H

#include "options.h"

/*
 * path is absolute. Refused with the way out in err: what is not a directory, a mount whose daemon died, and, unless
 * nonempty, a directory that holds something, which a mount would hide: another mount of a store, too. May block on
 * the daemon of a mount that is there. Until the caller closes *lock, which may be negative, other daemons that come
 * here wait for it, some seconds at most.
 */
errint_t efsd_mountpoint_check(const char *path, bool nonempty, int *lock, struct efs_error *err);

/* -ENOTCONN, in err the dead mount that path is in and how to remove it. */
errint_t efsd_mountpoint_dead(const char *path, struct efs_error *err);

/* Unmount the top mount at path while it is of type fuse.SUBTYPE (NULL: expertfs) and its daemon has died. */
void efsd_mountpoint_recover(const char *path, const char *subtype);

/* mount -o remount: make the mount of this type that is on top at options->mountpoint ro or rw. The daemon takes no
 * part in it, and other options have no effect. */
errint_t efsd_mountpoint_remount(const struct efsd_options *options, struct efs_error *err);

#endif
