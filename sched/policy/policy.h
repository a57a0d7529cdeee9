/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - what is kept, and in which state: cache policies over (layer, expert).
 *
 * A policy knows the cache state of every expert (in which pool it is: F, C, S, E, or M) and the bytes of each pool. It
 * has no data and does no I/O: the daemon calls it under a lock and does what it says, the simulator calls the same
 * code and counts.
 *
 * A request is the experts that a layer needs at once, one or many:
 *
 *     efs_policy_request   counts it, says in which state each expert was found, and pins the experts
 *     efs_policy_admit     says where each is to be kept from now on, and what must go to make room for it
 *     efs_policy_unpin     when nobody uses the data any more
 *
 * efs_policy_admit may be called before anything is read: then chunks can be read straight to where they will stay. Or
 * after use, as in the paper. Experts that are pinned, pinned by the user, or part of the same request are no victims.
 *
 * The moves are to be done in the order given, before the placements: victims leave before others take their place.
 * After that no pool is over its capacity but for exchanges: where an expert takes a victim's place and the victim gets
 * the expert's former one, the caller may need a buffer on the way (coding and decoding need one anyway). Moves are
 * demotions and evictions, and never need the disk:
 *
 *     F -> C  splits and codes again (only with recode)      C -> S, C -> E  drops a component
 *     F -> S  splits                                         any -> M        drops
 *
 * The cache state changes inside the call. A caller that cannot do a move says what is there instead by
 * efs_policy_set(). A request for an expert that is still being read finds it in its new state; to wait for that read,
 * not to begin another, is up to the caller.
 *
 * The policies:
 *
 *     zipmoe   ranks by frequency, pools over ranks, drop after use (ZipMoE 3.4); by default ranks are those of
 *              policy_value.h over all layers together; published = true is the paper's: counts, within the layer
 *     lru, lfu, fifo, marking   always admit, and evict the least recently used, least often used, oldest, or a random
 *              one of those not asked for in this phase
 *
 * All of them work on the same pools: with one pool of capacity they are the classic policies on units of that state
 * (F: plain experts, C: coded ones); with several, an expert enters the first pool, and victims fall to the next.
 *
 * Pure: no I/O, clock or thread; memory only in new. Not thread-safe. Layers and experts are numbers from 0; layers may
 * have fewer experts than the widest.
 */
#ifndef EFS_POLICY_H
#define EFS_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

enum efs_policy_kind {
    EFS_POLICY_ZIPMOE,
    EFS_POLICY_LRU,
    EFS_POLICY_LFU,
    EFS_POLICY_FIFO,
    EFS_POLICY_MARKING,
    EFS_POLICY_KINDS
};
/* "zipmoe", "lru", ...; NULL for no kind. And back: EFS_POLICY_KINDS for no name. */
const char *efs_policy_name(enum efs_policy_kind kind);
enum efs_policy_kind efs_policy_by_name(const char *name);

/* Of the zipmoe policy. Zeroes are the defaults. */
struct efs_policy_tuning {
    bool published;     /* rank by counts within the layer, thresholds, drop beyond them: the paper to the letter */
    unsigned count_age; /* published: requests of a layer after which its counts are halved; 0: never */
    bool steady;        /* not published: as of efs_value_new() */
};

struct efs_policy_config {
    enum efs_policy_kind kind;
    unsigned layers, experts;           /* experts of the widest layer */
    double chosen;                      /* experts that a layer asks for at once, on average: k at batch size 1 */
    const uint64_t (*bytes)[EFS_POOLS]; /* size of each expert in F, C, S, E: [layer * experts + expert], copied; */
    bool same_bytes;                    /* ... or one entry for all */
    uint64_t capacity_bytes[EFS_POOLS]; /* of the pools over all layers; 0: no such pool */
    bool by_layer;                      /* each layer has pools of its own, of equal parts of that */
    bool recode;                        /* a full expert may be coded again: F -> C and F -> E */
    uint64_t seed;                      /* of the marking policy */
    struct efs_policy_tuning tuning;
};

