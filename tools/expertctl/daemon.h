/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.h - the process that serves a mount. */
#ifndef EXPERTCTL_DAEMON_H
#define EXPERTCTL_DAEMON_H

#include "mountpoint.h"

struct ctl_daemon {
    int pidfd; /* -1: the process is unknown; the caller closes it */
    pid_t pid;
    bool hangs;       /* it did not answer within 3 s */
    bool holds_probe; /* and it has taken the request that it did not answer, which keeps the mount in use */
};

/* Finds the daemon of a mount; blocks for at most 7 s. */
void ctl_daemon_find(const struct ctl_mount *mount, struct ctl_daemon *daemon);
/* After the unmount: waits up to 30 s until the daemon has ended; not while the file system is mounted elsewhere, which
 * is printed. One that did not answer has 3 s and is then killed. */
void ctl_daemon_wait(const struct ctl_mount *mount, const struct ctl_daemon *daemon);

#endif
