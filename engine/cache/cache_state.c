/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_state.c - queries of the cache state, and its changes when components that the policy kept are lost, so that it
 * lists only components that are in memory or being loaded.
 */
#include "cache.h"
#include "expertfs-private.h"
#include "stats.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const char pool_names[] = "FCSEM"; /* by enum efs_pool */

/* The components of an extent that a pool keeps; 0 for F and M. */
static unsigned pool_components(enum efs_pool pool)
{
    static const uint8_t kept[] = {
        [EFS_POOL_C] = EFS_BOTH, [EFS_POOL_S] = EFS_COMPONENT_SM, [EFS_POOL_E] = EFS_COMPONENT_E, [EFS_POOL_M] = 0};
    return kept[pool];
}

enum efs_pool efs_cache_state_pool(char state)
{
    const char *at = memchr(pool_names, state, EFS_POOLS);
    return at ? (enum efs_pool)(at - pool_names) : EFS_POOL_M;
}

char efs_cache_state(const struct efs *fs, uint32_t expert)
{
    bool some;
    if (fs->full->at[expert].state == EFS_FULL_READY)
        return 'F';
    unsigned have = efs_extents_resident(fs, expert, &some);
    return have == EFS_BOTH ? 'C' : have == EFS_COMPONENT_SM ? 'S' : have == EFS_COMPONENT_E ? 'E' : some ? 'P' : 'M';
}

enum efs_pool efs_cache_target(const struct efs *fs, uint32_t expert)
{
    const struct efs_cache *r = fs->cache;
    return r->policy ? efs_policy_state(r->policy, r->expert[expert].layer, r->expert[expert].index) : EFS_POOL_M;
}

void efs_cache_info(struct efs *fs, uint32_t expert, struct efs_expert_info *info)
{
    static const char pins[] = "FC---";
    struct efs_cache *r = fs->cache;
    const struct efs_cache_expert *x = &r->expert[expert];
    info->state = efs_cache_state(fs, expert);
    info->kept = pool_names[efs_cache_target(fs, expert)];
    info->pin = '-';
    info->touches = x->touches;
    if (!r->policy)
        return;
    info->pin = pins[efs_policy_user_pinned(r->policy, x->layer, x->index)];
    info->rank = efs_policy_rank(r->policy, x->layer, x->index);
    info->count = efs_policy_count(r->policy, x->layer, x->index);
}

bool efs_cache_local_worth(struct efs *fs, double *worth)
{
    const struct efs_cache *r = fs->cache;
    for (uint32_t e = 0; r->local && e < fs->store->expert_count; e++) {
        const struct efs_cache_expert *x = &r->expert[e];
        bool pinned = efs_policy_user_pinned(r->policy, x->layer, x->index) != EFS_POOL_M;
        worth[e] = pinned ? (double)INFINITY : efs_policy_worth(r->local, x->layer, x->index);
    }
    return r->local_known;
}

errint_t efs_pool_info(struct efs *fs, char pool, struct efs_pool_info *info)
{
    const struct efs_cache *r = fs->cache;
    struct efs_policy_pool state = {0};
    enum efs_pool p = efs_cache_state_pool(pool);
    if (p == EFS_POOL_M && pool != 'M')
        return -EINVAL;
    if (!efs_is_this_process(fs))
        return -ECHILD;
    efs_lock(fs);
    if (r->policy)
        efs_policy_pool(r->policy, p, &state);
    *info = (struct efs_pool_info){.capacity_bytes = state.capacity_bytes,
                                   .used_bytes = state.used_bytes,
                                   .experts = state.experts,
                                   .hits = r->hits[p],
                                   .partial = r->partial[p],
                                   .admitted = state.admitted,
                                   .promoted = state.promoted,
                                   .demoted = state.demoted,
                                   .evicted = state.evicted,
                                   .saved_bytes = r->saved_bytes[p]};
    efs_unlock(fs);
    return 0;
}

const uint64_t *efs_cache_expert_bytes(const struct efs *fs, uint32_t expert)
{
    const struct efs_cache *r = fs->cache;
    return r->bytes[(size_t)r->expert[expert].layer * r->width + r->expert[expert].index];
}

/* ---- protection, losses ---- */

void efs_cache_protect(struct efs *fs, uint32_t expert, enum efs_pool pool)
{
    efs_extents_protect(fs, expert, pool_components(pool));
    efs_full_protect(fs, expert, pool == EFS_POOL_F);
}

/* Sets the policy's state of the expert to M, and makes all of its components evictable. */
static void cache_set_missing(struct efs *fs, uint32_t expert)
{
    const struct efs_cache_expert *x = &fs->cache->expert[expert];
    efs_policy_set(fs->cache->policy, x->layer, x->index, EFS_POOL_M);
    efs_cache_protect(fs, expert, EFS_POOL_M);
}

void efs_cache_lost(struct efs *fs, uint32_t expert)
{
    const struct efs_cache *r = fs->cache;
    if (expert >= fs->store->expert_count || !r->policy)
        return;
    enum efs_pool pool = efs_cache_target(fs, expert);
    if (pool != EFS_POOL_F && pool != EFS_POOL_M)
        cache_set_missing(fs, expert);
}

void efs_cache_lost_full(struct efs *fs, uint32_t expert)
{
    bool some;
    if (!fs->cache->policy)
        return;
    enum efs_pool pool = efs_cache_target(fs, expert);
    unsigned components = pool_components(pool);
    if (pool == EFS_POOL_F)
        cache_set_missing(fs, expert);
    else if (components && (efs_extents_resident(fs, expert, &some) & components) != components &&
             !efs_extents_loading(fs, expert))
        efs_cache_lost(fs, expert); /* its demotion cannot complete: the chunks are neither resident nor loading */
}
