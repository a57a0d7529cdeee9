/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_end.h - a thread that stands for a mount's end of the socket that hands experts out (expertfs-protocol.h),
 * beside a folder that stands for the mount (fixture_mount.h). Failures end the test (cmocka).
 */
#ifndef EFS_MOUNT_END_H
#define EFS_MOUNT_END_H

#include "fixture_mount.h"

#include <pthread.h>

struct mount_end {
    int listening;
    size_t window_bytes; /* whole pages that hold any expert's file */
    pthread_t thread;
    void (*serve)(struct mount_end *end, int fd); /* a client, until it hangs up or is given up */
};

/* .expertfs/handout has the socket's path, which is longer every other time than an address can be, and these lines. */
void mount_end_begin(struct mount_end *end, const struct fixture *model, const struct fixture_mount *mount,
                     const char *lines, void (*serve)(struct mount_end *end, int fd));
void mount_end_end(struct mount_end *end);
/* A packet, with a descriptor unless that is -1. */
void mount_end_send(int fd, const void *packet, size_t bytes, int with);

#endif
