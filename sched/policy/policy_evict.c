/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_evict.c - makes room in pools: chooses victims and their next pools, and orders the moves.
 *
 * A victim moves to the first lower pool that can be made from its state without the disk, to which its rank entitles
 * it, and that has or can make room; else it is evicted. Room is made in the lowest pool first, so that each move finds
 * its room free. An expert moves at most once in a call.
 */
#include "policy_internal.h"

#define MOST_VICTIMS 64 /* for one unit. A unit that needs more victims is not admitted */

void efs_policy_order_unit(struct efs_policy *policy, uint32_t unit, bool on)
{
    bool may = on && policy->pool[unit] != EFS_POOL_M && !policy->pins[unit] && policy->user_pin[unit] == EFS_POOL_M &&
               !policy->frozen[unit];

    if (may == (policy->evictable[unit] != EFS_NOT_EVICTABLE))
        return;
    if (may) {
        policy->evictable[unit] = policy->pool[unit];
        policy->order->insert(policy, unit);
    } else {
        policy->order->remove(policy, unit);
        policy->evictable[unit] = EFS_NOT_EVICTABLE;
    }
}

void efs_policy_set_pool(struct efs_policy *policy, uint32_t unit, enum efs_pool pool)
{
    unsigned domain = efs_unit_domain(policy, unit);
    enum efs_pool from = policy->pool[unit];

    efs_policy_order_unit(policy, unit, false);
    if (from != EFS_POOL_M)
        policy->used[domain][from] -= efs_unit_bytes(policy, unit, from);
    if (pool != EFS_POOL_M)
        policy->used[domain][pool] += efs_unit_bytes(policy, unit, pool);
    if (from == EFS_POOL_M && pool != EFS_POOL_M)
        policy->since[unit] = policy->clock;
    policy->info[from].experts--;
    policy->info[pool].experts++;
    policy->pool[unit] = (uint8_t)pool;
    efs_policy_order_unit(policy, unit, true);
}

void efs_policy_call_begin(struct efs_policy *policy)
{
    policy->move_count = 0;
}

void efs_policy_call_end(struct efs_policy *policy, const struct efs_move **moves, size_t *move_count)
{
    for (size_t i = 0; i < policy->move_count; i++) {
        uint32_t unit = policy->moves[i].layer * policy->experts + policy->moves[i].expert;

        policy->frozen[unit] = false;
        efs_policy_order_unit(policy, unit, true);
    }
    *moves = policy->moves;
    *move_count = policy->move_count;
}

/* Whether state `to` can be made from `from` by dropping, splitting and coding. */
static bool pool_reachable(const struct efs_policy *policy, enum efs_pool from, enum efs_pool to)
{
    switch (from) {
    case EFS_POOL_F:
        return to == EFS_POOL_S || policy->recode;
    case EFS_POOL_C:
        return true;
    default:
        return false;
    }
}

static bool pool_make_room(struct efs_policy *policy, uint32_t unit, enum efs_pool pool);

/* Moves a victim to a lower pool or to M. Its bytes are already subtracted from its pool. */
static void victim_demote(struct efs_policy *policy, uint32_t unit)
{
    enum efs_pool from = policy->pool[unit], to = EFS_POOL_M;
    unsigned domain = efs_unit_domain(policy, unit);

    for (enum efs_pool p = from + 1; p < EFS_POOL_M && to == EFS_POOL_M; p++)
        if (pool_reachable(policy, from, p) && (!policy->order->entitled || policy->order->entitled(policy, unit, p)) &&
            pool_make_room(policy, unit, p))
            to = p;
    policy->used[domain][from] += efs_unit_bytes(policy, unit, from); /* efs_policy_set_pool() subtracts them again */
    efs_policy_set_pool(policy, unit, to);
    policy->moves[policy->move_count++] = (struct efs_move){.layer = efs_unit_layer(policy, unit),
                                                            .expert = unit % policy->experts,
                                                            .from = (uint8_t)from,
                                                            .to = (uint8_t)to};
    if (to == EFS_POOL_M)
        policy->info[from].evicted++;
    else
        policy->info[from].demoted++;
}

/* Removes a victim from the candidates and the bytes of its pool; the next function undoes this. */
static void victim_remove(struct efs_policy *policy, uint32_t victim, enum efs_pool pool)
{
    efs_policy_order_unit(policy, victim, false);
    policy->used[efs_unit_domain(policy, victim)][pool] -= efs_unit_bytes(policy, victim, pool);
    policy->frozen[victim] = true;
}

