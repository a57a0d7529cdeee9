/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starting.h - the time before there is a mount. What happens then can take long, or for ever (a mountpoint on a file
 * system that does not answer, memory that is taken ahead), and leaves nothing behind: a signal ends it at once.
 */
#ifndef EFSD_STARTING_H
#define EFSD_STARTING_H

#include <pthread.h>
#include <stdatomic.h>

#include "expertfs.h"

struct efsd_starting {
    int signal_fd, over_fd;
    atomic_int phase;
    void (*given_up)(void *arg, const char *reason);
    void *arg;
    pthread_t thread;
    bool started;
};

/* Block SIGTERM, SIGINT and SIGHUP, in this thread and those that it starts. A signalfd of them, or -errno. A SIGHUP
 * that is ignored, as nohup(1) has it, is left so. */
int efsd_starting_signals(void);
/* Watch signal_fd, a signalfd of signals that are blocked, from a thread. If one comes, given_up is told why, from that
 * thread, and the process ends with EXIT_FAILURE. 0 or -errno. */
errint_t efsd_starting_begin(struct efsd_starting *starting, int signal_fd,
                             void (*given_up)(void *arg, const char *reason), void *arg);
/* From here on the end is in order: signals stay in signal_fd until somebody reads them. Joins the thread. May be
 * called twice, and of one that did not begin (zero). */
void efsd_starting_over(struct efsd_starting *starting);

#endif
