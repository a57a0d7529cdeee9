/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_evict.c - updates the cache state when components that the policy kept are lost, so that it lists only
 * components that are in memory or being loaded.
 */
#include "cache.h"

#include "extent_internal.h"

/* Sets the policy's state of the expert to M, and makes all of its components evictable. */
static void cache_set_missing(struct efs *fs, uint32_t expert)
{
    const struct efs_cache_expert *x = &fs->cache->expert[expert];
    efs_policy_set(fs->cache->policy, x->layer, x->index, EFS_POOL_M);
    efs_extents_protect(fs, expert, 0);
    if (fs->options.full_pool)
        efs_full_protect(fs, expert, false);
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
    unsigned components = efs_pool_components(pool);
    if (pool == EFS_POOL_F)
        cache_set_missing(fs, expert);
    else if (components && (efs_extents_resident(fs, expert, &some) & components) != components &&
             !efs_extents_loading(fs, expert))
        efs_cache_lost(fs, expert); /* its demotion cannot complete: the chunks are neither resident nor loading */
}

/* ---- eviction ---- */

void efs_extent_evict(struct efs *fs, uint32_t extent, unsigned components)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    bool kept = (x->resident & x->protected & components) != 0;
    efs_extent_drop(fs, extent, components);
    efs_count(&fs->stats, kept_lost, kept);
    if (kept)
        efs_cache_lost(fs, fs->store->objects[x->object].group);
}

bool efs_full_evict_oldest(struct efs *fs, bool kept)
{
    const struct efs_lru *list = kept ? &fs->full->protected : &fs->full->evictable;
    for (uint32_t e = list->oldest; e != EFS_NONE; e = efs_lru_newer(list, e)) {
        if (fs->full->at[e].leases || fs->full->at[e].readers)
            continue;
        efs_full_evict(fs, e);
        efs_count(&fs->stats, evictions_f, 1);
        efs_cache_lost_full(fs, e);
        return true;
    }
    return false;
}
