/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_load.c - loads of extents: only the missing components are read. Memory, references and waiters, the end of a
 * load, its start; then what starts loads: requests, reservations, the FIFO of extents that wait for memory,
 * read-ahead, prefetch.
 *
 * States: IDLE -> (QUEUED: waits for memory) -> LOADING -> IDLE. An extent in IDLE has some, all or none of its
 * components; it has waiters only while it is not whole.
 *
 * Only readers and loads of full experts wait in the FIFO. They drop their references after decoding, so what is in
 * flight becomes available to the next. When nothing is in flight and clients hold all memory, they read uncached.
 * Coded experts, whose chunks are referenced until a client drops them, are reserved as a whole.
 */
#include "extent.h"
#include "stats.h"

#include "cache.h"
#include "container.h"
#include "fragment.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

bool efs_extent_alloc(struct efs *fs, uint32_t extent, unsigned components, enum efs_load_reason why)
{
    struct efs_extent *x = &fs->extents->at[extent];
    enum efs_extent_state was = (enum efs_extent_state)x->state;
    /* its resident components must not be evicted for the missing ones: while it is LOADING it is in no list, also when
     * evictions change the cache state */
    x->state = EFS_EXTENT_LOADING;
    efs_extent_delist(fs, extent);
    for (unsigned c = EFS_COMPONENT_E; c <= EFS_COMPONENT_SM; c++) {
        struct efs_block *block = c == EFS_COMPONENT_E ? &x->e : &x->sm;
        const struct efs_block *other = c == EFS_COMPONENT_E ? &x->sm : &x->e; /* on the same node */
        while (components & c && !block->data &&
               !efs_arena_alloc_on(&fs->arena, efs_arena_node_of(&fs->arena, other), efs_extent_alloc_bytes(fs, x, c),
                                   c == EFS_COMPONENT_SM, block)) {
            efs_extents_put_used_up(fs);
            if (efs_cache_reclaim(fs, why, 0) == 0)
                continue;
            efs_extent_free(fs, x, components);
            x->state = (uint8_t)was;
            efs_extent_enlist(fs, extent);
            return false;
        }
    }
    return true;
}

void efs_fragment_put(struct efs *fs, struct efs_fragment_key key, uint32_t extent, const void *page)
{
    struct efs_block block = {0};
    if (efs_fragments_add(fs, key, extent, page))
        return;
    bool grow = efs_fragments_may_grow(fs);
    efs_extents_put_used_up(fs);
    while (grow && !efs_arena_alloc(&fs->arena, EFS_FRAGMENT_SLAB, false, &block))
        grow = !efs_extents_wait(fs) && efs_cache_reclaim(fs, EFS_LOAD_PREFETCH, 0) == 0;
    if (efs_fragments_make_room(fs, &block))
        efs_fragments_add(fs, key, extent, page);
}

/* ---- references and waiters ---- */

/* Counts a reference that a client holds (1), or ends that (-1). */
static void extent_count_long_ref(struct efs *fs, const struct efs_extent *x, uint32_t by)
{
    const struct efs_block *blocks[] = {&x->e, &x->sm};
    fs->extents->long_refs += by;
    for (unsigned i = 0; i < 2; i++) {
        struct efs_segment *s = blocks[i]->data ? &fs->arena.segments[blocks[i]->segment] : NULL;
        if (!s)
            continue;
        s->long_refs += by;
        if (s->retiring && by == 1 && s->long_refs == 1)
            efs_account_charge(&fs->account, EFS_ACCOUNT_RETIRING_HELD, fs->arena.segment_bytes);
        if (s->retiring && by != 1 && s->long_refs == 0)
            efs_account_release(&fs->account, EFS_ACCOUNT_RETIRING_HELD, fs->arena.segment_bytes);
    }
}

/* Adds a reference for a waiter, or a caller that did not have to wait. */
static void extent_ref(struct efs *fs, const struct efs_extent_waiter *waiter)
{
    struct efs_extent *x = &fs->extents->at[waiter->extent];
    x->refs++;
    fs->extents->refs++;
    if (waiter->long_term)
        extent_count_long_ref(fs, x, 1);
}

