/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - cache policies over (layer, expert).
 *
 * policy/ decides which experts to keep and in which state. cache/ and gpu/ of the engine and base/ and sim/ of
 * moe-replay call it; control/ and planner/ of the engine use the names of policies, planner/ of sched/ its types. It
 * never does I/O and never touches the bytes of an expert: the caller carries out its decisions.
 *
 * A policy knows the cache state of every expert (its pool: F, C, S, E, or M) and the bytes of each pool. The daemon
 * calls it under a lock; the simulator calls the same code and counts.
 *
 * A request is the set of experts that a layer needs at once, one or more:
 *
 *     efs_policy_request   counts it, returns the state in which each expert was found, and pins the experts
 *     efs_policy_admit     chooses the pool of each expert, and the victims that must leave to make room
 *     efs_policy_unpin     when the last user of the data has finished
 *
 * A caller may call efs_policy_admit before it reads anything, so that chunks can be read straight to their final
 * place; or after use, as in the paper. Experts that are pinned, pinned by the user, or part of the same request are
 * never victims.
 *
 * The caller carries out the moves in the order given, before the placements: victims leave before other experts take
 * their place. No pool then exceeds its capacity, except during exchanges: where an expert takes a victim's place and
 * the victim gets the expert's old one, the caller may need a temporary buffer (coding and decoding need one anyway).
 * Moves are demotions and evictions, and never read the disk:
 *
 *     F -> C  splits and codes again (only with recode)      C -> S, C -> E  drops a component
 *     F -> S  splits                                         any -> M        drops
 *
 * The cache state changes inside the call. A caller that cannot carry out a move reports the actual state with
 * efs_policy_set(). A request for an expert that is still being read finds it in its new state; the caller has to wait
 * for that read instead of starting another.
 *
 * The policies:
 *
 *     zipmoe   evicts the expert with the longest expected time until its next use (policy_reuse.h), over all layers
 *              together. With published = true as in the paper (ZipMoE 3.4): an expert's rank by requests within its
 *              layer entitles it to pools, and experts that are entitled to none are dropped after use
 *     lru, lfu, fifo, marking   always admit, and evict the least recently used, least often used, oldest, or a random
 *              expert not requested in this phase
 *
 * All of them work on the same pools: with one pool of non-zero capacity they are the classic policies on units of that
 * state (F: plain experts, C: coded ones); with several, an expert enters the first pool, and victims move to the next.
 *
 * Pure: no I/O, clock or threads; only efs_policy_new allocates. Not thread-safe. Layers and experts are numbered from
 * 0; layers may have fewer experts than the widest.
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

/* The kind and the name of each policy; its functions are efs_order_NAME (policy_internal.h). */
#define EFS_POLICIES(X) X(ZIPMOE, zipmoe) X(LRU, lru) X(LFU, lfu) X(FIFO, fifo) X(MARKING, marking)

enum efs_policy_kind {
#define EFS_POLICY_ENUM(KIND, name) EFS_POLICY_##KIND,
    EFS_POLICIES(EFS_POLICY_ENUM)
#undef EFS_POLICY_ENUM
        EFS_POLICY_KINDS
};
/* "zipmoe", "lru", ...; NULL for an invalid kind. efs_policy_by_name() returns EFS_POLICY_KINDS for an unknown name. */
const char *efs_policy_name(enum efs_policy_kind kind);
enum efs_policy_kind efs_policy_by_name(const char *name);

/* Of the zipmoe policy. Fields that are 0 mean the defaults. */
struct efs_policy_tuning {
    bool published;     /* ranks by counts within the layer, thresholds, drop beyond them: exactly as in the paper */
    unsigned count_age; /* published: requests of a layer after which its counts are halved; 0: never */
    bool steady;        /* not published: see efs_reuse_new() */
};

struct efs_policy_config {
    enum efs_policy_kind kind;
    unsigned layers, experts;           /* experts of the widest layer */
    double chosen;                      /* mean number of experts in a request: k at batch size 1 */
    const uint64_t (*bytes)[EFS_POOLS]; /* sizes in F, C, S, E: [layer * experts + expert], copied; 0: no expert */
    bool same_bytes;                    /* bytes has one entry, for all experts */
    uint64_t capacity_bytes[EFS_POOLS]; /* of the pools over all layers; 0: unused pool */
    bool by_layer;                      /* each layer has its own pools, with 1 / layers of the capacity */
    bool recode;                        /* a full expert may be coded again: F -> C and F -> E */
    uint64_t seed;                      /* of the marking policy */
    struct efs_policy_tuning tuning;
};

/* Pool of a requested expert before and after efs_policy_admit(). The room of a dropped expert is available from the
 * next admit on. */
