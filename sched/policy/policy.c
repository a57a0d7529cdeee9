/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.c - the public functions of a cache policy: requests, admission, pins, capacities, queries.
 */
#include "policy_internal.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    const struct efs_policy_order *order;
} orders[EFS_POLICY_KINDS] = {
#define POLICY_ORDER(KIND, name) {#name, &efs_order_##name},
    EFS_POLICIES(POLICY_ORDER)
#undef POLICY_ORDER
};

const char *efs_policy_name(enum efs_policy_kind kind)
{
    return (unsigned)kind < EFS_POLICY_KINDS ? orders[kind].name : NULL;
}

enum efs_policy_kind efs_policy_by_name(const char *name)
{
    enum efs_policy_kind kind = 0;

    while (kind < EFS_POLICY_KINDS && strcmp(orders[kind].name, name))
        kind++;
    return kind;
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

static bool policy_config_valid(const struct efs_policy_config *config)
{
    size_t entries = config->same_bytes ? 1 : (size_t)config->layers * config->experts;

    if ((unsigned)config->kind >= EFS_POLICY_KINDS || !config->layers || !config->experts || !config->bytes ||
        config->layers > EFS_RANK_MAX_LAYERS || config->experts > EFS_RANK_MAX_EXPERTS || !isfinite(config->chosen))
        return false;
    for (size_t i = 0; i < entries; i++) {
        const uint64_t *bytes = config->bytes[i];
        bool none = !bytes[0] && !bytes[1] && !bytes[2] && !bytes[3];

        for (unsigned p = 0; p < EFS_POOLS; p++) /* so that sums over all units stay below 2^64 */
            if (bytes[p] > UINT64_C(1) << 40 || (!bytes[p] && (!none || config->same_bytes)))
                return false;
    }
    return true;
}

static int policy_allocate(struct efs_policy *policy, const struct efs_policy_config *config)
{
    size_t units = policy->units, layers = policy->layers, entries = policy->same_bytes ? 1 : units;
    struct efs_tables *tables = &policy->tables;

    EFS_TABLE(tables, policy->bytes, entries);
    EFS_TABLE(tables, policy->capacity, policy->domains);
    EFS_TABLE(tables, policy->used, policy->domains);
    EFS_TABLE(tables, policy->threshold, layers);
    EFS_TABLE(tables, policy->pool, units);
    EFS_TABLE(tables, policy->evictable, units);
    EFS_TABLE(tables, policy->user_pin, units);
    EFS_TABLE(tables, policy->pins, units);
    EFS_TABLE(tables, policy->frozen, units);
    EFS_TABLE(tables, policy->since, units);
    EFS_TABLE(tables, policy->count, units);
    EFS_TABLE(tables, policy->moves, units);
    EFS_TABLE(tables, policy->sorted, policy->experts);
    EFS_TABLE(tables, policy->sorted_worth, policy->experts);
    if (tables->failed)
        return -ENOMEM;
    memcpy(policy->bytes, config->bytes, entries * sizeof(*policy->bytes));
    memset(policy->pool, EFS_POOL_M, units);
    memset(policy->evictable, EFS_NOT_EVICTABLE, units);
    memset(policy->user_pin, EFS_POOL_M, units);
    return 0;
}

static void policy_set_capacity(struct efs_policy *policy, const uint64_t capacity_bytes[EFS_POOLS])
{
    for (unsigned domain = 0; domain < policy->domains; domain++)
        for (unsigned p = 0; p < EFS_POOLS; p++)
            policy->capacity[domain][p] = capacity_bytes[p] / policy->domains;
    efs_policy_set_thresholds(policy);
}

int efs_policy_new(const struct efs_policy_config *config, struct efs_policy **out)
{
    struct efs_policy *policy;
    int rc;

    *out = NULL;
    if (!policy_config_valid(config))
        return -EINVAL;
    policy = calloc(1, sizeof(*policy));
    if (!policy)
        return -ENOMEM;
    *policy = (struct efs_policy){.order = orders[config->kind].order,
                                  .layers = config->layers,
                                  .experts = config->experts,
                                  .domains = config->by_layer ? config->layers : 1,
                                  .units = config->layers * config->experts,
                                  .chosen = config->chosen,
                                  .recode = config->recode,
                                  .same_bytes = config->same_bytes,
                                  .seed = config->seed,
                                  .tuning = config->tuning};
    rc = policy_allocate(policy, config);
    for (uint32_t unit = 0; !rc && unit < policy->units; unit++) /* a layer may have fewer experts than the widest */
        policy->info[EFS_POOL_M].experts += efs_unit_bytes(policy, unit, EFS_POOL_F) != 0;
    if (!rc) {
        policy_set_capacity(policy, config->capacity_bytes);
        rc = policy->order->open(policy);
    }
    if (rc) {
        efs_policy_free(policy);
        return rc;
    }
    *out = policy;
    return 0;
}

void efs_policy_free(struct efs_policy *policy)
{
    if (!policy)
        return;
    if (policy->state && policy->order->close)
        policy->order->close(policy);
    efs_tables_free(&policy->tables);
    free(policy);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void efs_policy_pin(struct efs_policy *policy, unsigned layer, unsigned expert)
{
    uint32_t unit = layer * policy->experts + expert;

    efs_policy_order_unit(policy, unit, false);
    policy->pins[unit]++;
}

void efs_policy_unpin(struct efs_policy *policy, unsigned layer, unsigned expert)
{
    uint32_t unit = layer * policy->experts + expert;

    assert(policy->pins[unit] > 0);
    policy->pins[unit]--;
    efs_policy_order_unit(policy, unit, true);
}

/* Whether all experts exist and are distinct. Uses frozen as a mark during the call. */
static bool policy_request_valid(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count)
{
    unsigned marked = 0;
    bool good = layer < policy->layers && count <= policy->experts;

    while (good && marked < count) {
        uint32_t unit = layer * policy->experts + expert[marked];

        good = expert[marked] < policy->experts && efs_unit_bytes(policy, unit, EFS_POOL_F) && !policy->frozen[unit];
        if (good) {
            policy->frozen[unit] = true;
            marked++;
        }
    }
    while (marked-- > 0)
        policy->frozen[layer * policy->experts + expert[marked]] = false;
    return good;
}

int efs_policy_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                       struct efs_placement *placements)
{
    if (!policy_request_valid(policy, layer, expert, count))
        return -EINVAL;
    policy->layer = layer;
    for (unsigned i = 0; i < count; i++) {
        uint32_t unit = layer * policy->experts + expert[i];
        uint8_t found = policy->pool[unit];

        placements[i] = (struct efs_placement){.expert = expert[i], .found = found, .target = found};
        efs_policy_pin(policy, layer, expert[i]);
        policy->info[found].hits++;
        policy->count[unit] += policy->count[unit] < UINT32_MAX;
    }
    policy->order->request(policy, layer, expert, count);
    policy->clock += count;
    return 0;
}

/* Sorts placements by falling worth, so that the most worthwhile are admitted first. */
static void policy_sort_by_worth(struct efs_policy *policy, unsigned layer, const struct efs_placement *placements,
                                 unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        double worth = policy->order->worth
                           ? policy->order->worth(policy, layer * policy->experts + placements[i].expert)
                           : -(double)i;
        unsigned low = 0, high = i;

        while (low < high) {
            unsigned middle = (low + high) / 2;

            if (policy->sorted_worth[middle] >= worth)
                low = middle + 1;
            else
                high = middle;
        }
        memmove(policy->sorted + low + 1, policy->sorted + low, (i - low) * sizeof(*policy->sorted));
        memmove(policy->sorted_worth + low + 1, policy->sorted_worth + low, (i - low) * sizeof(*policy->sorted_worth));
        policy->sorted[low] = i;
        policy->sorted_worth[low] = worth;
    }
}

