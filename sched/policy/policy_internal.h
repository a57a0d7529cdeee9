/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_internal.h - internals of the policies: the cache state of all experts, and the operations of an eviction
 * order.
 */
#ifndef EFS_POLICY_INTERNAL_H
#define EFS_POLICY_INTERNAL_H

#include "policy.h"
#include "rank.h"
#include "tables.h"

#define EFS_NO_UNIT UINT32_MAX
#define EFS_NOT_EVICTABLE UINT8_MAX

/* A unit is an expert of a layer: layer * experts + expert. A domain is the set of layers that share a capacity: all of
 * them, or one. */
struct efs_policy_order {
    int (*open)(struct efs_policy *policy);
    void (*close)(struct efs_policy *policy); /* frees what is not in policy->tables; may be NULL */
    /* Counts a request of a layer. Its units are pinned, so none of them is in the order. */
    void (*request)(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count);
    /* A unit becomes an eviction candidate of its pool; a unit is no longer one. */
    void (*insert)(struct efs_policy *policy, uint32_t unit);
    void (*remove)(struct efs_policy *policy, uint32_t unit);
    /* The candidate of least worth in a pool, or EFS_NO_UNIT. */
    uint32_t (*lowest)(struct efs_policy *policy, unsigned domain, enum efs_pool pool);
    /* Whether unit may replace victim in a pool. NULL: always. */
    bool (*beats)(struct efs_policy *policy, uint32_t unit, uint32_t victim, enum efs_pool pool);
    /* Whether the rank of a unit entitles it to a pool. NULL: always. */
    bool (*entitled)(struct efs_policy *policy, uint32_t unit, enum efs_pool pool);
    /* Units are admitted by falling worth. NULL: in the order of the request. */
    double (*worth)(struct efs_policy *policy, uint32_t unit);
    void (*seed)(struct efs_policy *policy, unsigned layer, const uint32_t *counts, uint64_t passes);
    /* NULL: by frequency */
    void (*ranks)(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count, uint32_t *ranks);
};

#define EFS_POLICY_EXTERN(KIND, name) extern const struct efs_policy_order efs_order_##name;
EFS_POLICIES(EFS_POLICY_EXTERN)
#undef EFS_POLICY_EXTERN

struct efs_policy {
    const struct efs_policy_order *order;
    void *state;                       /* of the order */
    struct efs_tables tables;          /* all arrays, including those of state */
    unsigned layers, experts, domains; /* domains: 1, or layers */
    uint32_t units;
    double chosen;
    bool recode, same_bytes;
    uint64_t seed;
    struct efs_policy_tuning tuning;

    uint64_t (*bytes)[EFS_POOLS];    /* [units], or one entry */
    uint64_t (*capacity)[EFS_POOLS]; /* [domains] */
    uint64_t (*used)[EFS_POOLS];     /* [domains] */
    double (*threshold)[EFS_POOLS];  /* [layers] tau: experts of a layer in the pools down to this one */

    uint8_t *pool;      /* [units] enum efs_pool */
    uint8_t *evictable; /* [units] the pool of which it is a candidate, or EFS_NOT_EVICTABLE */
    uint8_t *user_pin;  /* [units] pool of the user's pin; EFS_POOL_M: none */
    uint32_t *pins;     /* [units] */
    bool *frozen;       /* [units] moved in this call, so not to be moved again */
    uint64_t *since;    /* [units] clock of the last move from M */
    uint32_t *count;    /* [units] requests, for the baselines and for display */

    uint64_t clock; /* number of units requested */
    unsigned layer; /* of the last request */
    struct efs_move *moves;
    size_t move_count;
    uint32_t *sorted; /* [experts] scratch of admit */
    double *sorted_worth;
    struct efs_policy_pool info[EFS_POOLS + 1];
};

static inline unsigned efs_unit_layer(const struct efs_policy *policy, uint32_t unit)
{
    return unit / policy->experts;
}

static inline unsigned efs_unit_domain(const struct efs_policy *policy, uint32_t unit)
{
    return policy->domains == 1 ? 0 : unit / policy->experts;
}

static inline uint64_t efs_unit_bytes(const struct efs_policy *policy, uint32_t unit, enum efs_pool pool)
{
    return policy->bytes[policy->same_bytes ? 0 : unit][pool];
}

/* on: makes unit an eviction candidate if its state allows it, else removes it. off: removes it. Call it with off
 * before pool, pins, user_pin or frozen change, and with on after. */
void efs_policy_order_unit(struct efs_policy *policy, uint32_t unit, bool on);

/* policy_evict.c. Every call that makes moves is bracketed by begin and end. */
void efs_policy_call_begin(struct efs_policy *policy);
void efs_policy_call_end(struct efs_policy *policy, const struct efs_move **moves, size_t *move_count);
/* Moves the unit to the best pool that has or can make room, and the victims out of it; a unit without a better pool
 * stays. Returns its pool. */
enum efs_pool efs_policy_promote(struct efs_policy *policy, uint32_t unit);
void efs_policy_trim(struct efs_policy *policy);
/* Changes the pool of a unit, and the sums of bytes and experts. */
void efs_policy_set_pool(struct efs_policy *policy, uint32_t unit, enum efs_pool pool);
void efs_policy_set_thresholds(struct efs_policy *policy);

#endif
