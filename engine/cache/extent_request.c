/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_request.c - requests of extents, reservations, the FIFO of extents that wait for memory, read-ahead, prefetch.
 *
 * Only readers and loads of full experts wait in the FIFO. They drop their references after decoding, so what is in
 * flight becomes available to the next. When nothing is in flight and clients hold all memory, they read uncached.
 * Coded experts, whose chunks are referenced until a client drops them, are reserved as a whole.
 */
#include "extent_internal.h"
#include "stats.h"

#include <assert.h>
#include <errno.h>

static void load_change(struct efs *fs, struct efs_extent_load *load, enum efs_io_change change)
{
    atomic_store(&load->e.change, change);
    atomic_store(&load->sm.change, change);
    efs_defer_disk_changes(fs);
}

/* The extent is requested: if it is being loaded without waiters, its reads become demand. */
static void load_raise(struct efs *fs, uint32_t extent)
{
    struct efs_extent_load *load = fs->extents->at[extent].load;
    if (!load || load->why == EFS_LOAD_DEMAND)
        return;
    fs->extents->loads[load->why]--;
    fs->extents->loads[EFS_LOAD_DEMAND]++;
    load->why = EFS_LOAD_DEMAND;
    load_change(fs, load, EFS_IO_RAISE);
}

/* The extent is not loaded: its waiters get the error. */
static void extent_fail(struct efs *fs, uint32_t extent, errint_t error)
{
    struct efs_extent *x = &fs->extents->at[extent];
    x->state = EFS_EXTENT_IDLE;
    if (x->resident == 0)
        efs_extent_set_rank(fs, x, EFS_RANK_EVICTABLE);
    efs_extent_complete_waiters(fs, x, error);
}

bool efs_extent_request(struct efs *fs, uint32_t extent, enum efs_pace pace, struct efs_extent_waiter *waiter)
{
    struct efs_extent *x = &fs->extents->at[extent];
    struct efs_extent_load *load = waiter->load;
    bool complete = efs_extent_is_complete(x), referenced = waiter->referenced;
    efs_extent_accessed(fs, extent, pace);
    efs_extent_used(fs, x);
    waiter->extent = extent;
    waiter->referenced = false;
    waiter->load = NULL;
    waiter->error = 0;
    if (complete && fs->admission_starved && !referenced) {
        /* its memory may be needed: read uncached, so that the references on it end */
        efs_extent_complete_waiter(fs, waiter, -ENOMEM);
        return false;
    }
    if (complete) {
        if (!referenced)
            efs_extent_ref(fs, waiter);
        efs_extent_enlist(fs, extent);
        return true;
    }
    waiter->next = x->waiters;
    x->waiters = waiter;
    if (load) {
        if (load->was == EFS_EXTENT_QUEUED)
            efs_lru_remove(&fs->extents->waiting, extent);
        efs_extent_load_start(fs, load);
    } else if (x->state != EFS_EXTENT_IDLE) {
        load_raise(fs, extent);
    } else if (fs->closing) {
        extent_fail(fs, extent, -ECANCELED);
    } else if (efs_extents_wait(fs) || fs->admission_starved) {
        efs_extent_wait_for_memory(fs, extent);
    } else if (!efs_extent_load(fs, extent, EFS_LOAD_DEMAND, NULL)) {
        if (efs_extents_only_long_refs(fs)) /* nothing is in flight, and clients hold all memory: it is read uncached */
            extent_fail(fs, extent, -ENOMEM);
        else
            efs_extent_wait_for_memory(fs, extent);
    }
    return false;
}

bool efs_extent_may_read_shard(const struct efs *fs, uint32_t extent, uint64_t begin, size_t bytes)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    uint64_t shard_bytes = efs_object_shard_bytes(fs, x->object);
    return x->state == EFS_EXTENT_IDLE && !x->resident && x->shard_count >= 2 &&
           (begin + bytes - 1) / shard_bytes == begin / shard_bytes && !fs->closing;
}

/* ---- reservations ---- */

errint_t efs_extent_reserve(struct efs *fs, uint32_t extent, struct efs_extent_waiter *waiter)
{
    struct efs_extent *x = &fs->extents->at[extent];
    struct efs_extent_load *load = x->load;
    assert(waiter->long_term && !waiter->referenced && !waiter->load);
    if (efs_extent_is_complete(x)) {
        efs_extent_ref(fs, waiter);
        waiter->referenced = true;
        return 0;
    }
    if (x->state == EFS_EXTENT_LOADING) /* 0: it is being read, will be whole, and the load is not being cancelled */
        return load && atomic_load(&load->e.change) != EFS_IO_CANCEL && atomic_load(&load->sm.change) != EFS_IO_CANCEL
                   ? 0
                   : -EAGAIN;
    do
        waiter->load = efs_extent_load_prepare(fs, extent, EFS_LOAD_DEMAND);
    while (!waiter->load && efs_extents_only_long_refs(fs) && efs_cache_reclaim(fs, EFS_FOR_ADMISSION, 0) == 0);
    return waiter->load ? 0 : -EAGAIN;
}

