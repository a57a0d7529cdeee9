/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_daemon.h - a thread that plays the daemon's part on the export socket of a mount (expertfs-protocol.h), for
 * tests with fixture_mount.h. A failure ends the test (cmocka).
 */
#ifndef EFS_FAKE_DAEMON_H
#define EFS_FAKE_DAEMON_H

#include "fixture_mount.h"

#include <pthread.h>

struct fake_daemon {
    int listening;
    size_t window_bytes; /* smallest multiple of the page size that holds any expert's file */
    pthread_t thread;
    void (*serve)(struct fake_daemon *daemon, int fd); /* serves one connection; returns at hang-up or to close it */
};

/* Start the thread, and write the socket's path to .expertfs/handout. In every second call the path is
 * longer than sun_path. */
void fake_daemon_start(struct fake_daemon *daemon, const struct fixture *model, const struct fixture_mount *mount,
                       void (*serve)(struct fake_daemon *daemon, int fd));
void fake_daemon_stop(struct fake_daemon *daemon);
/* Send a packet, with the descriptor `with` unless that is -1. */
void fake_daemon_send(int fd, const void *packet, size_t bytes, int with);

#endif