/* The paper's drop after use: the unit ranks below all thresholds, and only this request pins it. */
static bool policy_is_to_drop(struct efs_policy *policy, uint32_t unit)
{
    if (!policy->tuning.published || !policy->order->entitled || policy->pool[unit] == EFS_POOL_M ||
        policy->pins[unit] > 1 || policy->user_pin[unit] != EFS_POOL_M)
        return false;
    return !policy->order->entitled(policy, unit, EFS_POOL_E); /* the threshold of the last pool is the largest */
}

static void policy_count_placement(struct efs_policy *policy, const struct efs_placement *placement)
{
    if (placement->target < placement->found)
        if (placement->found == EFS_POOL_M)
            policy->info[placement->target].admitted++;
        else
            policy->info[placement->target].promoted++;
    else if (placement->target > placement->found)
        policy->info[placement->found].dropped++;
    else if (placement->found == EFS_POOL_M)
        policy->info[EFS_POOL_M].admitted++;
}

void efs_policy_admit(struct efs_policy *policy, unsigned layer, struct efs_placement *placements, unsigned count,
                      const struct efs_move **moves, size_t *move_count)
{
    efs_policy_call_begin(policy);
    policy_sort_by_worth(policy, layer, placements, count);
    for (unsigned i = 0; i < count; i++) {
        struct efs_placement *placement = &placements[policy->sorted[i]];
        uint32_t unit = layer * policy->experts + placement->expert;

        placement->found = policy->pool[unit];
        placement->target = (uint8_t)efs_policy_promote(policy, unit);
        if (placement->target == placement->found && policy_is_to_drop(policy, unit))
            placement->target = EFS_POOL_M;
    }
    for (unsigned i = 0; i < count; i++) { /* room of dropped experts is available from the next call on */
        if (placements[i].target > placements[i].found)
            efs_policy_set_pool(policy, layer * policy->experts + placements[i].expert, EFS_POOL_M);
        policy_count_placement(policy, &placements[i]);
    }
    efs_policy_call_end(policy, moves, move_count);
}