/* Completes a waiter that was removed from the extent's list with the error, or with 0 and a reference. */
static void complete_waiter(struct efs *fs, struct efs_extent_waiter *w, errint_t error)
{
    w->error = error;
    if (error == 0)
        extent_ref(fs, w);
    if (error < 0 || !w->loaded || !w->loaded(fs, w))
        efs_defer_job(fs, &w->job, EFS_JOB_NORMAL);
}

static void complete_waiters(struct efs *fs, struct efs_extent *x, errint_t error)
{
    struct efs_extent_waiter *w = x->waiters, *next;
    for (x->waiters = NULL; w; w = next) {
        next = w->next;
        complete_waiter(fs, w, error);
    }
}

void efs_extent_unref(struct efs *fs, const struct efs_extent_waiter *waiter, bool used_up)
{
    struct efs_extent *x = &fs->extents->at[waiter->extent];
    if (used_up)
        efs_extent_evict_first(fs, waiter->extent);
    x->refs--;
    fs->extents->refs--;
    if (waiter->long_term)
        extent_count_long_ref(fs, x, -1u);
    if (x->refs == 0 || fs->extents->refs == fs->extents->long_refs)
        efs_extent_released(fs, waiter->extent);
}

void efs_extent_put(struct efs *fs, const struct efs_extent_waiter *waiter, size_t elsewhere_bytes)
{
    struct efs_extent *x = &fs->extents->at[waiter->extent];
    bool all = false;
    efs_lock(fs);
    if (elsewhere_bytes) {
        x->elsewhere_bytes += (uint32_t)elsewhere_bytes; /* a shared extent counts as long as its first object */
        all =
            x->elsewhere_bytes >= efs_extent_end(fs, waiter->extent, x->object) - efs_extent_begin(fs, waiter->extent);
        x->elsewhere_bytes = all ? 0 : x->elsewhere_bytes;
        x->elsewhere |= all;
    }
    efs_extent_unref(fs, waiter, all);
    efs_unlock(fs);
}

void efs_extents_put_used_up(struct efs *fs)
{
    struct efs_extent_waiter *next;
    for (struct efs_extent_waiter *w = atomic_exchange(&fs->extents->used_up, NULL); w; w = next) {
        next = w->next;
        efs_extent_unref(fs, w, true);
    }
}

void efs_extent_put_later(struct efs *fs, struct efs_extent_waiter *waiter)
{
    waiter->next = atomic_load(&fs->extents->used_up);
    while (!atomic_compare_exchange_weak(&fs->extents->used_up, &waiter->next, waiter))
        ;
    if (!atomic_load(&fs->extents->wanted)) /* a thread that sets it later finds the waiter in the list */
        return;
    efs_lock(fs);
    efs_extents_put_used_up(fs);
    efs_unlock(fs);
}

void efs_extents_set_wanted(struct efs *fs)
{
    bool wanted = efs_extents_wait(fs) || fs->items_waiting;
    atomic_store(&fs->extents->wanted, wanted);
    if (wanted)
        efs_extents_put_used_up(fs);
}

static void wait_for_memory(struct efs *fs, uint32_t extent)
{
    fs->extents->at[extent].state = EFS_EXTENT_QUEUED;
    efs_lru_insert(&fs->extents->waiting, extent, true);
    efs_extents_set_wanted(fs);
}

/* ---- the end of loads ---- */

static void load_put(struct efs *fs, struct efs_extent_load *load)
{
    load->next = fs->extents->free_loads;
    fs->extents->free_loads = load;
}