static void victim_restore(struct efs_policy *policy, uint32_t victim, enum efs_pool pool)
{
    policy->used[efs_unit_domain(policy, victim)][pool] += efs_unit_bytes(policy, victim, pool);
    policy->frozen[victim] = false;
    efs_policy_order_unit(policy, victim, true);
}

/* Makes room for unit in a pool by moving victims that it beats. False: not possible, nothing has changed. */
static bool pool_make_room(struct efs_policy *policy, uint32_t unit, enum efs_pool pool)
{
    unsigned domain = efs_unit_domain(policy, unit), count = 0;
    uint64_t need = efs_unit_bytes(policy, unit, pool), capacity = policy->capacity[domain][pool];
    bool pinned = policy->user_pin[unit] != EFS_POOL_M; /* by the user: then unit beats every victim */
    uint32_t victims[MOST_VICTIMS];

    if (need > capacity)
        return false;
    while (policy->used[domain][pool] + need > capacity) {
        uint32_t victim = policy->order->lowest(policy, domain, pool);

        if (victim == EFS_NO_UNIT || count == MOST_VICTIMS ||
            (!pinned && policy->order->beats && !policy->order->beats(policy, unit, victim, pool))) {
            while (count-- > 0)
                victim_restore(policy, victims[count], pool);
            return false;
        }
        victim_remove(policy, victim, pool);
        victims[count++] = victim;
    }
    /* Reserve the room, so that demoted victims do not take it. */
    policy->used[domain][pool] += need;
    for (unsigned i = 0; i < count; i++)
        victim_demote(policy, victims[i]);
    policy->used[domain][pool] -= need;
    return true;
}

/* The best pool above `limit` that has or can make room for unit; else limit. */
static enum efs_pool unit_find_pool(struct efs_policy *policy, uint32_t unit, enum efs_pool limit)
{
    enum efs_pool pinned = policy->user_pin[unit];

    if (pinned < limit && pool_make_room(policy, unit, pinned))
        return pinned;
    if (pinned != EFS_POOL_M && pinned >= limit)
        return limit; /* already in that pool, or in a better one */
    for (enum efs_pool p = pinned == EFS_POOL_M ? EFS_POOL_F : pinned; p < limit; p++)
        if ((!policy->order->entitled || policy->order->entitled(policy, unit, p)) && pool_make_room(policy, unit, p))
            return p;
    return limit;
}

enum efs_pool efs_policy_promote(struct efs_policy *policy, uint32_t unit)
{
    enum efs_pool from = policy->pool[unit], to;
    uint64_t *leaves = from == EFS_POOL_M ? NULL : &policy->used[efs_unit_domain(policy, unit)][from];

    if (leaves) /* a victim may take the room that the unit leaves */
        *leaves -= efs_unit_bytes(policy, unit, from);
    to = unit_find_pool(policy, unit, from);
    if (leaves)
        *leaves += efs_unit_bytes(policy, unit, from);
    if (to != from)
        efs_policy_set_pool(policy, unit, to);
    return to;
}

void efs_policy_trim(struct efs_policy *policy)
{
    for (unsigned domain = 0; domain < policy->domains; domain++) {
        for (enum efs_pool p = EFS_POOL_M;
             p-- > EFS_POOL_F;) { /* lowest first, so that victims of higher pools find room */
            while (policy->used[domain][p] > policy->capacity[domain][p]) {
                uint32_t victim = policy->order->lowest(policy, domain, p);

                if (victim == EFS_NO_UNIT)
                    break;
                victim_remove(policy, victim, p);
                victim_demote(policy, victim);
            }
        }
    }
}

void efs_policy_set_thresholds(struct efs_policy *policy)
{
    for (unsigned l = 0; l < policy->layers; l++) {
        double tau = 0;

        for (unsigned p = 0; p < EFS_POOLS; p++) {
            double capacity =
                policy->domains == 1 ? (double)policy->capacity[0][p] / policy->layers : (double)policy->capacity[l][p];
            double sum = 0;
            unsigned there = 0;

            for (unsigned e = 0; e < policy->experts; e++) {
                uint64_t bytes = efs_unit_bytes(policy, l * policy->experts + e, p);

                sum += (double)bytes;
                there += bytes != 0;
            }
            tau += there ? capacity * there / sum : 0;
            policy->threshold[l][p] = tau;
        }
    }
}
