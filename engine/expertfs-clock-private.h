/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-clock-private.h - the time, for library, daemon and tools. Not installed.
 */
#ifndef EXPERTFS_CLOCK_PRIVATE_H
#define EXPERTFS_CLOCK_PRIVATE_H

#include <stdint.h>
#include <time.h>

static inline uint64_t efs_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CLOCK_MONOTONIC. */
static inline uint64_t efs_now_ns(void)
{
    return efs_clock_ns(CLOCK_MONOTONIC);
}
static inline double efs_now_seconds(void)
{
    return (double)efs_now_ns() * 1e-9;
}

/* Absolute deadline, ns from now, for a wait on a condition variable that uses CLOCK_MONOTONIC. */
static inline struct timespec efs_from_now(int64_t ns)
{
    const int64_t at = (int64_t)efs_now_ns() + ns;
    return (struct timespec){.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
}

#endif
