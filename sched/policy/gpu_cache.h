/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_cache.h - chooses the experts of a layer to keep in GPU memory: DALI 4.3, Algorithm 2.
 *
 * The cache adds up each expert's tokens over a window of passes. At its end the busiest experts that are not cached
 * replace the least busy cached ones, up to a limit, and the sums restart. The algorithm as printed exchanges already
 * at its first pass (0 is a multiple of every window), evicts the busiest of the cached experts (line 11 takes the
 * largest), and also exchanges for less busy experts. Here the first window is complete, the least busy experts are
 * evicted, and only for busier ones.
 *
 * Pure; allocates nothing.
 */
#ifndef EFS_GPU_CACHE_H
#define EFS_GPU_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_GPU_SWAPS_MAX 64u
#define EFS_GPU_WINDOW 4u /* w_size of the paper */

struct efs_gpu_swap {
    uint32_t in, out; /* experts */
};

/* State of a layer; the caller initialises it and owns the arrays. */
struct efs_gpu_cache {
    uint32_t experts;
    uint32_t window; /* w_size: passes, 1 or more */
    uint32_t swaps;  /* u_size: limit of exchanges per window, at most EFS_GPU_SWAPS_MAX */
    bool *cached;    /* [experts] */
    uint64_t *score; /* [experts], initially 0 */
    uint32_t passes; /* passes in this window; initially 0 */
};

/* Records a pass with tokens[e] tokens for each expert e. At the end of a window exchanges experts in cached and lists
 * the exchanges in swap (room for cache->swaps). Returns their number, 0 within a window. */
uint32_t efs_gpu_cache_pass(struct efs_gpu_cache *cache, const uint32_t *tokens, struct efs_gpu_swap *swap);

/* The same for memory that also holds experts outside the set: `cached` is then the busy experts, which are evicted
 * last. The set first takes experts with tokens, by number, until it has `room`. */
void efs_gpu_cache_busy(struct efs_gpu_cache *cache, const uint32_t *tokens, uint32_t room);

#ifdef __cplusplus
}
#endif
#endif
