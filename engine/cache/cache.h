/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h - the cache state of the policy (sched/policy/policy.h).
 *
 * cache/ keeps extents and decoded experts in memory, asks the policy which to keep, and evicts. budget/, planner/,
 * prefetch/, fetch/, control/ and serve/ call it; the daemon calls efs_pool_info(). It
 * never submits a read itself (core/ does when efs.lock is released) and never waits for one.
 *
 * The cache state has the pool that each expert is kept in, the moves that requests lead to, and the sizes of the
 * pools. It is the intended placement; memory follows it. Components of extents that it keeps are *protected*. All
 * other components in memory are *evictable* and are dropped when their memory is needed. So every component that the
 * state keeps is in memory or being loaded, and further ones may be; efs_cache_lost() corrects the state when kept
 * components are lost. A move to a lower pool drops nothing at once but makes components evictable; a full expert that
 * moves to C, S or E is split and encoded by demote.c, never read.
 *
 * All functions with efs.lock held unless stated otherwise. Only files of this room write the structs; any code with
 * the lock may read them, and without it members that are constant after efs_cache_build().
 */
#ifndef EFS_CACHE_H
#define EFS_CACHE_H

#include "planner.h"
#include "policy.h"
#include "extent.h"
#include "full.h"

#define EFS_CACHE_CHOSEN 4.0 /* experts in a request that policy and plans assume */

/* Settings for the sizes of the pools. */
struct efs_cache_tuning {
    enum efs_policy_kind policy;
    unsigned pools; /* allowed pools, bits EFS_PLAN_POOL */
    enum efs_plan_goal goal;
    bool fixed_plan;         /* ratio is set by the user; else by the planner */
    double ratio[EFS_POOLS]; /* shares of the pools' memory; sum at most 1 */
};

struct efs_cache_expert {  /* by expert number */
    uint32_t layer, index; /* numbers in the policy */
    uint32_t pins;
    uint32_t pass; /* pass of its last use by reads; 0: requested AHEAD and not used yet, if left_bytes is not 0 */
    uint64_t left_bytes; /* bytes of that use that were not read yet: reads of these do not count another use */
    uint64_t touches;    /* number of requests */
    uint8_t demoting;    /* queued or running in demote.c */
};

struct efs_cache {
    struct efs_policy *policy; /* NULL: the store has no experts, or too many */
    uint32_t layers, width;    /* layers of all stacks, as the policy numbers them; experts of the widest */
    uint32_t *layer_first;     /* [layers + 1]: expert numbers */
    uint64_t (*bytes)[EFS_POOLS];
    struct efs_cache_expert *expert;
    struct efs_cache_tuning tuning; /* after a change call efs_budget_cut(); the policy: efs_cache_set_policy() */
    uint64_t pools_bytes;           /* current limit of all pools together */
    uint64_t leased_peak_bytes;     /* recent peak of leased bytes: kept free for leases */
    uint64_t leased_recent_bytes;   /* peak since the last update of leased_peak_bytes */
    uint64_t requests, leases;      /* since the start */
    uint32_t pass, pass_layer;      /* progress of readers through the layers */
    uint64_t partial[EFS_POOLS + 1], saved_bytes[EFS_POOLS + 1], hits[EFS_POOLS + 1]; /* for efs_pool_info */
    struct efs_placement *placements;                                                 /* [width], scratch */
    uint32_t *ids, *tokens;                                                           /* [width], scratch */
    struct efs_policy *local; /* ranks experts for the local copy: gets requests for what memory lacks; NULL: no copy */
    uint32_t *missed;         /* [width], scratch */
    bool local_known;         /* it has had a request */
};

static inline const struct efs_cache *efs_cache(const struct efs *fs)
{
    return fs->cache;
}

/* For changes of the settings. */
static inline struct efs_cache_tuning *efs_cache_tuning(struct efs *fs)
{
    return &fs->cache->tuning;
}

/* Creates the cache state. Without lock. 0, -ENOMEM. */
errint_t efs_cache_build(struct efs *fs, struct efs_error *err);
void efs_cache_destroy(struct efs *fs);
/* Bytes of the cache state's tables, for the budget. */
uint64_t efs_cache_bytes(const struct efs_store *store);

/* ---- requests ---- */

/* Kinds of requests: OPENED: files are opened, one by one; NAMED: all experts that a layer needs; AHEAD: named before
 * their use: counted as a use now, and the next open, request or read of each is not counted again; not pinned. */
