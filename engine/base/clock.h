/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - time that only goes on.
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

#endif
