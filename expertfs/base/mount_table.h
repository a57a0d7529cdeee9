/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_table.h - the mount table. A path names the mount that is topmost there at the moment, so mounts are identified
 * by their id or by the device of their file system.
 */
#ifndef EFSD_MOUNT_TABLE_H
#define EFSD_MOUNT_TABLE_H

#include "expertfs-private.h"

/* Opens the table and finds the mount with this id; false: not found. The caller closes the table in either case. */
bool efsd_mounts_find(struct efs_mounts *mounts, int id, struct efs_mount_entry *mount);

/* Returns an O_PATH descriptor of path and sets *id to the id of its mount, or returns -errno. Sends no request to the
 * file system. */
int efsd_mount_open(const char *path, int *id);
/* Returns the value of a line "name:<tab>number" of /proc/self/fdinfo/fd, or -errno; -ENODATA: no such line. */
long efsd_fdinfo(int fd, const char *name);
/* Lazily unmounts this mount. With CAP_SYS_ADMIN it is unmounted through a descriptor, so that it cannot be another
 * mount if the path changes; without, by path, through fusermount3. -EBUSY: another mount hides it. */
errint_t efsd_mount_detach(const struct efs_mount_entry *mount);
/* Path at which the whole file system of this device is mounted, to be freed by the caller. NULL: not mounted, or no
 * memory. */
char *efsd_mounts_path(dev_t device);

#endif
