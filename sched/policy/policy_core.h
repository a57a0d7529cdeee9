/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_core.h - inside the policies: the cache state of all experts, and the functions of an order of victims.
 */
#ifndef EFS_POLICY_CORE_H
#define EFS_POLICY_CORE_H

#include "policy.h"
#include "rank.h"
#include "tables.h"

#define EFS_NO_UNIT UINT32_MAX
#define EFS_NOT_EVICTABLE UINT8_MAX

/* A unit is an expert of a layer: layer * experts + expert. A domain is what shares a capacity: all layers, or one. */
struct efs_policy_order {
    const char *name;
    int (*open)(struct efs_policy *policy);
    void (*close)(struct efs_policy *policy); /* frees what is not of policy->tables; may be NULL */
    /* Units of a layer are asked for: count them. They are pinned, so none of them is in the order now. */
    void (*request)(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count);
    /* A unit becomes a possible victim of the pool it is in, and ceases to be one. */
    void (*enter)(struct efs_policy *policy, uint32_t unit);
    void (*leave)(struct efs_policy *policy, uint32_t unit);
    /* The possible victim of a pool that is worth least, or EFS_NO_UNIT. */
    uint32_t (*lowest)(struct efs_policy *policy, unsigned domain, enum efs_pool pool);
    /* May unit take the place of victim in a pool? NULL: always. */
    bool (*beats)(struct efs_policy *policy, uint32_t unit, uint32_t victim, enum efs_pool pool);
    /* Does its rank entitle a unit to a pool? NULL: always. */
    bool (*entitled)(struct efs_policy *policy, uint32_t unit, enum efs_pool pool);
    /* Larger: to be admitted first. NULL: in the order asked for. */
    double (*worth)(struct efs_policy *policy, uint32_t unit);
    void (*seed)(struct efs_policy *policy, unsigned layer, const uint32_t *counts, uint64_t passes);
    /* NULL: by frequency */
    void (*ranks)(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count, uint32_t *ranks);
};

extern const struct efs_policy_order efs_order_zipmoe, efs_order_lru, efs_order_lfu, efs_order_fifo, efs_order_marking;

struct efs_policy {
    const struct efs_policy_order *order;
    void *state;                       /* of the order */
    struct efs_tables tables;          /* all arrays, those of state too */
    unsigned layers, experts, domains; /* domains: 1, or layers */
    uint32_t units;
    double chosen;
    bool recode, same_bytes;
    uint64_t seed;
    struct efs_policy_tuning tuning;

    uint64_t (*bytes)[EFS_POOLS];    /* [units], or one */
    uint64_t (*capacity)[EFS_POOLS]; /* [domains] */
    uint64_t (*used)[EFS_POOLS];     /* [domains] */
    double (*threshold)[EFS_POOLS];  /* [layers] tau: experts of a layer that the pools down to this one hold */

    uint8_t *pool;      /* [units] where it is: enum efs_pool */
    uint8_t *evictable; /* [units] the pool that it may be a victim of, or EFS_NOT_EVICTABLE */
    uint8_t *user_pin;  /* [units] pool that the user pinned it to; EFS_POOL_M: none */
    uint32_t *pins;     /* [units] */
    bool *frozen;       /* [units] moved in this call: once is enough */
    uint64_t *since;    /* [units] clock when it was last admitted */
    uint32_t *count;    /* [units] requests, for the baselines and for show */

    uint64_t clock; /* units asked for so far */
    unsigned layer; /* last asked for */
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

/* Make unit a possible victim if it may be one, or see to it that it is none. To be called when any of pool, pins,
 * user_pin or frozen has changed, and before they change with on = false. */
void efs_policy_order_unit(struct efs_policy *policy, uint32_t unit, bool on);

/* policy_room.c: begin a call that makes moves; find a place; trim what is over. */
void efs_policy_call_begin(struct efs_policy *policy);
void efs_policy_call_end(struct efs_policy *policy, const struct efs_move **moves, size_t *move_count);
/* Move the unit to the best pool that takes it, victims moved away; it stays where it is when no better one does. */
enum efs_pool efs_policy_promote(struct efs_policy *policy, uint32_t unit);
void efs_policy_trim(struct efs_policy *policy);
/* Change the pool of a unit, and the sums. */
void efs_policy_set_pool(struct efs_policy *policy, uint32_t unit, enum efs_pool pool);
void efs_policy_set_thresholds(struct efs_policy *policy);

#endif
