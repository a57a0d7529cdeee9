/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim.c - takes memory back, in one order (`order`); ARCHITECTURE.md has the same table.
 *
 * Extents loaded for scans are *scan extents*: they count in a quota, and are evicted for the streams' next extents
 * before all other memory, so that a scan takes no more than its read-ahead window. An extent is evicted when the
 * streams have advanced so far that the rest of it is not expected to be read: see STALE_READ and STALE_AHEAD. An
 * extent that another reader requests becomes an ordinary one. There are no scan extents while the chunk pool has room
 * for the whole store: it is then read from disk once.
 */
#include "extent.h"
#include "stats.h"

#include "cache.h"
#include "demote_internal.h"
#include "fragment.h"

#include <errno.h>

#define LOAD(why) (1u << EFS_LOAD_##why)
#define FOR(whom) (1u << EFS_FOR_##whom)
#define NEEDED (LOAD(DEMAND) | LOAD(READAHEAD) | FOR(ADMISSION))
#define FULL_POOL (FOR(CODED) | FOR(FILE) | FOR(BUDGET))

/* For whom each rank is taken. */
static const uint16_t order[EFS_RANKS] = {
    [EFS_RANK_USED_UP] = NEEDED | LOAD(PREFETCH),
    [EFS_RANK_FREE_FILES] = FOR(SEGMENT) | FULL_POOL,
    [EFS_RANK_SEGMENTS_ABOVE] = FOR(FILE) | FOR(BUDGET),
    [EFS_RANK_FULL] = FOR(SEGMENT) | FULL_POOL,
    [EFS_RANK_DEMOTIONS] = FOR(REQUEST) | FULL_POOL,
    [EFS_RANK_FULL_KEPT] = FULL_POOL,
    [EFS_RANK_SEGMENTS] = FOR(FILE) | FOR(BUDGET),
    [EFS_RANK_NEW_SEGMENT] = LOAD(DEMAND) | LOAD(READAHEAD) | LOAD(PREFETCH) | LOAD(WARM),
    [EFS_RANK_STALE] = NEEDED | LOAD(PREFETCH) | FOR(SCAN),
    [EFS_RANK_MANY_FRAGMENTS] = NEEDED,
    [EFS_RANK_EVICTABLE] = NEEDED | LOAD(PREFETCH),
    [EFS_RANK_PREFETCHED] = NEEDED,
    [EFS_RANK_SCAN] = NEEDED,
    [EFS_RANK_FRAGMENTS] = NEEDED,
    [EFS_RANK_PROTECTED] = NEEDED,
    [EFS_RANK_PINNED] = NEEDED,
};

/* ---- extents ---- */

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
        efs_extent_set_rank(fs, x, EFS_RANK_EVICTABLE);
    }
    efs_extent_enlist(fs, extent);
    efs_count(fs->stats, kept_lost, kept);
    if (kept)
        efs_cache_lost(fs, fs->store->objects[x->object].group);
}

/* Evicts the components of the oldest extent without references that are not protected; all of a protected one.
 * -EBUSY: all are referenced. */
static errint_t take_extent(struct efs *fs, enum efs_reclaim_rank rank)
{
    const struct efs_lru *list = &fs->extents->lists[rank == EFS_RANK_STALE    ? EFS_RANK_SCAN
                                                     : rank == EFS_RANK_PINNED ? EFS_RANK_PROTECTED
                                                                               : rank];
    errint_t none = -ENOMEM;
    for (uint32_t i = efs_lru_oldest(list); i != EFS_NONE; i = efs_lru_newer(list, i), none = -EBUSY) {
        const struct efs_extent *x = &fs->extents->at[i];
        if (x->refs != 0 || (rank == EFS_RANK_STALE && !extent_is_stale(fs, x)) ||
            (rank == EFS_RANK_PROTECTED && fs->cache->expert[fs->store->objects[x->object].group].pins > 0))
            continue;
        unsigned evictable = efs_extent_evictable(x);
        extent_evict(fs, i, evictable ? evictable : x->resident);
        efs_count(fs->stats, evictions_c, 1);
        efs_count(fs->stats, evictions_first, rank == EFS_RANK_USED_UP);
        return 0;
    }
    return none;
}

/* ---- full experts, segments ---- */

/* Without leases and readers. */
static errint_t take_full(struct efs *fs, bool kept)
{
    const struct efs_lru *list = &fs->full->lists[kept];
    uint32_t e = efs_lru_oldest(list);
    while (e != EFS_NONE && (fs->full->at[e].leases || fs->full->at[e].readers))
        e = efs_lru_newer(list, e);
    if (e == EFS_NONE)
        return -ENOMEM;
    efs_full_evict(fs, e);
    efs_count(fs->stats, evictions_f, 1);
    efs_cache_lost_full(fs, e);
    return 0;
}

/* Cancels the last queued demotion, or the one that is being encoded, so that its full form can be evicted. If neither
 * exists, the one that a worker continues stops early. */
static errint_t take_demotion(struct efs *fs)
{
    struct efs_demotion *d = fs->demotion;
    if (!d || (d->count == 0 && !d->working))
        return -ENOMEM;
    if (d->count == 0 && !d->encoding) {
        d->cancelled = true;
        return -ENOMEM;
    }
    if (d->count == 0)
        d->working = false;
    efs_demotion_unpin(fs, d->count ? d->queue[(d->head + --d->count) % fs->store->expert_count] : d->expert);
    efs_in_flight_end_locked(fs);
    return 0;
}

uint64_t efs_segments_needed(const struct efs *fs)
{
    uint64_t pinned = fs->account.bytes[EFS_ACCOUNT_CODED_PINNED];
    uint64_t coded = pinned * 2 / fs->arena.segment_bytes + (pinned != 0);
    return coded > fs->account.planned_segments ? coded : fs->account.planned_segments;
}

