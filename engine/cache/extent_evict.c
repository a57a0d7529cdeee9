/* SPDX-License-Identifier: Apache-2.0 */
/* extent_evict.c - eviction, in the order of enum efs_victim. */
#include "extent_internal.h"

#include "cache.h"
#include "fragment.h"

static const uint8_t list_of_rank[EFS_VICTIM_KINDS] = {[EFS_VICTIM_FIRST] = EFS_LIST_FIRST,
                                                       [EFS_VICTIM_STALE] = EFS_LIST_SCAN,
                                                       [EFS_VICTIM_MANY_FRAGMENTS] = EFS_LIST_NONE,
                                                       [EFS_VICTIM_EVICTABLE] = EFS_LIST_EVICTABLE,
                                                       [EFS_VICTIM_PREFETCHED] = EFS_LIST_PREFETCHED,
                                                       [EFS_VICTIM_SCAN_READ] = EFS_LIST_SCAN,
                                                       [EFS_VICTIM_SCAN] = EFS_LIST_SCAN,
                                                       [EFS_VICTIM_FRAGMENTS] = EFS_LIST_NONE,
                                                       [EFS_VICTIM_PROTECTED] = EFS_LIST_PROTECTED,
                                                       [EFS_VICTIM_PINNED] = EFS_LIST_PROTECTED};

/* ---- scan extents ---- */

/* Distance, in windows, that each stream advances before an extent is stale: */
#define STALE_AHEAD 4u /* if it was read ahead and not read yet */
#define STALE_PART 1u  /* if it was read in part */

static uint64_t extent_raw_bytes(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    uint32_t object = x->object, last = x->shard_first + x->shard_count;
    uint64_t all = 0;
    if (efs_extent_is_shared(fs, x)) {
        for (; object < fs->store->object_count && fs->store->objects[object].shard_first < last; object++)
            all += fs->store->objects[object].bytes;
        return all;
    }
    uint64_t end = extent + 1 < fs->extents->object_first[object + 1] ? efs_extent_begin(fs, extent + 1)
                                                                      : fs->store->objects[object].bytes;
    return end - efs_extent_begin(fs, extent);
}

/* Whether the rest of a scan extent is still expected to be read. */
static bool extent_is_expected(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    if (!x->ahead_bytes && x->consumed_bytes >= extent_raw_bytes(fs, extent))
        return false;
    uint64_t windows =
        (x->ahead_bytes ? STALE_AHEAD : STALE_PART) * (fs->extents->streams.live ? fs->extents->streams.live : 1);
    return fs->extents->streams.clock - x->scan_clock <= windows * fs->extents->streams.window;
}

/* ---- ranks ---- */

/* Whether an extent of the rank's list has this rank, or a lower one. */
static bool extent_has_rank(const struct efs *fs, uint32_t extent, enum efs_victim rank)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    switch (rank) {
    case EFS_VICTIM_STALE:
        return !extent_is_expected(fs, extent);
    case EFS_VICTIM_SCAN_READ:
        return !x->ahead_bytes;
    case EFS_VICTIM_PROTECTED:
        return !efs_cache_pinned(fs, fs->store->objects[x->object].group);
    default:
        return true;
    }
}

static enum efs_evicted evict_rank(struct efs *fs, enum efs_victim rank)
{
    enum efs_evicted result = EFS_EVICTED_NONE;
    if (list_of_rank[rank] == EFS_LIST_NONE)
        return (rank == EFS_VICTIM_FRAGMENTS || efs_fragments_are_many(fs)) && efs_fragments_evict(fs) ? EFS_EVICTED_ONE
                                                                                                       : result;
    const struct efs_lru *list = &fs->extents->lists[list_of_rank[rank]];
    for (uint32_t i = list->oldest; i != EFS_NONE; i = efs_lru_newer(list, i)) {
        const struct efs_extent *x = &fs->extents->at[i];
        if (x->refs == 0 && extent_has_rank(fs, i, rank)) {
            efs_extent_evict(fs, i, x->list == EFS_LIST_PROTECTED ? x->resident : efs_extent_evictable(x));
            efs_count(&fs->stats, evictions_c, 1);
            return EFS_EVICTED_ONE;
        }
        result = EFS_EVICTED_IN_USE;
    }
    return result;
}

enum efs_evicted efs_extents_evict(struct efs *fs, unsigned ranks)
{
    enum efs_evicted result = EFS_EVICTED_NONE;
    for (unsigned rank = 0; rank < EFS_VICTIM_KINDS && result != EFS_EVICTED_ONE; rank++) {
        enum efs_evicted one = ranks & 1u << rank ? evict_rank(fs, rank) : EFS_EVICTED_NONE;
        result = one != EFS_EVICTED_NONE ? one : result;
    }
    return result;
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
    if (x->list == EFS_LIST_NONE || x->list == EFS_LIST_PROTECTED)
        return;
    efs_extent_set_scan(fs, x, false);
    x->evict_first = true;
    x->prefetched = false;
    efs_extent_enlist(fs, extent);
}

bool efs_extents_has_evict_first(const struct efs *fs)
{
    return fs->extents->lists[EFS_LIST_FIRST].oldest != EFS_NONE;
}

void efs_extent_evict_early(struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    if (x->list != EFS_LIST_EVICTABLE || x->refs != 0)
        return;
    efs_lru_remove(&fs->extents->lists[EFS_LIST_EVICTABLE], extent);
    efs_lru_insert(&fs->extents->lists[EFS_LIST_EVICTABLE], extent, false);
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
    for (unsigned list = 0; list < EFS_LIST_PROTECTED; list++)
        while (extent_drop_one_retiring(fs, &fs->extents->lists[list]))
            efs_retry(fs, EFS_RETRY_SEGMENTS);
}
