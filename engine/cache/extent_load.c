/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_load.c - loads extents: only the missing components are read.
 *
 * States: IDLE -> (QUEUED: waits for memory) -> LOADING -> IDLE. An extent in IDLE has some, all or none of its
 * components; it has waiters only while it is not whole.
 */
#include "extent_internal.h"

#include "cache.h"
#include "container.h"
#include "record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static bool extent_alloc_components(struct efs *fs, struct efs_extent *x, unsigned components)
{
    for (unsigned c = EFS_COMPONENT_E; c <= EFS_COMPONENT_SM; c++) {
        struct efs_block *block = c == EFS_COMPONENT_E ? &x->e : &x->sm;
        const struct efs_block *other = c == EFS_COMPONENT_E ? &x->sm : &x->e; /* on the same node */
        if (components & c && !block->data &&
            !efs_arena_alloc_on(&fs->arena, efs_arena_node_of(&fs->arena, other), efs_extent_alloc_bytes(fs, x, c),
                                c == EFS_COMPONENT_SM, block))
            return false;
    }
    return true;
}

bool efs_extents_reclaim(struct efs *fs, enum efs_load_reason why)
{
    const bool evicts = why != EFS_LOAD_WARM;
    efs_extents_put_used_up(fs);
    if (evicts && efs_extents_evict(fs, EFS_VICTIM(FIRST)) == EFS_EVICTED_ONE)
        return true;
    errint_t rc = fs->hooks->add_segment(fs, evicts);
    if (rc == -EAGAIN || rc == 0 || !evicts)
        return rc == 0;
    enum efs_evicted evicted =
        efs_extents_evict(fs, why == EFS_LOAD_PREFETCH ? EFS_VICTIMS_UNNEEDED : EFS_VICTIMS_EVICTABLE);
    if (evicted == EFS_EVICTED_NONE && why != EFS_LOAD_PREFETCH)
        evicted = efs_extents_evict(fs, EFS_VICTIMS_KEPT);
    return evicted == EFS_EVICTED_ONE;
}

errint_t efs_extent_alloc(struct efs *fs, uint32_t extent, unsigned components, enum efs_load_reason why)
{
    struct efs_extent *x = &fs->extents->at[extent];
    enum efs_extent_state was = (enum efs_extent_state)x->state;
    /* its resident components must not be evicted for the missing ones: while it is LOADING it is in no list, also when
     * evictions change the cache state */
    x->state = EFS_EXTENT_LOADING;
    efs_extent_delist(fs, extent);
    while (!extent_alloc_components(fs, x, components))
        if (!efs_extents_reclaim(fs, why)) {
            efs_extent_free(fs, x, components);
            bool others = fs->arena.used_bytes != 0 || fs->account.bytes[EFS_ACCOUNT_RETURNING] != 0 || fs->growing;
            x->state = (uint8_t)was;
            efs_extent_enlist(fs, extent);
            return others ? -EAGAIN : -ENOMEM;
        }
    return 0;
}

/* ---- the end of loads ---- */

/* NULL: all structs are in flight, and the end of a load retries the queue for memory. */
static struct efs_extent_load *load_get(struct efs *fs)
{
    struct efs_extents *extents = fs->extents;
    struct efs_extent_load *load = extents->free_loads;
    if (load)
        extents->free_loads = load->next;
    else if (extents->loads_used < extents->loads_max)
        load = &extents->load_structs[extents->loads_used++];
    return load;
}

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
            efs_extent_set_kind(fs, x, EFS_LIST_EVICTABLE);
    } else {
        x->resident |= (uint8_t)components;
        fs->extents->ready_count += x->resident == x->required;
    }
    x->state = EFS_EXTENT_IDLE;
    efs_extent_enlist(fs, extent);
    if (x->waiters && read_on && !efs_extent_is_complete(x)) {
        /* a required component is missing: it is read when memory is available */
        efs_extent_wait_for_memory(fs, extent);
    } else {
        efs_extent_complete_waiters(fs, x, error);
        efs_extent_released(fs, extent);
        /* not for a cancelled load, nor where the extent is read again */
        if (error < 0 && error != -ECANCELED && kept)
            efs_cache_lost(fs, fs->store->objects[x->object].group);
    }
    efs_extents_retry_waiting(fs);
    efs_retry(fs, EFS_RETRY_ADMIT); /* a request may wait for the end of a demotion */
    efs_retry(fs, EFS_RETRY_SEGMENTS);
    efs_retry(fs, EFS_RETRY_IDLE);
}

