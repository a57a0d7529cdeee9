/* SPDX-License-Identifier: Apache-2.0 */
/* tick.h - a wait that ends at the latest after a tick, for threads that tell the caller how far the work is. */
#ifndef EFS_TICK_H
#define EFS_TICK_H

#include "clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#define EFS_TICK_NS 100000000L

/* changed waits by CLOCK_MONOTONIC; lock is held. true: the tick is over and nothing was signalled. */
static inline bool efs_tick_wait(pthread_cond_t *changed, pthread_mutex_t *lock)
{
    const struct timespec until = efs_from_now(EFS_TICK_NS);
    return pthread_cond_timedwait(changed, lock, &until) == ETIMEDOUT;
}

#endif
