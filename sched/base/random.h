/* SPDX-License-Identifier: Apache-2.0 */
/* random.h - splitmix64: a stream of pseudo-random numbers, the same on every machine. */
#ifndef EFS_RANDOM_H
#define EFS_RANDOM_H

#include <stdint.h>

static inline uint64_t efs_random(uint64_t *seed)
{
    uint64_t z = *seed += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

#endif
