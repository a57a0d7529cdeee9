/* SPDX-License-Identifier: Apache-2.0 */
/*
 * apart.h - system calls that wait for the daemon's own answers, made by a thread with a descriptor table of its own.
 *
 * An open of a file of the mount waits in the kernel until the daemon has answered, and once the request was received
 * not even SIGKILL ends that wait. What ends it is that the FUSE device is closed, by the end of all who have it in
 * their table. A thread that shares the daemon's table would keep the device open while it waits for it to be closed:
 * neither the process nor the mount could ever end. This one has nothing in its table but what it opened itself. So
 * when the daemon is killed its other threads end, the device is closed, the kernel ends all requests, and with them
 * the wait.
 *
 * Descriptors are numbers of the thread's table: what it opened only it may use and close. Where there is no such
 * thread, since the system has not the calls for it (close_range: Linux 5.9), the caller makes the call by itself.
 */
#ifndef EFSD_APART_H
#define EFSD_APART_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "expertfs.h"

struct efsd_apart {
    pthread_t thread;
    _Atomic pid_t tid;    /* of the thread; 0: there is none, and callers make their calls by themselves */
    pthread_mutex_t turn; /* held by who has a call made */
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    enum { EFSD_APART_IDLE, EFSD_APART_ASKED, EFSD_APART_DONE, EFSD_APART_STOP } state;
    long call[6]; /* its number and arguments */
    long result;
};

/* Start the thread. -errno: there is none, and calls are made by who asks for them. */
errint_t efsd_apart_start(struct efsd_apart *apart);
/* End and join it; its descriptors are closed. */
void efsd_apart_stop(struct efsd_apart *apart);
/* Have a system call made, and wait for it. Its result or -errno. Any thread; one call at a time. */
long efsd_apart_call(struct efsd_apart *apart, long number, long a, long b, long c, long d, long e);

#endif
