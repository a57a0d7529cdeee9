/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_evict.c - eviction, in the order of enum efs_victim.
 *
 * Extents loaded for scans are *scan extents*: they count in a quota, and are evicted for the streams' next extents
 * before all other memory, so that a scan takes no more than its read-ahead window. An extent is evicted when the
 * streams have advanced so far that the rest of it is not expected to be read: see STALE_READ and STALE_AHEAD. An
 * extent that another reader requests becomes an ordinary one. There are no scan extents while the chunk pool has room
 * for the whole store: it is then read from disk once.
 */
#include "extent_internal.h"
#include "stats.h"

#include "cache.h"
#include "fragment.h"

static const uint8_t list_of_rank[EFS_VICTIM_KINDS] = {
    [EFS_VICTIM_FIRST] = EFS_LIST_FIRST,           [EFS_VICTIM_STALE] = EFS_LIST_SCAN,
    [EFS_VICTIM_MANY_FRAGMENTS] = EFS_LIST_NONE,   [EFS_VICTIM_EVICTABLE] = EFS_LIST_EVICTABLE,
    [EFS_VICTIM_PREFETCHED] = EFS_LIST_PREFETCHED, [EFS_VICTIM_SCAN] = EFS_LIST_SCAN,
    [EFS_VICTIM_FRAGMENTS] = EFS_LIST_NONE,        [EFS_VICTIM_PROTECTED] = EFS_LIST_PROTECTED,
    [EFS_VICTIM_PINNED] = EFS_LIST_PROTECTED};

/* Bytes that all streams together read after the last read of a scan extent, or after its read-ahead, until it is
 * stale: */
#define STALE_READ 8u  /* 1/8 of a window for each stream, and another 1/8 */
#define STALE_AHEAD 4u /* not read yet: 4 windows for each stream */

static bool extent_is_stale(const struct efs *fs, const struct efs_extent *x)
{
    const struct efs_streams *s = &fs->extents->streams;
    uint64_t live = s->live ? s->live : 1;
    uint64_t limit = x->ahead_bytes ? STALE_AHEAD * live * s->window : (live + 1) * s->window / STALE_READ;
    return s->clock - x->scan_clock > limit;
}

/* Drops components of an extent that is listed and has no references. Updates the cache state if some were kept. */
static void extent_evict(struct efs *fs, uint32_t extent, unsigned components)
{
    struct efs_extent *x = &fs->extents->at[extent];
    bool kept = (x->resident & x->protected & components) != 0;
    efs_extent_used(fs, x);
    efs_extent_free(fs, x, components);
    fs->extents->ready_count -= x->resident == x->required;
    x->resident &= (uint8_t)~components;
    if (x->resident == 0) {
        x->discard = false;
        efs_extent_set_kind(fs, x, EFS_LIST_EVICTABLE);
    }
    efs_extent_enlist(fs, extent);
    efs_count(fs->stats, kept_lost, kept);
    if (kept)
        efs_cache_lost(fs, fs->store->objects[x->object].group);
}

/* ---- ranks ---- */

/* Whether an extent of the rank's list has this rank, or a lower one. */
static bool extent_has_rank(const struct efs *fs, uint32_t extent, enum efs_victim rank)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    switch (rank) {
    case EFS_VICTIM_STALE:
        return extent_is_stale(fs, x);
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
            extent_evict(fs, i, x->list == EFS_LIST_PROTECTED ? x->resident : efs_extent_evictable(x));
            efs_count(fs->stats, evictions_c, 1);
            efs_count(fs->stats, evictions_first, rank == EFS_VICTIM_FIRST);
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

void efs_extent_evict_first(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->list == EFS_LIST_NONE || x->list == EFS_LIST_PROTECTED)
        return;
    efs_extent_set_kind(fs, x, EFS_LIST_FIRST);
    efs_extent_enlist(fs, extent);
}

/* ---- scan extents ---- */

bool efs_extents_scan_reserve(struct efs *fs, uint64_t bytes)
{
    uint64_t quota = efs_streams_quota(&fs->extents->streams);
    while (fs->extents->scan_bytes + bytes > quota)
        if (efs_extents_evict(fs, EFS_VICTIM(STALE)) != EFS_EVICTED_ONE)
            return false;
    return true;
}

void efs_extent_accessed(struct efs *fs, uint32_t extent, enum efs_pace pace)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (pace == EFS_PACE_SCAN && x->resident == 0 && x->state == EFS_EXTENT_IDLE) {
        efs_extents_scan_reserve(fs, efs_extent_span(fs, x, x->required));
        efs_extent_set_kind(fs, x, EFS_LIST_SCAN);
    } else if (pace != EFS_PACE_SCAN || x->kind != EFS_LIST_SCAN) {
        efs_extent_set_kind(fs, x, EFS_LIST_EVICTABLE);
    }
    x->scan_clock = fs->extents->streams.clock;
}

/* ---- damaged extents, and retiring segments ---- */

static unsigned extent_in_retiring(const struct efs *fs, const struct efs_extent *x)
{
    return (x->e.data && fs->arena.segments[x->e.segment].retiring ? EFS_COMPONENT_E : 0u) |
           (x->sm.data && fs->arena.segments[x->sm.segment].retiring ? EFS_COMPONENT_SM : 0u);
}

void efs_extent_released(struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    efs_changed(fs, EFS_CHANGED_FLIGHT);
    if (x->refs != 0 || x->state == EFS_EXTENT_LOADING || x->resident == 0)
        return;
    unsigned components = x->discard ? x->resident : x->resident & extent_in_retiring(fs, x);
    if (components == 0)
        return;
    extent_evict(fs, extent, components);
}

void efs_extents_evict_retiring(struct efs *fs)
{
    efs_fragments_drop_retiring(fs);
    for (uint32_t i = 0; i < fs->extents->count; i++)
        efs_extent_released(fs, i);
}