enum efs_use_kind { EFS_USE_OPENED, EFS_USE_NAMED, EFS_USE_COUNTED, EFS_USE_AHEAD };
/* Uses to be placed by efs_cache_place(), in scratch memory of the cache state: valid until the lock is released. */
struct efs_uses {
    uint32_t layer, count;        /* count 0: none */
    const uint32_t *ids, *tokens; /* numbers in the layer; tokens NULL: 1 each */
    bool full;                    /* the experts are to be full, and pinned until efs_cache_release() */
    bool named;
};
/* Pins experts of one layer that are requested, until efs_cache_release(), and counts the request. *uses: those that
 * were not requested AHEAD before. */
void efs_cache_request(struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_use_kind kind,
                       struct efs_uses *uses);
/* Lets the policy place experts that are used, and applies its moves. */
void efs_cache_place(struct efs *fs, const struct efs_uses *uses);
void efs_cache_release(struct efs *fs, uint32_t expert);
/* Bytes of an expert are read from a file, without a lease. Counts one use per pass through the layers, and one more
 * after all bytes of the expert. Does not pin it. */
void efs_cache_read(struct efs *fs, uint32_t expert, uint64_t bytes, struct efs_uses *uses);

/* ---- losses and moves ---- */

/* Protects the components of a pool from eviction, and no others. */
void efs_cache_protect(struct efs *fs, uint32_t expert, enum efs_pool pool);
/* Kept components of the expert were evicted, or could not be loaded. */
void efs_cache_lost(struct efs *fs, uint32_t expert);
/* The expert's full form was evicted, or could not be decoded. */
void efs_cache_lost_full(struct efs *fs, uint32_t expert);
void efs_cache_leased(struct efs *fs); /* leased_evictable_bytes has grown */

/* ---- queries ---- */

/* The pool of 'F', 'C', 'S' or 'E'; M for all other states. */
enum efs_pool efs_cache_state_pool(char state);
/* The form in memory: 'F', 'C', 'S', 'E', 'P' (other parts), 'M' (none). */
char efs_cache_state(const struct efs *fs, uint32_t expert);
enum efs_pool efs_cache_target(const struct efs *fs, uint32_t expert);
/* Sets state, kept, pin, rank, count and touches of efs_expert_info. */
void efs_cache_info(struct efs *fs, uint32_t expert, struct efs_expert_info *info);
/* [EFS_POOLS]: bytes of the expert in each pool. Also without lock. */
const uint64_t *efs_cache_expert_bytes(const struct efs *fs, uint32_t expert);
/* Sets worth[expert_count], for the local copy: more for an earlier expected read of it, INFINITY if the user has
 * pinned the expert. false: nothing is known yet, except pins. */
bool efs_cache_local_worth(struct efs *fs, double *worth);

/* ---- tuning ---- */

/* Sets the limit of all pools together, and of each; evicts the victims. */
void efs_cache_resize(struct efs *fs, uint64_t pools_bytes, const uint64_t capacity_bytes[EFS_POOLS]);

/* Changes the policy, which takes over cache state, counts, pins and user pins; call efs_budget_cut() afterwards.
 * Without lock. 0, -ENOMEM. */
errint_t efs_cache_set_policy(struct efs *fs, enum efs_policy_kind kind);
/* Pins an expert to pool F or C; M removes the pin. */
void efs_cache_user_pin(struct efs *fs, uint32_t expert, enum efs_pool pool);
/* Lets the policy keep a pinned expert without a request, which counts no use. true: in F or C. In the same critical
 * section the caller starts the loads of what is missing, or calls efs_cache_lost(). */
bool efs_cache_keep(struct efs *fs, uint32_t expert);

/* ---- demote.c ---- */

/* A full expert moves to a lower pool: queues making the kept components that are missing from its full form, on the
 * thread of idle work. Does nothing if none is missing or the expert is not full. */
void efs_demote(struct efs *fs, uint32_t expert);
/* Without lock, on the I/O thread: continues the demotion after a shard was encoded. */
void efs_demotion_encoded(struct efs *fs);
/* Without lock, before threads are started and after they have ended. Without demotion, full experts are dropped. 0,
 * -ENOMEM. */
errint_t efs_demotion_build(struct efs *fs);
void efs_demotion_destroy(struct efs *fs);
void efs_demotion_stop(struct efs *fs);           /* joins its thread, before the I/O thread and the workers end */
void efs_demotion_close_in_child(struct efs *fs); /* closes its descriptor in a forked process */

#endif