struct efs_placement {
    uint32_t expert;
    uint8_t found;  /* enum efs_pool, before */
    uint8_t target; /* after; below found only with published: drop at the last unpin */
};

/* A victim: an expert outside the request that must move to a lower pool, or to M. */
struct efs_move {
    uint32_t layer, expert;
    uint8_t from, to;
};

struct efs_policy;

/* 0, -EINVAL (a size, kind or number out of range), -ENOMEM. The caller owns *policy. */
int efs_policy_new(const struct efs_policy_config *config, struct efs_policy **policy);
void efs_policy_free(struct efs_policy *policy); /* NULL is allowed */

/*
 * A layer requests count distinct experts. Fills placements[count], with target = found, and pins the experts. -EINVAL:
 * a number out of range, no such expert, or a duplicate; then nothing has changed.
 */
int efs_policy_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                       struct efs_placement *placements);

/*
 * Chooses the pool of each of these experts and sets its target. Updates found if another admit has moved the expert
 * since the request. The policy owns *moves, which is valid until the next call that changes the policy.
 */
void efs_policy_admit(struct efs_policy *policy, unsigned layer, struct efs_placement *placements, unsigned count,
                      const struct efs_move **moves, size_t *move_count);

/* A pinned expert is never a victim. Pins are counted; each needs one unpin. */
void efs_policy_pin(struct efs_policy *policy, unsigned layer, unsigned expert);
void efs_policy_unpin(struct efs_policy *policy, unsigned layer, unsigned expert);

/* Pins an expert to F or C for the user: its next admit takes room there from any victim, regardless of worth, and the
 * expert is never a victim itself. EFS_POOL_M removes the pin. */
void efs_policy_user_pin(struct efs_policy *policy, unsigned layer, unsigned expert, enum efs_pool pool);

/* Moves an expert to the pool that it is pinned to, without a request; victims as in efs_policy_admit(). Returns its
 * pool, the one before if that one has no room. */
enum efs_pool efs_policy_keep(struct efs_policy *policy, unsigned layer, unsigned expert, const struct efs_move **moves,
                              size_t *move_count);

/* Reports the actual state of an expert: a read failed, a move could not be done, an earlier mount left data. Changes
 * only the cache state; may overfill a pool, which the next efs_policy_resize() or efs_policy_fit() corrects. */
void efs_policy_set(struct efs_policy *policy, unsigned layer, unsigned expert, enum efs_pool pool);

/* Sets new capacities (a budget, a plan), as in the config, and evicts what exceeds them. Pinned experts may keep a
 * pool above its capacity until efs_policy_fit(). */
void efs_policy_resize(struct efs_policy *policy, const uint64_t capacity_bytes[EFS_POOLS],
                       const struct efs_move **moves, size_t *move_count);

/* Evicts unpinned experts from pools above their capacity: called after unpins. moves as in efs_policy_admit(). */
void efs_policy_fit(struct efs_policy *policy, const struct efs_move **moves, size_t *move_count);

/* Sets the counts of a layer's experts, accumulated over `passes` requests of it, from a trace or an earlier mount. */
void efs_policy_seed(struct efs_policy *policy, unsigned layer, const uint32_t *counts, uint64_t passes);

/* ---- queries ----------------------------------------------------------------------------------------------------- */

enum efs_pool efs_policy_state(const struct efs_policy *policy, unsigned layer, unsigned expert);
enum efs_pool efs_policy_user_pinned(const struct efs_policy *policy, unsigned layer, unsigned expert);
/* Rank in its layer by the policy's order, 0 the best; for the baselines by frequency. O(experts). */
unsigned efs_policy_rank(struct efs_policy *policy, unsigned layer, unsigned expert);
/* Ranks of several experts of a layer, for about the cost of one. */
void efs_policy_ranks(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                      uint32_t *ranks);
/* Worth of keeping an expert, over all layers: more for an earlier expected use. NAN: the policy has none. */
double efs_policy_worth(struct efs_policy *policy, unsigned layer, unsigned expert);
/* Number of requests for it, plus its count of the last efs_policy_seed(); not aged. */
uint32_t efs_policy_count(const struct efs_policy *policy, unsigned layer, unsigned expert);

struct efs_policy_pool {
    uint64_t capacity_bytes, used_bytes, experts;
    uint64_t hits;               /* requests that found the expert in this pool */
    uint64_t admitted, promoted; /* from M; from a lower pool */
    uint64_t demoted, evicted;   /* victims to a lower pool; to M */
    uint64_t dropped;            /* published: after use */
};
/* For EFS_POOL_M: hits are misses, experts those not in memory, admitted the missing ones that no pool took. */
void efs_policy_pool(const struct efs_policy *policy, enum efs_pool pool, struct efs_policy_pool *info);

#ifdef __cplusplus
}
#endif
#endif