void efs_extent_loaded(struct efs *fs, uint32_t extent, unsigned components, errint_t error)
{
    struct efs_extent *x = &fs->extents->at[extent];
    bool kept = (components & x->protected) != 0;
    bool read_on = error == 0 || error == -EAGAIN || error == -ECANCELED;
    atomic_store(&x->checked, 0);
    if (error < 0) {
        efs_extent_used(fs, x);
        efs_extent_free(fs, x, components);
        if (x->resident == 0)
            efs_extent_set_rank(fs, x, EFS_RANK_EVICTABLE);
    } else {
        x->resident |= (uint8_t)components;
        fs->extents->ready_count += x->resident == x->required;
    }
    x->state = EFS_EXTENT_IDLE;
    efs_extent_enlist(fs, extent);
    if (x->waiters && read_on && !efs_extent_is_complete(x)) {
        /* a required component is missing: it is read when memory is available */
        wait_for_memory(fs, extent);
    } else {
        complete_waiters(fs, x, error);
        /* not for a cancelled load, nor where the extent is read again */
        if (error < 0 && error != -ECANCELED && kept)
            efs_cache_lost(fs, fs->store->objects[x->object].group);
    }
    efs_extent_released(fs, extent);
}

/* Lock held: ends a load and frees its struct. */
static void load_finish(struct efs *fs, struct efs_extent_load *load)
{
    errint_t error = load->error;
    fs->extents->loads[load->why]--;
    fs->extents->at[load->extent].load = NULL;
    efs_extent_loaded(fs, load->extent, load->components, error);
    if (load->done)
        load->done(fs, load->extent, error);
    load_put(fs, load);
}

/* On a worker, because the log callback may block. */
static void load_fail(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_extent_load *load = EFS_CONTAINER(job, struct efs_extent_load, failed);
    struct efs *fs = load->fs;
    (void)scratch;
    efs_log(fs, EFS_LOG_ERROR, "%s: read at offset %llu failed: %s", fs->store->path,
            (unsigned long long)(load->e.bytes ? load->e.offset : load->sm.offset), strerror(-load->error));
    efs_lock(fs);
    load_finish(fs, load);
    efs_unlock(fs);
    efs_in_flight_end(fs);
}

static void load_done(struct efs_extent_load *load)
{
    struct efs *fs = load->fs;
    if (load->error < 0 && load->error != -ECANCELED) {
        load->failed.run = load_fail;
        efs_workers_push(fs->workers, &load->failed, EFS_JOB_NORMAL);
        return;
    }
    EFS_QUEUE_PUSH(&fs->extents->completed, load);
}

void efs_extents_completed(void *arg)
{
    struct efs *fs = arg;
    struct efs_extent_load *load = fs->extents->completed.head, *next;
    uint32_t count = 0;
    if (!load)
        return;
    EFS_QUEUE_INIT(&fs->extents->completed);
    efs_lock(fs);
    for (; load; load = next, count++) {
        next = load->next;
        load_finish(fs, load);
    }
    efs_unlock_completion(fs);
    while (count-- > 0)
        efs_in_flight_end(fs);
}

static void load_read_done(struct efs_io *io, errint_t error)
{
    struct efs_extent_load *load = io->owner;
    if (error < 0 && error != -ECANCELED)
        load->error = error;
    else if (error < 0) { /* the error of a failed read takes precedence over -ECANCELED of the other one */
        errint_t none = 0;
        atomic_compare_exchange_strong(&load->error, &none, error);
    }
    if (atomic_fetch_sub(&load->pending, 1) == 1)
        load_done(load);
}

static void load_read(struct efs_extent_load *load, struct efs_io *io, uint64_t offset, size_t bytes,
                      const struct efs_block *block)
{
    *io = (struct efs_io){.offset = efs_page_down(offset),
                          .bytes = bytes,
                          .data = block->data,
                          .segment = block->segment,
                          .class = load->why == EFS_LOAD_DEMAND      ? EFS_IO_DEMAND
                                   : load->why == EFS_LOAD_READAHEAD ? EFS_IO_AHEAD
                                                                     : EFS_IO_IDLE,
                          .complete = load_read_done,
                          .owner = load};
    efs_defer_read(load->fs, io);
}

