/* SPDX-License-Identifier: Apache-2.0 */
/* deadline.h - waits that end at a time which a caller gave. `until` is an absolute time; NULL: no limit. */
#ifndef EFS_DEADLINE_H
#define EFS_DEADLINE_H

#include "expertfs-clock-private.h"
#include "expertfs.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>

/* The end of a caller's timeout from now on, in *until; NULL if timeout_ms < 0. */
static inline const struct timespec *efs_deadline(int timeout_ms, struct timespec *until)
{
    *until = efs_from_now((int64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000);
    return timeout_ms < 0 ? NULL : until;
}

/* A condition variable that uses CLOCK_MONOTONIC. */
static inline void efs_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Waits for a condition variable that uses CLOCK_MONOTONIC. 0 or -ETIMEDOUT. */
static inline errint_t efs_cond_wait_until(pthread_cond_t *changed, pthread_mutex_t *lock, const struct timespec *until)
{
    return -(until ? pthread_cond_timedwait(changed, lock, until) : pthread_cond_wait(changed, lock));
}

/* As poll(2): the number of descriptors with events, 0 at the end of the time, < 0. */
static inline int efs_poll_until(struct pollfd *fds, unsigned count, const struct timespec *until)
{
    int64_t left = -1;
    if (until) {
        const int64_t ns = until->tv_sec * INT64_C(1000000000) + until->tv_nsec - (int64_t)efs_now_ns();
        left = (ns + 999999) / 1000000;
        left = left < 0 ? 0 : left > INT_MAX ? INT_MAX : left;
    }
    return poll(fds, count, (int)left);
}

#endif
