/* SPDX-License-Identifier: Apache-2.0 */
/* tick.h - a wait that ends at the latest after a tick, for threads that tell the caller how far the work is. */
#ifndef EFS_TICK_H
#define EFS_TICK_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#define EFS_TICK_NS 100000000L

/* changed waits by CLOCK_MONOTONIC; lock is held. true: the tick is over and nothing was signalled. */
static inline bool efs_tick_wait(pthread_cond_t *changed, pthread_mutex_t *lock)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += EFS_TICK_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    return pthread_cond_timedwait(changed, lock, &until) == ETIMEDOUT;
}

#endif