void efs_extent_record(struct efs *fs, enum efs_record_kind kind, uint32_t extent, uint32_t shard, uint64_t begin_ns,
                       uint64_t end_ns)
{
    uint32_t expert = fs->store->objects[fs->extents->at[extent].object].group;
    if (expert < fs->store->expert_count)
        efs_record(fs, kind, expert, extent - efs_expert_extent_first(fs, expert), shard, begin_ns, end_ns);
}

static void load_change(struct efs *fs, struct efs_extent_load *load, enum efs_io_change change)
{
    atomic_store(&load->e.change, change);
    atomic_store(&load->sm.change, change);
    efs_defer_disk_changes(fs);
}

void efs_extent_load_raise(struct efs *fs, uint32_t extent)
{
    struct efs_extent_load *load = fs->extents->at[extent].load;
    if (!load || load->why == EFS_LOAD_DEMAND)
        return;
    fs->extents->loads[load->why]--;
    fs->extents->loads[EFS_LOAD_DEMAND]++;
    load->why = EFS_LOAD_DEMAND;
    load_change(fs, load, EFS_IO_RAISE);
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
    bool cancelled = load->error == -ECANCELED;
    if (load->e.bytes && !cancelled)
        efs_extent_record(fs, EFS_RECORD_READ_E, load->extent, 0, load->e.begin_ns, load->e.end_ns);
    if (load->sm.bytes && !cancelled)
        efs_extent_record(fs, EFS_RECORD_READ_SM, load->extent, 0, load->sm.begin_ns, load->sm.end_ns);
    if (load->error < 0 && !cancelled) {
        load->failed.run = load_fail;
        efs_workers_push(fs->workers, &load->failed);
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

static void load_part_done(struct efs_extent_load *load, errint_t error)
{
    if (error < 0 && error != -ECANCELED)
        load->error = error;
    else if (error < 0) { /* the error of a failed read takes precedence over -ECANCELED of the other one */
        errint_t none = 0;
        atomic_compare_exchange_strong(&load->error, &none, error);
    }
    if (atomic_fetch_sub(&load->pending, 1) == 1)
        load_done(load);
}

static void load_e_done(struct efs_io *r, errint_t error)
{
    load_part_done(EFS_CONTAINER(r, struct efs_extent_load, e), error);
}

static void load_sm_done(struct efs_io *r, errint_t error)
{
    load_part_done(EFS_CONTAINER(r, struct efs_extent_load, sm), error);
}

static void load_read(struct efs_extent_load *load, struct efs_io *r, uint64_t offset, size_t bytes,
                      const struct efs_block *block)
{
    r->offset = offset;
    r->bytes = bytes;
    r->data = block->data;
    r->segment = block->segment;
    r->class = load->why == EFS_LOAD_DEMAND      ? EFS_IO_DEMAND
               : load->why == EFS_LOAD_READAHEAD ? EFS_IO_AHEAD
                                                 : EFS_IO_IDLE;
    efs_defer_read(load->fs, r);
}

errint_t efs_extent_load_prepare(struct efs *fs, uint32_t extent, enum efs_load_reason why,
                                 struct efs_extent_load **out)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    unsigned components = x->required & ~(unsigned)x->resident;
    uint8_t was = x->state;
    struct efs_extent_load *load = load_get(fs);
    if (!load)
        return -EAGAIN;
    errint_t rc = efs_extent_alloc(fs, extent, components, why);
    if (rc < 0) {
        load_put(fs, load);
        return rc;
    }
    *load = (struct efs_extent_load){.fs = fs,
                                     .extent = extent,
                                     .why = (uint8_t)why,
                                     .was = was,
                                     .components = (uint8_t)components,
                                     .pending = (components & EFS_COMPONENT_E ? 1 : 0) +
                                                (components & EFS_COMPONENT_SM ? 1 : 0),
                                     .e.complete = load_e_done,
                                     .sm.complete = load_sm_done};
    *out = load;
    return 0;
}

void efs_extent_load_start(struct efs *fs, struct efs_extent_load *load)
{
    struct efs_extent *x = &fs->extents->at[load->extent];
    enum efs_load_reason why = (enum efs_load_reason)load->why;
    if (load->components & EFS_COMPONENT_E)
        load_read(load, &load->e, efs_page_down(efs_extent_first_shard(fs, x)->e_offset),
                  efs_extent_span(fs, x, EFS_COMPONENT_E), &x->e);
    if (load->components & EFS_COMPONENT_SM)
        load_read(load, &load->sm, efs_page_down(efs_extent_first_shard(fs, x)->sm_offset),
                  efs_extent_span(fs, x, EFS_COMPONENT_SM), &x->sm);
    efs_in_flight_begin(fs);
    fs->extents->loads[why]++;
    x->load = load;
    efs_retry(fs, EFS_RETRY_SEGMENTS); /* an eviction for it may have emptied a retiring segment */
}

void efs_extent_load_abandon(struct efs *fs, struct efs_extent_load *load)
{
    struct efs_extent *x = &fs->extents->at[load->extent];
    efs_extent_free(fs, x, load->components);
    x->state = load->was;
    efs_extent_enlist(fs, load->extent);
    efs_extent_released(fs, load->extent);
    load_put(fs, load);
}

errint_t efs_extent_load(struct efs *fs, uint32_t extent, enum efs_load_reason why, efs_load_done_fn *done)
{
    struct efs_extent *x = &fs->extents->at[extent];
    struct efs_extent_load *load;
    errint_t rc = efs_extent_load_prepare(fs, extent, why, &load);
    if (rc == 0) {
        load->done = done;
        efs_extent_load_start(fs, load);
    } else if (rc != -EAGAIN && x->resident == 0) {
        efs_extent_set_kind(fs, x, EFS_LIST_EVICTABLE);
    }
    return rc;
}

bool efs_extent_is_being_read(const struct efs *fs, uint32_t extent)
{
    struct efs_extent_load *load = fs->extents->at[extent].load;
    return load && atomic_load(&load->e.change) != EFS_IO_CANCEL && atomic_load(&load->sm.change) != EFS_IO_CANCEL;
}

/* Starts read-ahead of an extent. Bytes read ahead and not used yet are limited to half of the memory for pools, so
 * that read-ahead does not evict itself. */
static bool extent_load_ahead(struct efs *fs, struct efs_extent *x, size_t bytes)
{
    if (efs_extents_wait(fs) || fs->admission_starved || fs->closing ||
        fs->extents->ahead_bytes + bytes > efs_account_available(&fs->account) / 2 ||
        efs_extent_load(fs, (uint32_t)(x - fs->extents->at), EFS_LOAD_READAHEAD, NULL) < 0)
        return false;
    x->ahead_bytes = (uint32_t)bytes;
    fs->extents->ahead_bytes += bytes;
    efs_count(&fs->stats, readahead_extents, 1);
    return true;
}

bool efs_extent_read_ahead_scan(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->state != EFS_EXTENT_IDLE || x->resident == x->required)
        return true;
    size_t bytes = efs_extent_span(fs, x, x->required & ~(unsigned)x->resident);
    if (!efs_extents_scan_reserve(fs, bytes))
        return false;
    efs_extent_accessed(fs, extent, EFS_PACE_SCAN);
    bool started = extent_load_ahead(fs, x, bytes);
    if (!started && x->resident == 0)
        efs_extent_set_kind(fs, x, EFS_LIST_EVICTABLE);
    return started;
}

