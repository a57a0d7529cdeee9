/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h - a process that ends the mount's connection when the daemon has died.
 *
 * A thread of a killed daemon cannot end while it waits in the kernel for pages of the mount that are being read, as an
 * invalidation does (loading.c): the kernel gives up reads when the FUSE device is closed, and that thread has
 * it open. So somebody else has to tell the kernel. The guard is forked before there are threads, holds no descriptor,
 * and sleeps until the daemon's main thread has ended. Then it has the connection aborted, by the file `abort` of
 * fusectl, which whoever mounted may write to; where fusectl is not mounted it needs CAP_SYS_ADMIN.
 *
 * Who kills the guard, too, at the same moment (all of a cgroup), or mounts as a user where fusectl is not mounted, may
 * be left with such a daemon: umount -f ends it.
 */
#ifndef EFSD_GUARD_H
#define EFSD_GUARD_H

#include <sys/types.h>

struct efsd_guard_shared;

struct efsd_guard {
    pid_t pid;     /* 0: there is none */
    int answer_fd; /* ends when the guard knows what it is to abort */
    struct efsd_guard_shared *shared;
};

/* Fork it. By the main thread, before there are others. Without it the daemon runs as well. */
void efsd_guard_start(struct efsd_guard *guard);
/* The mount has this device number; 0: it is not known. Waits until the guard has the file that ends the connection. */
void efsd_guard_watch(struct efsd_guard *guard, dev_t device);
/* End it; the connection stays. */
void efsd_guard_stop(struct efsd_guard *guard);

#endif
