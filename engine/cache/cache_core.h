/* SPDX-License-Identifier: Apache-2.0 */
/* cache_core.h - the cache state itself: cache.c (requests), cache_look.c (what is told of it), cache_tune.c, demote.c.
 * Guarded by efs.lock, but for what does not change once it is built. */
#ifndef EFS_CACHE_CORE_H
#define EFS_CACHE_CORE_H

#include "cache.h"

struct efs_cache_expert {  /* by expert number */
    uint32_t layer, index; /* of the policy */
    uint32_t holds;
    uint32_t pass;       /* in which its last use began to be read; 0: it was named, and nobody has come for it yet */
    uint64_t left_bytes; /* of that use: what is read of it in that pass is not another */
    uint64_t touches;    /* how often it was asked for */
    uint8_t demoting;    /* demote.c has it */
};

struct efs_cache {
    struct efs_policy *policy; /* NULL: the store has no experts */
    struct efs_policy_config config;
    uint32_t layers, width;
    uint32_t *layer_first; /* [layers + 1]: expert numbers */
    uint64_t (*bytes)[EFS_POOLS];
    struct efs_cache_expert *expert;
    struct efs_cache_tuning tuning;
    uint64_t pools_bytes;         /* what the pools may take together, now */
    uint64_t leased_peak_bytes;   /* leased at once, lately: kept free for leases */
    uint64_t leased_lately_bytes; /* the same, of the requests since it was last looked at */
    uint64_t requests, leases;    /* since the start */
    uint32_t pass, pass_layer;    /* of readers of checkpoint files */
    uint64_t partial[EFS_POOLS + 1], saved_bytes[EFS_POOLS + 1], found[EFS_POOLS + 1]; /* of efs_pool_info */
    struct efs_placement *placements;                                                  /* [width], scratch */
    uint32_t *ids, *tokens;                                                            /* [width], scratch */
};

/* The components that a pool keeps of an extent; F and M none. */
unsigned efs_pool_components(enum efs_pool pool);
/* The pool of 'F', 'C', 'S' or 'E'; M for all else. */
enum efs_pool efs_cache_state_pool(char state);

#endif