void efs_group_read_ahead(struct efs *fs, uint32_t group)
{
    const struct efs_disk_group *g = &fs->store->groups[group];
    for (uint32_t i = fs->extents->object_first[g->object_first];
         i < fs->extents->object_first[g->object_first + g->object_count]; i++) {
        struct efs_extent *x = &fs->extents->at[i];
        if (x->state == EFS_EXTENT_IDLE && x->resident != x->required)
            extent_load_ahead(fs, x, efs_extent_span(fs, x, x->required & ~(unsigned)x->resident));
    }
}

/* ---- prefetch ---- */

uint64_t efs_extents_missing(const struct efs *fs, uint32_t expert)
{
    uint64_t bytes = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        if (x->state == EFS_EXTENT_IDLE)
            bytes += efs_extent_span(fs, x, x->required & ~(unsigned)x->resident);
    }
    return bytes;
}

uint32_t efs_extents_prefetch(struct efs *fs, uint32_t expert, efs_load_done_fn *done)
{
    uint32_t started = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        if (x->state != EFS_EXTENT_IDLE || x->resident == x->required)
            continue;
        if (fs->closing || fs->admission_starved || efs_extent_load(fs, i, EFS_LOAD_PREFETCH, done) < 0)
            break;
        efs_extent_set_kind(fs, &fs->extents->at[i], EFS_LIST_PREFETCHED);
        started++;
    }
    efs_count(&fs->stats, guessed_extents, started);
    return started;
}

void efs_extents_prefetch_raise(struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++)
        efs_extent_load_raise(fs, i);
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
        if (fs->extents->at[i].kind != EFS_LIST_PREFETCHED) /* was resident before, or was requested since */
            continue;
        efs_extent_set_kind(fs, &fs->extents->at[i], EFS_LIST_EVICTABLE);
        efs_extent_evict_first(fs, i);
    }
}