/* ---- changes by the caller --------------------------------------------------------------------------------------- */

void efs_policy_user_pin(struct efs_policy *policy, unsigned layer, unsigned expert, enum efs_pool pool)
{
    uint32_t unit = layer * policy->experts + expert;

    efs_policy_order_unit(policy, unit, false);
    policy->user_pin[unit] = (uint8_t)pool;
    efs_policy_order_unit(policy, unit, true);
}

void efs_policy_set(struct efs_policy *policy, unsigned layer, unsigned expert, enum efs_pool pool)
{
    efs_policy_set_pool(policy, layer * policy->experts + expert, pool);
}

enum efs_pool efs_policy_keep(struct efs_policy *policy, unsigned layer, unsigned expert, const struct efs_move **moves,
                              size_t *move_count)
{
    uint32_t unit = layer * policy->experts + expert;
    enum efs_pool before = policy->pool[unit], pool;

    efs_policy_call_begin(policy);
    pool = efs_policy_promote(policy, unit);
    if (pool != policy->user_pin[unit] && pool != before) { /* only a worse pool than that of its pin has room */
        efs_policy_set_pool(policy, unit, before);
        pool = before;
    }
    efs_policy_call_end(policy, moves, move_count);
    return pool;
}

void efs_policy_resize(struct efs_policy *policy, const uint64_t capacity_bytes[EFS_POOLS],
                       const struct efs_move **moves, size_t *move_count)
{
    efs_policy_call_begin(policy);
    policy_set_capacity(policy, capacity_bytes);
    efs_policy_trim(policy);
    efs_policy_call_end(policy, moves, move_count);
}

void efs_policy_fit(struct efs_policy *policy, const struct efs_move **moves, size_t *move_count)
{
    efs_policy_call_begin(policy);
    efs_policy_trim(policy);
    efs_policy_call_end(policy, moves, move_count);
}

void efs_policy_seed(struct efs_policy *policy, unsigned layer, const uint32_t *counts, uint64_t passes)
{
    memcpy(policy->count + (size_t)layer * policy->experts, counts, policy->experts * sizeof(*counts));
    if (policy->order->seed)
        policy->order->seed(policy, layer, counts, passes);
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

enum efs_pool efs_policy_state(const struct efs_policy *policy, unsigned layer, unsigned expert)
{
    return policy->pool[layer * policy->experts + expert];
}

enum efs_pool efs_policy_user_pinned(const struct efs_policy *policy, unsigned layer, unsigned expert)
{
    return policy->user_pin[layer * policy->experts + expert];
}

uint32_t efs_policy_count(const struct efs_policy *policy, unsigned layer, unsigned expert)
{
    return policy->count[layer * policy->experts + expert];
}

void efs_policy_ranks(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                      uint32_t *ranks)
{
    const uint32_t *counts = policy->count + (size_t)layer * policy->experts;

    if (policy->order->ranks) {
        policy->order->ranks(policy, layer, expert, count, ranks);
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        uint32_t mine = counts[expert[i]];

        ranks[i] = 0;
        for (uint32_t other = 0; other < policy->experts; other++)
            ranks[i] += counts[other] > mine || (counts[other] == mine && other < expert[i]);
    }
}

unsigned efs_policy_rank(struct efs_policy *policy, unsigned layer, unsigned expert)
{
    uint32_t rank;

    efs_policy_ranks(policy, layer, &(uint32_t){expert}, 1, &rank);
    return rank;
}

double efs_policy_worth(struct efs_policy *policy, unsigned layer, unsigned expert)
{
    return policy->order->worth ? policy->order->worth(policy, layer * policy->experts + expert) : (double)NAN;
}

void efs_policy_pool(const struct efs_policy *policy, enum efs_pool pool, struct efs_policy_pool *info)
{
    *info = policy->info[pool];
    info->capacity_bytes = info->used_bytes = 0;
    for (unsigned domain = 0; pool != EFS_POOL_M && domain < policy->domains; domain++) {
        info->capacity_bytes += policy->capacity[domain][pool];
        info->used_bytes += policy->used[domain][pool];
    }
}