/* The first step of a load: a struct, and memory. NULL: none now. */
static struct efs_extent_load *load_prepare(struct efs *fs, uint32_t extent, enum efs_load_reason why)
{
    struct efs_extents *extents = fs->extents;
    const struct efs_extent *x = &extents->at[extent];
    unsigned components = x->required & ~(unsigned)x->resident;
    uint8_t was = x->state;
    struct efs_extent_load *load = extents->free_loads;
    if (load)
        extents->free_loads = load->next;
    else if (extents->loads_used < extents->loads_max)
        load = &extents->load_structs[extents->loads_used++];
    else
        return NULL; /* all are in flight, and the end of a load retries the queue for memory */
    if (!efs_extent_alloc(fs, extent, components, why)) {
        load_put(fs, load);
        return NULL;
    }
    *load = (struct efs_extent_load){.fs = fs,
                                     .extent = extent,
                                     .why = (uint8_t)why,
                                     .was = was,
                                     .components = (uint8_t)components,
                                     .pending = components == EFS_BOTH ? 2 : 1};
    return load;
}

/* The second step: defers the reads. */
static void load_start(struct efs *fs, struct efs_extent_load *load)
{
    struct efs_extent *x = &fs->extents->at[load->extent];
    enum efs_load_reason why = (enum efs_load_reason)load->why;
    if (load->components & EFS_COMPONENT_E)
        load_read(load, &load->e, efs_extent_first_shard(fs, x)->e_offset, efs_extent_span(fs, x, EFS_COMPONENT_E),
                  &x->e);
    if (load->components & EFS_COMPONENT_SM)
        load_read(load, &load->sm, efs_extent_first_shard(fs, x)->sm_offset, efs_extent_span(fs, x, EFS_COMPONENT_SM),
                  &x->sm);
    efs_in_flight_begin(fs);
    fs->extents->loads[why]++;
    x->load = load;
}

bool efs_extent_load(struct efs *fs, uint32_t extent, enum efs_load_reason why, efs_load_done_fn *done)
{
    struct efs_extent_load *load = load_prepare(fs, extent, why);
    if (!load)
        return false;
    load->done = done;
    load_start(fs, load);
    return true;
}

/* ---- requests ---- */

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
    complete_waiters(fs, x, error);
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
        complete_waiter(fs, waiter, -ENOMEM);
        return false;
    }
    if (complete) {
        if (!referenced)
            extent_ref(fs, waiter);
        efs_extent_enlist(fs, extent);
        return true;
    }
    waiter->next = x->waiters;
    x->waiters = waiter;
    if (load) {
        if (load->was == EFS_EXTENT_QUEUED)
            efs_lru_remove(&fs->extents->waiting, extent);
        load_start(fs, load);
    } else if (x->state != EFS_EXTENT_IDLE) {
        load_raise(fs, extent);
    } else if (fs->closing) {
        extent_fail(fs, extent, -ECANCELED);
    } else if (efs_extents_wait(fs) || fs->admission_starved) {
        wait_for_memory(fs, extent);
    } else if (!efs_extent_load(fs, extent, EFS_LOAD_DEMAND, NULL)) {
        if (efs_extents_only_long_refs(fs)) /* nothing is in flight, and clients hold all memory: it is read uncached */
            extent_fail(fs, extent, -ENOMEM);
        else
            wait_for_memory(fs, extent);
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
        extent_ref(fs, waiter);
        waiter->referenced = true;
        return 0;
    }
    if (x->state == EFS_EXTENT_LOADING) /* 0: it is being read, will be whole, and the load is not being cancelled */
        return load && atomic_load(&load->e.change) != EFS_IO_CANCEL && atomic_load(&load->sm.change) != EFS_IO_CANCEL
                   ? 0
                   : -EAGAIN;
    waiter->load = load_prepare(fs, extent, EFS_LOAD_DEMAND);
    return waiter->load ? 0 : -EAGAIN;
}

void efs_extent_unreserve(struct efs *fs, struct efs_extent_waiter *waiter)
{
    struct efs_extent_load *load = waiter->load;
    if (waiter->referenced)
        efs_extent_unref(fs, waiter, false);
    if (load) {
        struct efs_extent *x = &fs->extents->at[load->extent];
        efs_extent_free(fs, x, load->components);
        x->state = load->was;
        efs_extent_enlist(fs, load->extent);
        efs_extent_released(fs, load->extent);
        load_put(fs, load);
    }
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
