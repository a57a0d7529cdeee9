/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mounts.h - the mount table. A path names the mount that is on top there now, so a mount is identified by its id or by
 * the device of its file system.
 */
#ifndef EFSD_MOUNTS_H
#define EFSD_MOUNTS_H

#include <stdio.h>
#include <sys/types.h>

#include "expertfs.h"

/* A line of /proc/self/mountinfo; the texts are without escapes, and valid until the next line is read. */
struct efsd_mount {
    int id;
    dev_t device;
    char *root; /* the folder of the file system that is mounted: "/" but for bind mounts */
    char *path;
    char *type;
    char *source;
};

struct efsd_mounts {
    FILE *table;
    char *line;
    size_t room;
};

errint_t efsd_mounts_open(struct efsd_mounts *mounts);
/* The next line; false after the last one. */
bool efsd_mounts_next(struct efsd_mounts *mounts, struct efsd_mount *mount);
void efsd_mounts_close(struct efsd_mounts *mounts);
/* Open the table and find the mount of this id; false: it is not there. To be closed in either case. */
bool efsd_mounts_find(struct efsd_mounts *mounts, int id, struct efsd_mount *mount);

/* An O_PATH descriptor of path and the id of the mount that it is in, or -errno. Sends the file system no request. */
int efsd_mount_open(const char *path, int *id);
/* The value of a line "name:<tab>number" of /proc/self/fdinfo/fd, or -errno. */
long efsd_fdinfo(int fd, const char *name);
/* Unmount this one, also while it is in use: by a descriptor, so that it is no other one, whatever path names by then.
 * -EBUSY: another mount hides it, and there is no way to it. */
errint_t efsd_mount_detach(const struct efsd_mount *mount);
/* Where the file system of this device is mounted as a whole, for free(). NULL: nowhere, or no memory. */
char *efsd_mounts_path(dev_t device);

#endif
