/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint_lock.h - keeps `down` from removing a mount point that `up` has just made: flock(2) of the folder above
 * it, shared by `up` until it has mounted, exclusive by `down`. */
#ifndef EXPERTCTL_MOUNTPOINT_LOCK_H
#define EXPERTCTL_MOUNTPOINT_LOCK_H

/* Locks the folder above path; operation: as of flock(2). Returns a descriptor; -1: the folder cannot be opened, or
 * with LOCK_NB another process has a lock that excludes this one. A file system without locks has none to wait for. */
int ctl_above_lock(const char *path, int operation);
/* Removes an empty mount point, unless `up` is at work in the folder above it. */
void ctl_mountpoint_remove(const char *path);

#endif
