/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - what is kept, and in which state: cache policies as decision machines over (layer, expert).
 *
 * A machine owns the books: in which pool (F, C, S, E) every expert is, and the bytes of each pool. It does no I/O and
 * holds no data. A daemon drives it under a lock and does what it says; a simulator drives the same code and counts.
 *
 * The life of a request (the experts that a layer wants at once, one or many):
 *
 *     efs_policy_request   counts it, says in which state each expert was found, and holds the experts
 *     efs_policy_settle    says where each is to be kept from now on, and what must go to make room for it
 *     efs_policy_release   ends the holds, when nobody uses the data any more
 *
 * Settle may be called at once, before anything is read: then chunks can be read straight to where they will stay. Or
 * after use, as in the paper. What is held, fixed, or wanted by the same request is never a victim.
 *
 * Moves are to be done in the order given, then the grants: all victims go before what takes their place. No pool is
 * over its capacity then but for exchanges: an expert that moves to a better pool and the victim that falls to where it
 * was may need a buffer of the caller's on the way (which coding and decoding need anyway). Moves are demotions and
 * evictions; none of them needs the disk:
 *
 *     F -> C  splits and codes again (only with recode)      C -> S, C -> E  drops a half
 *     F -> S  splits                                         any -> M        drops
 *
 * The books change at once, when settle, resize, ... return: a caller that cannot do a move tells with efs_policy_set
 * what is there instead. A request for an expert that is being read finds it where it will be; sharing that read is the
 * caller's affair.
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
    double delta;       /* published: margin of the thresholds, in ranks */
    unsigned count_age; /* published: requests of a layer after which its counts are halved; 0: never */
    double rate_weight; /* the rest: see struct efs_value_tuning */
    double age_weight;
    double smooth;
    double half_life;
    double change_bits;
    double promote_margin; /* an expert takes the place of another in F only if wanted this many times sooner; 6 */
};

struct efs_policy_config {
    enum efs_policy_kind kind;
    unsigned layers, experts;           /* experts of the widest layer */
    double chosen;                      /* experts that a layer asks for at once, on average: k at batch size 1 */
    const uint64_t (*bytes)[EFS_POOLS]; /* size of each expert in F, C, S, E: [layer * experts + expert], copied; */
    bool same_bytes;                    /* ... or one entry for all */
    uint64_t capacity_bytes[EFS_POOLS]; /* of the pools over all layers; 0: no such pool */
    const uint64_t (*layer_bytes)[EFS_POOLS]; /* NULL; or pools of each layer by itself, [layers], copied */
    bool recode;                              /* a full expert may be coded again: F -> C and F -> E */
    uint64_t seed;                            /* of the marking policy */
    struct efs_policy_tuning tuning;
};

/* Where a requested expert was and will be. */
struct efs_grant {
    uint32_t expert;
    uint8_t found;  /* enum efs_pool, before the request */
    uint8_t target; /* after it. Below found only with published: to be dropped when the last hold ends, and room for
                     * others only from the next settle on */
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
 * A layer asks for count experts, each once. Fills grants[count] (target is found for now) and holds the experts.
 * -EINVAL: a number out of range or an expert twice; then nothing has changed.
 */
int efs_policy_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                       struct efs_grant *grants);

/*
 * Decide where the experts of these grants stay: fills in target. *moves is valid until the next call that changes the
 * policy, and owned by it. Each grant's found is taken to be still so; one that has changed since (someone else's
 * request settled it) is corrected.
 */
void efs_policy_settle(struct efs_policy *policy, unsigned layer, struct efs_grant *grants, unsigned count,
                       const struct efs_move **moves, size_t *move_count);

/* Hold: never a victim while held. Holds are counted. Release ends one; that there is one is the caller's duty. */
void efs_policy_hold(struct efs_policy *policy, unsigned layer, unsigned expert);
void efs_policy_release(struct efs_policy *policy, unsigned layer, unsigned expert);

/* Fix an expert to F or C (a user's pin): once requested it goes there before all others and is no victim.
 * EFS_POOL_M: not fixed any more. */
void efs_policy_fix(struct efs_policy *policy, unsigned layer, unsigned expert, enum efs_pool pool);

/* The caller knows better what is in memory: a read failed, a move could not be done, an earlier mount left it. Books
 * only; may overfill a pool, which the next settle or resize sets right. */
void efs_policy_set(struct efs_policy *policy, unsigned layer, unsigned expert, enum efs_pool pool);

/*
 * New capacities (a budget, a plan). layer_bytes as in the config: NULL to share capacity_bytes by all layers. Victims
 * go at once; what holds keep back stays over the capacity and goes with later calls (efs_policy_over_bytes).
 */
void efs_policy_resize(struct efs_policy *policy, const uint64_t capacity_bytes[EFS_POOLS],
                       const uint64_t (*layer_bytes)[EFS_POOLS], const struct efs_move **moves, size_t *move_count);

/* A new sequence begins (zipmoe sees it by itself, a little later); harmless when several are interleaved. */
void efs_policy_begin(struct efs_policy *policy);

/* Counts of a layer's experts from a trace or an earlier mount, made in passes requests of it. */
void efs_policy_seed(struct efs_policy *policy, unsigned layer, const uint32_t *counts, uint64_t passes);

/* ---- looking at it ------------------------------------------------------------------------------------------ */

enum efs_pool efs_policy_state(const struct efs_policy *policy, unsigned layer, unsigned expert);
bool efs_policy_held(const struct efs_policy *policy, unsigned layer, unsigned expert);
enum efs_pool efs_policy_fixed(const struct efs_policy *policy, unsigned layer, unsigned expert);
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
uint64_t efs_policy_over_bytes(const struct efs_policy *policy);

#ifdef __cplusplus
}
#endif
#endif
