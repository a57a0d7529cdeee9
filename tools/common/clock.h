/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - CLOCK_MONOTONIC in nanoseconds and seconds.
 */
#ifndef TOOLS_CLOCK_H
#define TOOLS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t tools_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline double tools_now_s(void)
{
    return (double)tools_now_ns() * 1e-9;
}

#endif
