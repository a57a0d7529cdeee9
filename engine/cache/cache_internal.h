/* SPDX-License-Identifier: Apache-2.0 */
/* cache_internal.h - the structs of the cache state: cache.c (requests), cache_query.c (queries), cache_tune.c,
 * demote.c. Guarded by efs.lock, except members that are constant after efs_cache_build(). */
#ifndef EFS_CACHE_INTERNAL_H
#define EFS_CACHE_INTERNAL_H

#include "cache.h"

struct efs_cache_expert {  /* by expert number */
    uint32_t layer, index; /* numbers in the policy */
    uint32_t pins;
    uint32_t pass; /* pass of its last use by reads; 0: requested AHEAD and not used yet, if left_bytes is not 0 */
    uint64_t left_bytes; /* bytes of that use that were not read yet: reads of these do not count another use */
    uint64_t touches;    /* number of requests */
    uint8_t demoting;    /* queued or running in demote.c */
};

struct efs_cache {
    struct efs_policy *policy; /* NULL: the store has no experts */
    struct efs_policy_config config;
    uint32_t layers, width;
    uint32_t *layer_first; /* [layers + 1]: expert numbers */
    uint64_t (*bytes)[EFS_POOLS];
    struct efs_cache_expert *expert;
    struct efs_cache_tuning tuning;
    uint64_t pools_bytes;         /* current limit of all pools together */
    uint64_t leased_peak_bytes;   /* recent peak of leased bytes: kept free for leases */
    uint64_t leased_recent_bytes; /* peak since the last update of leased_peak_bytes */
    uint64_t requests, leases;    /* since the start */
    uint32_t pass, pass_layer;    /* progress of readers through the layers */
    uint64_t partial[EFS_POOLS + 1], saved_bytes[EFS_POOLS + 1], hits[EFS_POOLS + 1]; /* for efs_pool_info */
    struct efs_placement *placements;                                                 /* [width], scratch */
    uint32_t *ids, *tokens;                                                           /* [width], scratch */
};

/* The components of an extent that a pool keeps; 0 for F and M. */
unsigned efs_pool_components(enum efs_pool pool);
/* The pool of 'F', 'C', 'S' or 'E'; M for all other states. */
enum efs_pool efs_cache_state_pool(char state);

#endif