/* Retires the segment with the most free room while there are more than `least`, if possible one without long-term
 * references; one with such references only for a budget that was lowered. */
static errint_t take_segment(struct efs *fs, uint64_t least, unsigned whom)
{
    const struct efs_segment *segments = fs->arena.segments;
    uint64_t remaining = fs->arena.segment_count - fs->account.bytes[EFS_ACCOUNT_RETIRING] / fs->arena.segment_bytes;
    uint32_t best = EFS_NONE;
    for (uint32_t i = 0; i < fs->arena.segment_max && remaining > least; i++) {
        if (!segments[i].base || segments[i].retiring || (segments[i].long_refs && whom != EFS_FOR_BUDGET))
            continue;
        bool has = segments[i].long_refs, best_has = best != EFS_NONE && segments[best].long_refs;
        if (best == EFS_NONE || (has == best_has ? segments[i].free_granules > segments[best].free_granules : best_has))
            best = i;
    }
    if (best == EFS_NONE)
        return -ENOMEM;
    efs_account_charge(&fs->account, EFS_ACCOUNT_RETIRING, fs->arena.segment_bytes);
    if (segments[best].long_refs)
        efs_account_charge(&fs->account, EFS_ACCOUNT_RETIRING_HELD, fs->arena.segment_bytes);
    efs_arena_retire(&fs->arena, best);
    if (whom != EFS_FOR_BUDGET) /* which retires many: its caller evicts what is in them */
        efs_extents_evict_retiring(fs);
    return 0;
}

/* ---- the order ---- */

static errint_t take(struct efs *fs, enum efs_reclaim_rank rank, unsigned whom, uint64_t bytes)
{
    switch (rank) {
    case EFS_RANK_FREE_FILES:
        return efs_full_drop_free_memfiles(fs, bytes) ? 0 : -ENOMEM;
    case EFS_RANK_SEGMENTS_ABOVE:
        return take_segment(fs, efs_segments_needed(fs), whom);
    case EFS_RANK_FULL:
    case EFS_RANK_FULL_KEPT:
        return take_full(fs, rank == EFS_RANK_FULL_KEPT);
    case EFS_RANK_DEMOTIONS:
        return take_demotion(fs);
    case EFS_RANK_SEGMENTS:
        return take_segment(fs, fs->account.floor_segments, whom);
    case EFS_RANK_NEW_SEGMENT:
        return fs->hooks->add_segment(fs, whom != EFS_LOAD_WARM);
    case EFS_RANK_MANY_FRAGMENTS:
    case EFS_RANK_FRAGMENTS:
        return efs_fragments_evict(fs, rank == EFS_RANK_MANY_FRAGMENTS) ? 0 : -ENOMEM;
    default:
        return take_extent(fs, rank);
    }
}

errint_t efs_cache_reclaim(struct efs *fs, unsigned whom, uint64_t bytes)
{
    bool in_use = false;
    for (enum efs_reclaim_rank rank = 0; rank < EFS_RANKS; rank++) {
        if (rank == EFS_RANK_PROTECTED && in_use && !efs_extents_only_long_refs(fs))
            break;
        errint_t rc = order[rank] & 1u << whom ? take(fs, rank, whom, bytes) : -ENOMEM;
        if (rc == 0 || rc == -EAGAIN)
            return rc;
        in_use |= rc == -EBUSY;
    }
    return -ENOMEM;
}

void efs_extent_evict_first(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->link.newer == EFS_NONE || !efs_extent_evictable(x))
        return;
    efs_extent_set_rank(fs, x, EFS_RANK_USED_UP);
    efs_extent_enlist(fs, extent);
}

/* ---- scan extents ---- */

bool efs_extents_scan_reserve(struct efs *fs, uint64_t bytes)
{
    uint64_t quota = efs_streams_quota(&fs->extents->streams);
    while (fs->extents->scan_bytes + bytes > quota)
        if (efs_cache_reclaim(fs, EFS_FOR_SCAN, 0) < 0)
            return false;
    return true;
}

void efs_extent_accessed(struct efs *fs, uint32_t extent, enum efs_pace pace)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (pace == EFS_PACE_SCAN && x->resident == 0 && x->state == EFS_EXTENT_IDLE) {
        efs_extents_scan_reserve(fs, efs_extent_span(fs, x, x->required));
        efs_extent_set_rank(fs, x, EFS_RANK_SCAN);
    } else if (pace != EFS_PACE_SCAN || x->rank != EFS_RANK_SCAN) {
        efs_extent_set_rank(fs, x, EFS_RANK_EVICTABLE);
    }
    x->scan_clock = fs->extents->streams.clock;
}

/* ---- damaged extents, and retiring segments ---- */

static void extent_drop(struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    const struct efs_segment *segments = fs->arena.segments;
    if (x->refs != 0 || x->state == EFS_EXTENT_LOADING)
        return;
    unsigned components = x->discard ? EFS_BOTH : 0;
    components |= x->e.data && segments[x->e.segment].retiring ? EFS_COMPONENT_E : 0u;
    components |= x->sm.data && segments[x->sm.segment].retiring ? EFS_COMPONENT_SM : 0u;
    if (components & x->resident)
        extent_evict(fs, extent, components & x->resident);
}

void efs_extent_released(struct efs *fs, uint32_t extent)
{
    efs_changed(fs, EFS_CHANGED_FLIGHT);
    extent_drop(fs, extent);
}

void efs_extents_evict_retiring(struct efs *fs)
{
    efs_fragments_drop_retiring(fs);
    for (uint32_t i = 0; i < fs->extents->count; i++)
        extent_drop(fs, i);
}
