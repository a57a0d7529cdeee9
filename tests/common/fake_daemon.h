/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_daemon.h - a thread that plays the daemon's part on the export socket of a mount (expertfs-protocol.h), for tests
 * with fixture_mount.h. A failure ends the test (cmocka).
 */
#ifndef EFS_MOUNT_END_H
#define EFS_MOUNT_END_H

#include "fixture_mount.h"

#include <pthread.h>

struct mount_end {
    int listening;
    size_t window_bytes; /* smallest multiple of the page size that holds any expert's file */
    pthread_t thread;
    void (*serve)(struct mount_end *end, int fd); /* serves one connection; returns at hang-up or to close it */
};

/* Start the thread, and write the socket's path and `lines` to .expertfs/handout. In every second call the path is
 * longer than sun_path. */
void mount_end_begin(struct mount_end *end, const struct fixture *model, const struct fixture_mount *mount,
                     const char *lines, void (*serve)(struct mount_end *end, int fd));
void mount_end_end(struct mount_end *end);
/* Send a packet, with the descriptor `with` unless that is -1. */
void mount_end_send(int fd, const void *packet, size_t bytes, int with);

#endif