void efs_extent_unreserve(struct efs *fs, struct efs_extent_waiter *waiter)
{
    if (waiter->referenced)
        efs_extent_unref(fs, waiter, false);
    if (waiter->load)
        efs_extent_load_abandon(fs, waiter->load);
    waiter->referenced = false;
    waiter->load = NULL;
}

/* ---- queue for memory ---- */

void efs_extents_retry(struct efs *fs)
{
    if (!efs_extents_wait(fs))
        return;
    for (uint32_t i;
         (i = efs_lru_oldest(&fs->extents->waiting)) != EFS_NONE && (fs->closing || !fs->admission_starved);) {
        bool loaded = !fs->closing && efs_extent_load(fs, i, EFS_LOAD_DEMAND, NULL);
        if (!loaded && !fs->closing && !efs_extents_only_long_refs(fs))
            break;
        efs_lru_remove(&fs->extents->waiting, i);
        if (!loaded) /* -ENOMEM: nothing is in flight, and clients hold all memory: the waiters read uncached */
            extent_fail(fs, i, fs->closing ? -ECANCELED : -ENOMEM);
    }
    efs_extents_set_wanted(fs);
}

/* ---- read-ahead ---- */

/* Starts read-ahead of an extent. Bytes read ahead and not used yet are limited to half of the memory for pools, so
 * that read-ahead does not evict itself. */
static bool extent_load_ahead(struct efs *fs, struct efs_extent *x, size_t bytes)
{
    if (efs_extents_wait(fs) || fs->admission_starved || fs->closing ||
        fs->extents->ahead_bytes + bytes > efs_account_available(&fs->account) / 2 ||
        !efs_extent_load(fs, (uint32_t)(x - fs->extents->at), EFS_LOAD_READAHEAD, NULL))
        return false;
    x->ahead_bytes = (uint32_t)bytes;
    fs->extents->ahead_bytes += bytes;
    efs_count(fs->stats, readahead_extents, 1);
    return true;
}

bool efs_extent_read_ahead_scan(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    size_t bytes = efs_extent_span(fs, x, efs_extent_missing(x));
    if (bytes == 0)
        return true;
    if (!efs_extents_scan_reserve(fs, bytes))
        return false;
    efs_extent_accessed(fs, extent, EFS_PACE_SCAN);
    bool started = extent_load_ahead(fs, x, bytes);
    if (!started && x->resident == 0)
        efs_extent_set_rank(fs, x, EFS_RANK_EVICTABLE);
    return started;
}

void efs_expert_read_ahead(struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        struct efs_extent *x = &fs->extents->at[i];
        if (efs_extent_missing(x))
            extent_load_ahead(fs, x, efs_extent_span(fs, x, efs_extent_missing(x)));
    }
}

/* ---- prefetch ---- */

uint64_t efs_extents_missing(const struct efs *fs, uint32_t expert)
{
    uint64_t bytes = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++)
        bytes += efs_extent_span(fs, &fs->extents->at[i], efs_extent_missing(&fs->extents->at[i]));
    return bytes;
}

uint32_t efs_extents_prefetch(struct efs *fs, uint32_t expert, efs_load_done_fn *done)
{
    uint32_t started = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        struct efs_extent *x = &fs->extents->at[i];
        if (!efs_extent_missing(x))
            continue;
        if (fs->closing || fs->admission_starved || !efs_extent_load(fs, i, EFS_LOAD_PREFETCH, done))
            break;
        efs_extent_set_rank(fs, x, EFS_RANK_PREFETCHED);
        started++;
    }
    efs_count(fs->stats, guessed_extents, started);
    return started;
}

void efs_extents_prefetch_raise(struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++)
        load_raise(fs, i);
}

void efs_extents_prefetch_cancel(struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        struct efs_extent_load *load = fs->extents->at[i].load;
        if (load && load->why == EFS_LOAD_PREFETCH)
            load_change(fs, load, EFS_IO_CANCEL);
    }
}

void efs_extents_prefetch_drop(struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        if (fs->extents->at[i].rank != EFS_RANK_PREFETCHED) /* was resident before, or was requested since */
            continue;
        efs_extent_set_rank(fs, &fs->extents->at[i], EFS_RANK_EVICTABLE);
        efs_extent_evict_first(fs, i);
    }
}