/* Where a requested expert was and will be. */
struct efs_placement {
    uint32_t expert;
    uint8_t found;  /* enum efs_pool, before the request */
    uint8_t target; /* after it. Below found only with published: to be dropped at the last unpin, and room for
                     * others only from the next admit on */
};

/* A victim: another expert that must leave its pool for a lower one, or for M. */
struct efs_move {
    uint32_t layer, expert;
    uint8_t from, to;
};

struct efs_policy;

/* 0, -EINVAL (a size, kind or number out of range), -ENOMEM. *policy is the caller's. */
int efs_policy_new(const struct efs_policy_config *config, struct efs_policy **policy);
void efs_policy_free(struct efs_policy *policy); /* NULL is fine */

/*
 * A layer asks for count experts, each once. Fills placements[count] (target is found for now) and pins the experts.
 * -EINVAL: a number out of range or an expert twice; then nothing has changed.
 */
int efs_policy_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                       struct efs_placement *placements);

/*
 * Decide where the experts of these placements stay: fills in target. *moves is valid until the next call that changes
 * the policy, and owned by it. found is corrected where it has changed since the request (another one was admitted).
 */
void efs_policy_admit(struct efs_policy *policy, unsigned layer, struct efs_placement *placements, unsigned count,
                      const struct efs_move **moves, size_t *move_count);

/* A pinned expert is no victim. Pins are counted; each must be ended by one unpin. */
void efs_policy_pin(struct efs_policy *policy, unsigned layer, unsigned expert);
void efs_policy_unpin(struct efs_policy *policy, unsigned layer, unsigned expert);

/* Pin an expert to F or C for the user: once requested it goes there before all others and is no victim. EFS_POOL_M
 * ends it. */
void efs_policy_user_pin(struct efs_policy *policy, unsigned layer, unsigned expert, enum efs_pool pool);

/* The caller knows better what is in memory: a read failed, a move could not be done, an earlier mount left it.
 * Changes the cache state alone; may overfill a pool, which the next admit or resize sets right. */
void efs_policy_set(struct efs_policy *policy, unsigned layer, unsigned expert, enum efs_pool pool);

/* New capacities (a budget, a plan), as in the config. Victims go at once; what is pinned stays over the capacity until
 * efs_policy_fit(). */
void efs_policy_resize(struct efs_policy *policy, const uint64_t capacity_bytes[EFS_POOLS],
                       const struct efs_move **moves, size_t *move_count);

/* What is above the capacities goes, as far as it is not pinned: after unpins. moves as of efs_policy_admit(). */
void efs_policy_fit(struct efs_policy *policy, const struct efs_move **moves, size_t *move_count);

/* Counts of a layer's experts from a trace or an earlier mount, made in passes requests of it. */
void efs_policy_seed(struct efs_policy *policy, unsigned layer, const uint32_t *counts, uint64_t passes);

/* ---- looking at it ------------------------------------------------------------------------------------------ */

enum efs_pool efs_policy_state(const struct efs_policy *policy, unsigned layer, unsigned expert);
enum efs_pool efs_policy_user_pinned(const struct efs_policy *policy, unsigned layer, unsigned expert);
/* Rank in its layer by what the policy goes by, 0 the best; for the baselines by frequency. Linear in experts. */
unsigned efs_policy_rank(struct efs_policy *policy, unsigned layer, unsigned expert);
/* The same of several experts of a layer at once, which costs hardly more than one. */
void efs_policy_ranks(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                      uint32_t *ranks);
/* How often it was asked for (zipmoe published: aged). */
uint32_t efs_policy_count(const struct efs_policy *policy, unsigned layer, unsigned expert);

struct efs_policy_pool {
    uint64_t capacity_bytes, used_bytes, experts;
    uint64_t hits;               /* requests that found the expert here */
    uint64_t admitted, promoted; /* came from M; from a lower pool */
    uint64_t demoted, evicted;   /* victims to a lower pool; to M */
    uint64_t dropped;            /* published: dropped after use */
};
/* EFS_POOL_M: hits are misses, experts those not in memory, admitted those dropped after use. */
void efs_policy_pool(const struct efs_policy *policy, enum efs_pool pool, struct efs_policy_pool *info);

#ifdef __cplusplus
}
#endif
#endif
