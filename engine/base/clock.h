/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - monotonic time.
 */
#ifndef EFS_CLOCK_H
#define EFS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t efs_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Absolute deadline, ns from now, for a wait on a condition variable that uses CLOCK_MONOTONIC. */
static inline struct timespec efs_from_now(int64_t ns)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += ns / 1000000000;
    at.tv_nsec += ns % 1000000000;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

#endif
