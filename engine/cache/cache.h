/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h - which expert is kept in which state: the policy's cache state (sched/policy/policy.h), what moves they ask
 * for, and how the budget is cut into pools.
 *
 * The cache state says where an expert is to stay. Memory follows: components of extents that the cache state keeps are
 * *protected*, all else in memory is *evictable* and goes when its memory is needed, so that what is there may be
 * better than what the cache state says, and is never worse (efs_cache_lost tells them when it was). A move to a lower
 * pool drops nothing at once but makes components evictable; a full expert that falls to C, S or E is split and coded
 * again by demote.c, never read.
 *
 * All functions with efs.lock held unless they say otherwise.
 */
#ifndef EFS_CACHE_H
#define EFS_CACHE_H

#include "planner.h"
#include "policy.h"
#include "extent.h"
#include "full.h"

/* How the pools are to be chosen. */
struct efs_cache_tuning {
    enum efs_policy_kind policy;
    unsigned pools; /* allowed, bits EFS_PLAN_POOL */
    enum efs_plan_goal goal;
    bool fixed_plan;         /* ratio was given by the user; else by the planner */
    double ratio[EFS_POOLS]; /* shares of what pools may take; sum to at most 1 */
};

/* Without lock: make the cache state. 0, -ENOMEM. */
errint_t efs_cache_build(struct efs *fs, struct efs_error *err);
void efs_cache_destroy(struct efs *fs);
/* Bytes of its tables, for the budget. */
uint64_t efs_cache_bytes(const struct efs_store *store);

/* ---- requests ---- */

/* How experts are asked for: as their files are opened, one by one; named, all that a layer needs; or named ahead of
 * who comes for them: the next open, request or read of each is that use, and not another. */
enum efs_asked { EFS_ASKED_OPENED, EFS_ASKED_NAMED, EFS_ASKED_AHEAD };
/* Experts of one layer are asked for, to be full: counted, recorded, their places decided, moves applied; each is held
 * until efs_cache_release(). Those that were asked for ahead only get the hold. tokens may be NULL: one each. */
void efs_cache_request(struct efs *fs, const uint32_t *experts, const uint32_t *tokens, uint32_t count,
                       enum efs_asked asked);
void efs_cache_release(struct efs *fs, uint32_t expert);
/* One that was asked for, ahead or not: efs_expert_info.touches. */
void efs_cache_touched(struct efs *fs, uint32_t expert);
/* Of experts of a layer, by the policy's numbers: their ranks. */
void efs_cache_ranks(const struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count, uint32_t *ranks);
/* Bytes of an expert are read from a file, not by a lease: one use per pass through the layers. No hold. */
void efs_cache_read(struct efs *fs, uint32_t expert, uint64_t bytes);
bool efs_cache_held(const struct efs *fs, uint32_t expert);

/* ---- what memory tells the cache state (cache_lost.c) ---- */

/* Kept components of the expert are not there any more, or could not be brought. */
void efs_cache_lost(struct efs *fs, uint32_t expert);
/* Its full form went, or could not be made. */
void efs_cache_dropped_full(struct efs *fs, uint32_t expert);
/* Drop the oldest full expert that nobody holds, of the evictable or of the kept ones. false: none. */
bool efs_full_evict_oldest(struct efs *fs, bool kept);
void efs_cache_leased(struct efs *fs); /* leased_evictable_bytes grew */

/* Victims of the policy: memory follows. */
void efs_cache_apply(struct efs *fs, const struct efs_move *moves, size_t count);
/* With a policy: what is above the pools, and may go now, does. */
void efs_cache_fit(struct efs *fs);

/* ---- looking (cache_look.c) ---- */

/* 'F', 'C', 'S', 'E', 'P' (some other part), 'M': what is in memory. */
char efs_cache_state(const struct efs *fs, uint32_t expert);
enum efs_pool efs_cache_kept(const struct efs *fs, uint32_t expert);
/* state, kept, pin, rank, count and touches of efs_expert_info. */
void efs_cache_info(struct efs *fs, uint32_t expert, struct efs_expert_info *info);
/* Layers of all stacks in one row, as the policy has them; experts of the widest. These three also without lock. */
uint32_t efs_cache_layers(const struct efs *fs);
uint32_t efs_cache_width(const struct efs *fs);
uint32_t efs_cache_layer_of(const struct efs *fs, uint32_t expert);
/* The layer's first expert by its number in the store; of layer efs_cache_layers() the number of experts. Also without
 * lock. */
uint32_t efs_cache_layer_first(const struct efs *fs, uint32_t layer);
/* The experts of one layer: efs_cache_width() is that of the widest. */
uint32_t efs_cache_layer_width(const struct efs *fs, uint32_t layer);
/* [EFS_POOLS]: what it takes in each pool; also without lock. */
const uint64_t *efs_cache_expert_bytes(const struct efs *fs, uint32_t expert);
/* What the pools may take together, now. */
uint64_t efs_cache_pools_bytes(const struct efs *fs);
/* Leased at once, lately, of experts that are not kept full. */
uint64_t efs_cache_leased_peak(const struct efs *fs);
bool efs_cache_was_leased(const struct efs *fs); /* any expert since the start */
/* A policy decides; false: the store has no experts, or too many. Also without lock. */
bool efs_cache_has_policy(const struct efs *fs);
/* Experts that a layer asks for at once, on average, as the policy takes it. */
double efs_cache_chosen(const struct efs *fs);

/* ---- tuning (cache_tune.c) ---- */

/* How the pools are to be chosen: who changes it has them cut anew (efs_budget_cut()). The policy by
 * efs_cache_set_policy() alone. */
struct efs_cache_tuning *efs_cache_tuning(struct efs *fs);
/* The pools take so much together, and at most capacity_bytes each: victims go. */
void efs_cache_resize(struct efs *fs, uint64_t pools_bytes, const uint64_t capacity_bytes[EFS_POOLS]);
/* The policy starts with these: how often each expert of a layer was asked for in so many passes. */
void efs_cache_seed(struct efs *fs, uint32_t layer, const uint32_t *counts, uint64_t passes);

/* Without lock: another policy. A new machine takes over the cache state, counts, holds and pins; the pools are to be
 * cut anew (efs_budget_cut). 0, -ENOMEM. */
errint_t efs_cache_set_policy(struct efs *fs, enum efs_policy_kind kind);
/* pool F, C, or M: not pinned. */
void efs_cache_pin(struct efs *fs, uint32_t expert, enum efs_pool pool);

/* ---- demote.c ---- */

/* A full expert falls to a lower pool: bring the components that are kept but not there out of its full form, on a
 * worker. Does nothing when they are there or it is not full. */
void efs_demote(struct efs *fs, uint32_t expert);
/* The demotion that would have come last is not done, and its full form can go; or the one in work stops early.
 * false: none could be called off. */
bool efs_demotion_cancel(struct efs *fs);
/* Without lock, before there are threads and after. Without it full experts just go. 0, -ENOMEM. */
errint_t efs_demotion_build(struct efs *fs);
void efs_demotion_destroy(struct efs *fs);

#endif
