/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_cache.h - which experts of a layer stay in the memory of a graphics processor: DALI 4.3, Algorithm 2.
 *
 * Over a window of passes each expert's tokens are added up; at its end the busiest experts that are not cached take
 * the places of the idlest that are, up to so many, and the sums begin anew. As printed the algorithm already exchanges
 * at its first pass (0 is a multiple of every window), lets the busiest of the cached ones go (line 11 takes the
 * largest), and exchanges even for the worse. Here the first window is a whole one, the idlest go, and only for busier
 * ones.
 *
 * Pure; nothing is allocated.
 */
#ifndef EFS_GPU_CACHE_H
#define EFS_GPU_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_GPU_SWAPS_MAX 64u

struct efs_gpu_swap {
    uint32_t in, out; /* experts */
};

/* A layer; the caller fills it in and owns what it points to. */
struct efs_gpu_cache {
    uint32_t experts;
    uint32_t window; /* w_size: passes, 1 or more */
    uint32_t swaps;  /* u_size: exchanges at the end of one, at most EFS_GPU_SWAPS_MAX */
    bool *cached;    /* [experts] */
    uint64_t *score; /* [experts], all 0 at first */
    uint32_t passes; /* of the window, that were seen; 0 at first */
};

/* A pass gave expert e tokens[e]. Exchanges go to swap (room for cache->swaps) and are made in cached; returns how
 * many: 0 but at the end of a window. */
uint32_t efs_gpu_cache_pass(struct efs_gpu_cache *cache, const uint32_t *tokens, struct efs_gpu_swap *swap);

#ifdef __cplusplus
}
#endif
#endif
