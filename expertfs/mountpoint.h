/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.h - may a store be mounted here? */
#ifndef EFSD_MOUNTPOINT_H
#define EFSD_MOUNTPOINT_H

#include "expertfs.h"

/*
 * path is absolute. Refused with the way out in err: what is not a directory, a mount whose daemon died, and, unless
 * nonempty, a directory that holds something, which a mount would hide: another mount of a store, too. May block on
 * the daemon of a mount that is there.
 */
errint_t efsd_mountpoint_check(const char *path, bool nonempty, struct efs_error *err);

/* Unmount the top mount at path while it is of type fuse.SUBTYPE and its daemon has died. */
void efsd_mountpoint_recover(const char *path, const char *subtype);

/*
 * Reserve path until *claim is closed, so that one of several daemons that start at once mounts there. -EBUSY: err
 * names the process that has reserved it. *claim is negative where there are no such claims, or another user has it,
 * who could keep it for ever.
 */
errint_t efsd_mountpoint_claim(const char *path, int *claim, struct efs_error *err);

#endif
