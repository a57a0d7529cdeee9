/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_evict.c - eviction. Evictable components stay until their memory is needed, and are evicted oldest first,
 * except: extents that streams have finished (extent_scan.c) before all other extents, prefetched ones whose layer has
 * not been requested (extent.prefetched) after them.
 */
#include "extent_internal.h"

#include "cache.h"
#include "fragment.h"

static enum efs_evicted extents_evict_evictable(struct efs *fs, bool only_evict_first, bool prefetched)
{
    enum efs_evicted result = EFS_EVICTED_NONE;
    for (uint32_t i = fs->extents->evictable.oldest; i != EFS_NONE; i = efs_lru_newer(&fs->extents->evictable, i)) {
        if (only_evict_first && !fs->extents->at[i].evict_first)
            return EFS_EVICTED_NONE;
        if (fs->extents->at[i].refs == 0 && fs->extents->at[i].prefetched == prefetched) {
            efs_extent_drop(fs, i, efs_extent_evictable(&fs->extents->at[i]));
            efs_count(&fs->stats, evictions_c, 1);
            return EFS_EVICTED_ONE;
        }
        result = EFS_EVICTED_IN_USE;
    }
    return result;
}

/* Order: stale scan extents; evictable extents, prefetched ones last; scan extents that were read in part; all scan
 * extents. */
enum efs_evicted efs_extents_evict(struct efs *fs, bool only_evict_first)
{
    if (only_evict_first)
        return extents_evict_evictable(fs, true, false);
    enum efs_evicted passed = efs_extents_evict_scan(fs, EFS_SCAN_STALE), evictable;
    if (passed == EFS_EVICTED_ONE)
        return passed;
    evictable = extents_evict_evictable(fs, false, false);
    if (evictable == EFS_EVICTED_IN_USE)
        evictable = extents_evict_evictable(fs, false, true);
    if (evictable == EFS_EVICTED_ONE)
        return evictable;
    enum efs_evicted ahead = efs_extents_evict_scan(fs, EFS_SCAN_READ);
    if (ahead != EFS_EVICTED_ONE)
        ahead = efs_extents_evict_scan(fs, EFS_SCAN_ANY);
    return ahead != EFS_EVICTED_NONE ? ahead : evictable != EFS_EVICTED_NONE ? evictable : passed;
}

bool efs_extents_evict_unneeded(struct efs *fs)
{
    return efs_extents_evict_scan(fs, EFS_SCAN_STALE) == EFS_EVICTED_ONE ||
           extents_evict_evictable(fs, false, false) == EFS_EVICTED_ONE;
}

/* Extents of experts that a request or lease pins are evicted only if there is no other kept extent without references.
 */
bool efs_extents_evict_protected(struct efs *fs)
{
    for (unsigned pinned = 0; pinned < 2; pinned++)
        for (uint32_t i = fs->extents->protected.oldest; i != EFS_NONE; i = efs_lru_newer(&fs->extents->protected, i)) {
            const struct efs_extent *x = &fs->extents->at[i];
            if (x->refs == 0 && (pinned || !efs_cache_pinned(fs, fs->store->objects[x->object].group))) {
                efs_extent_evict(fs, i, x->resident);
                efs_count(&fs->stats, evictions_c, 1);
                return true;
            }
        }
    return false;
}

void efs_extents_evict_all(struct efs *fs)
{
    fs->extents->reclaiming = true;
    for (uint32_t i = 0; i < fs->extents->count; i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        if (x->refs == 0 && x->state == EFS_EXTENT_IDLE && x->resident)
            efs_extent_evict(fs, i, x->resident);
    }
    while (efs_fragments_evict(fs)) {
    }
    fs->extents->reclaiming = false;
    efs_retry(fs, EFS_RETRY_SEGMENTS);
}

void efs_extent_evict_first(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->list == EFS_LIST_EVICTABLE || x->list == EFS_LIST_SCAN) {
        efs_extent_set_scan(fs, x, false);
        x->evict_first = true;
        x->prefetched = false;
        efs_extent_enlist(fs, extent);
    }
}

bool efs_extents_has_evict_first(const struct efs *fs)
{
    uint32_t oldest = fs->extents->evictable.oldest;
    return oldest != EFS_NONE && fs->extents->at[oldest].evict_first;
}

void efs_extent_evict_early(struct efs *fs, uint32_t extent)
{
    struct efs_lru *evictable = &fs->extents->evictable;
    const struct efs_extent *x = &fs->extents->at[extent];
    uint32_t behind = EFS_NONE;
    if (x->list != EFS_LIST_EVICTABLE || x->refs != 0 || x->evict_first)
        return;
    efs_lru_remove(evictable, extent);
    for (uint32_t i = evictable->oldest; i != EFS_NONE && fs->extents->at[i].evict_first;
         i = efs_lru_newer(evictable, i))
        behind = i;
    if (behind == EFS_NONE)
        efs_lru_insert(evictable, extent, false);
    else
        efs_lru_insert_newer(evictable, extent, behind);
}

/* ---- retiring segments ---- */

unsigned efs_extent_in_retiring(const struct efs *fs, const struct efs_extent *x)
{
    return (x->e.data && fs->arena.segments[x->e.segment].retiring ? EFS_COMPONENT_E : 0u) |
           (x->sm.data && fs->arena.segments[x->sm.segment].retiring ? EFS_COMPONENT_SM : 0u);
}

void efs_extent_released(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->refs != 0 || x->state == EFS_EXTENT_LOADING || x->resident == 0)
        return;
    unsigned components = x->resident & efs_extent_in_retiring(fs, x);
    if (x->discard)
        efs_extent_evict(fs, extent, x->resident);
    else if (components)
        efs_retry(fs, EFS_RETRY_MOVE);
}

/* Drops the components of one extent. The drop changes the list, so each search restarts at its oldest extent; a
 * segment has few extents. */
static bool extent_drop_one_retiring(struct efs *fs, const struct efs_lru *list)
{
    for (uint32_t i = list->oldest; i != EFS_NONE; i = efs_lru_newer(list, i)) {
        const struct efs_extent *x = &fs->extents->at[i];
        unsigned components = x->refs == 0 ? efs_extent_in_retiring(fs, x) & efs_extent_evictable(x) : 0;
        if (components) {
            efs_extent_drop(fs, i, components);
            return true;
        }
    }
    return false;
}

void efs_extents_drop_retiring(struct efs *fs)
{
    efs_fragments_drop_retiring(fs);
    while (extent_drop_one_retiring(fs, &fs->extents->scan) || extent_drop_one_retiring(fs, &fs->extents->evictable))
        efs_retry(fs, EFS_RETRY_SEGMENTS);
}
