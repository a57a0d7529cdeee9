/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_load.c - loads extents: only the missing components are read.
 *
 * States: REST -> (NO_MEMORY: waits for memory) -> LOADING -> REST. An extent in REST has some, all or none of its
 * components; it has waiters only while it is not whole.
 */
#include "extent_internal.h"

#include "container.h"
#include "record.h"
#include "cache.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static bool extent_alloc_component(struct efs *fs, struct efs_extent *x, unsigned component)
{
    struct efs_block *block = component == EFS_COMPONENT_E ? &x->e : &x->sm;
    const struct efs_block *other = component == EFS_COMPONENT_E ? &x->sm : &x->e; /* on the same node */
    return block->data || efs_arena_alloc_on(&fs->arena, efs_arena_node_of(&fs->arena, other),
                                             efs_extent_room(fs, x, component), component == EFS_COMPONENT_SM, block);
}

static bool extents_give_way(struct efs *fs, enum efs_load why)
{
    if (efs_extents_evict(fs, true) == EFS_EVICTED_ONE)
        return true;
    errint_t rc = fs->hooks->add_segment(fs);
    if (rc == -EAGAIN || rc == 0)
        return rc == 0;
    if (why == EFS_LOAD_GUESS)
        return efs_extents_evict_idle(fs);
    enum efs_evicted evicted = efs_extents_evict(fs, false);
    if (evicted == EFS_EVICTED_NONE)
        return efs_extents_evict_protected(fs);
    return evicted == EFS_EVICTED_ONE;
}

/* The policy is told what has gone (efs_policy_set), and decides nothing meanwhile. */
bool efs_extents_more_memory(struct efs *fs, enum efs_load why)
{
    assert(!fs->extents->giving_way);
    fs->extents->giving_way = true;
    bool more = extents_give_way(fs, why);
    fs->extents->giving_way = false;
    return more;
}

bool efs_extents_kept_give_way(struct efs *fs)
{
    assert(!fs->extents->giving_way);
    fs->extents->giving_way = true;
    bool more = efs_extents_evict_protected(fs);
    fs->extents->giving_way = false;
    return more;
}

static bool extent_alloc_components(struct efs *fs, struct efs_extent *x, unsigned components)
{
    return (!(components & EFS_COMPONENT_E) || extent_alloc_component(fs, x, EFS_COMPONENT_E)) &&
           (!(components & EFS_COMPONENT_SM) || extent_alloc_component(fs, x, EFS_COMPONENT_SM));
}

static void extent_free_components(struct efs *fs, struct efs_extent *x, unsigned components)
{
    if (components & EFS_COMPONENT_E)
        efs_arena_free(&fs->arena, &x->e);
    if (components & EFS_COMPONENT_SM)
        efs_arena_free(&fs->arena, &x->sm);
}

static errint_t extent_place(struct efs *fs, uint32_t extent, unsigned components, enum efs_load why)
{
    struct efs_extent *x = &fs->extents->at[extent];
    enum efs_extent_state was = (enum efs_extent_state)x->state;
    /* what it has already must not be evicted for the rest: it is in no list while it is LOADING, whatever the cache
     * state is told of those who go for it */
    x->state = EFS_EXTENT_LOADING;
    efs_extent_delist(fs, extent);
    while (!extent_alloc_components(fs, x, components))
        if (!efs_extents_more_memory(fs, why)) {
            extent_free_components(fs, x, components);
            bool others = fs->arena.used_bytes != 0 || fs->account.freeing_bytes != 0 || fs->deferred.supply;
            x->state = (uint8_t)was;
            efs_extent_enlist(fs, extent);
            return others ? -EAGAIN : -ENOMEM;
        }
    return 0;
}

errint_t efs_extent_place(struct efs *fs, uint32_t extent, unsigned components)
{
    return extent_place(fs, extent, components, EFS_LOAD_WANTED);
}

/* The same in memory that is empty: nothing goes for it. */
static errint_t extent_place_in_empty(struct efs *fs, uint32_t extent, unsigned components)
{
    struct efs_extent *x = &fs->extents->at[extent];
    while (!extent_alloc_components(fs, x, components))
        if (!fs->hooks->has_segment(fs) || fs->hooks->add_segment(fs) < 0) {
            extent_free_components(fs, x, components);
            return -EAGAIN;
        }
    x->state = EFS_EXTENT_LOADING;
    efs_extent_delist(fs, extent);
    return 0;
}

/* ---- reading ---- */

void efs_extent_loaded(struct efs *fs, uint32_t extent, unsigned components, errint_t error)
{
    struct efs_extent *x = &fs->extents->at[extent];
    uint32_t expert = fs->store->objects[x->object].group;
    bool kept = (components & x->keep) != 0;
    atomic_store(&x->checked, 0);
    if (error < 0) {
        efs_extent_used(fs, x);
        extent_free_components(fs, x, components);
        efs_extent_set_passing(fs, x, x->passing_bytes && x->have);
    } else {
        x->have |= (uint8_t)components;
        fs->extents->ready_count += x->have == x->needs;
    }
    efs_extent_rests(fs, extent, error);
    /* one that waits is read again, and what was cancelled is kept because somebody has asked for it since, and comes
     */
    if (error < 0 && error != -ECANCELED && kept && x->state != EFS_EXTENT_NO_MEMORY)
        efs_cache_lost(fs, expert);
    efs_again(fs, EFS_AGAIN_REST);
}

void efs_extent_rests(struct efs *fs, uint32_t extent, errint_t error)
{
    struct efs_extent *x = &fs->extents->at[extent];
    x->state = EFS_EXTENT_REST;
    efs_extent_enlist(fs, extent);
    bool read_on = error == 0 || error == -EAGAIN || error == -ECANCELED;
    if (x->waiters && read_on && !efs_extent_is_whole(x)) {
        /* part of what is wanted is not there yet: read it as soon as there is room */
        efs_extent_wait_for_memory(fs, extent);
    } else {
        efs_extent_tell_waiters(fs, x, error);
        efs_extent_released(fs, extent);
    }
    efs_again(fs, EFS_AGAIN_EXTENTS);
    efs_again(fs, EFS_AGAIN_SEGMENTS);
}

void efs_extent_record(struct efs *fs, enum efs_record_kind kind, uint32_t extent, uint32_t shard, uint64_t begin_ns,
                       uint64_t end_ns)
{
    uint32_t expert = fs->store->objects[fs->extents->at[extent].object].group;
    if (expert < fs->store->expert_count)
        efs_record(fs, kind, expert, extent - efs_expert_extent_first(fs, expert), shard, begin_ns, end_ns);
}

/* Somebody has come for what is being loaded for nobody: its reads do not wait behind others any more. */
static void load_raise(struct efs *fs, struct efs_extent_load *load)
{
    fs->extents->at[load->extent].unwanted = false;
    fs->extents->loads[load->why]--;
    fs->extents->loads[EFS_LOAD_WANTED]++;
    load->why = EFS_LOAD_WANTED;
    atomic_store(&load->e.change, EFS_DISK_RAISE);
    atomic_store(&load->sm.change, EFS_DISK_RAISE);
    efs_defer_look(fs);
}

/* The load of an extent that nobody waits for. NULL: it is wanted, or not read. */
static struct efs_extent_load *load_unwanted_of(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    return x->unwanted ? x->load : NULL;
}

void efs_extent_load_raise(struct efs *fs, uint32_t extent)
{
    struct efs_extent_load *load = load_unwanted_of(fs, extent);
    if (load)
        load_raise(fs, load);
}

/* Lock held: the last of a load. */
static void load_finish(struct efs *fs, struct efs_extent_load *load)
{
    errint_t error = load->error;
    fs->extents->loads[load->why]--;
    fs->extents->at[load->extent].unwanted = false;
    efs_extent_loaded(fs, load->extent, load->components, error);
    if (load->guessed)
        fs->hooks->guessed(fs, fs->store->objects[fs->extents->at[load->extent].object].group, error);
    if (load->why == EFS_LOAD_WARM)
        fs->hooks->warmed(fs, load->extent, error);
    efs_extent_load_give(fs, load);
}

/* On a worker, since who is told of errors may block. */
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
    efs_active_end(fs);
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
    if (fs->extents->ended)
        fs->extents->ended_last->next_ended = load;
    else
        fs->extents->ended = load;
    fs->extents->ended_last = load;
}

void efs_extents_ended(void *arg)
{
    struct efs *fs = arg;
    uint32_t count = 0;
    if (!fs->extents->ended)
        return;
    efs_lock_completion(fs);
    for (struct efs_extent_load *load; (load = fs->extents->ended); count++) {
        fs->extents->ended = load->next_ended;
        load_finish(fs, load);
    }
    efs_unlock_completion(fs);
    while (count-- > 0)
        efs_active_end(fs);
}

static void load_part_done(struct efs_extent_load *load, errint_t error)
{
    if (error < 0 && error != -ECANCELED)
        load->error = error;
    else if (error < 0) { /* a failed read is told, also if the other one was cancelled */
        errint_t none = 0;
        atomic_compare_exchange_strong(&load->error, &none, error);
    }
    if (atomic_fetch_sub(&load->pending, 1) == 1)
        load_done(load);
}

static void load_e_done(struct efs_disk_request *r, errint_t error)
{
    load_part_done(EFS_CONTAINER(r, struct efs_extent_load, e), error);
}

static void load_sm_done(struct efs_disk_request *r, errint_t error)
{
    load_part_done(EFS_CONTAINER(r, struct efs_extent_load, sm), error);
}

static void load_read(struct efs_extent_load *load, struct efs_disk_request *r, uint64_t offset, size_t bytes,
                      const struct efs_block *block)
{
    r->offset = offset;
    r->bytes = bytes;
    r->data = block->data;
    r->segment = block->segment;
    r->ahead = load->why != EFS_LOAD_WANTED;
    r->spare_time = load->why == EFS_LOAD_WARM || load->why == EFS_LOAD_GUESS;
    efs_defer_read(load->fs, r);
}

errint_t efs_extent_load(struct efs *fs, uint32_t extent, enum efs_load why)
{
    struct efs_extent *x = &fs->extents->at[extent];
    unsigned components = x->needs & ~(unsigned)x->have;
    struct efs_extent_load *load = efs_extent_load_take(fs);
    if (!load)
        return efs_defer_supply(fs);
    errint_t rc = why == EFS_LOAD_WARM ? extent_place_in_empty(fs, extent, components)
                                       : extent_place(fs, extent, components, why);
    if (rc < 0) {
        if (rc != -EAGAIN && x->have == 0)
            efs_extent_set_passing(fs, x, false);
        efs_extent_load_give(fs, load);
        return rc;
    }
    *load = (struct efs_extent_load){.fs = fs,
                                     .extent = extent,
                                     .why = (uint8_t)why,
                                     .guessed = why == EFS_LOAD_GUESS,
                                     .components = (uint8_t)components,
                                     .pending = (components & EFS_COMPONENT_E ? 1 : 0) +
                                                (components & EFS_COMPONENT_SM ? 1 : 0),
                                     .e.complete = load_e_done,
                                     .sm.complete = load_sm_done};
    if (components & EFS_COMPONENT_E)
        load_read(load, &load->e, efs_page_down(efs_extent_first_shard(fs, x)->e_offset),
                  efs_extent_span(fs, x, EFS_COMPONENT_E), &x->e);
    if (components & EFS_COMPONENT_SM)
        load_read(load, &load->sm, efs_page_down(efs_extent_first_shard(fs, x)->sm_offset),
                  efs_extent_span(fs, x, EFS_COMPONENT_SM), &x->sm);
    efs_active_begin(fs);
    fs->extents->loads[why]++;
    if (why != EFS_LOAD_WANTED) {
        x->unwanted = true;
        x->load = load;
    }
    if (why != EFS_LOAD_AHEAD && why != EFS_LOAD_GUESS && !x->passing_bytes)
        efs_again(fs, EFS_AGAIN_PREFAULT);
    efs_again(fs, EFS_AGAIN_SEGMENTS); /* what went for it may have been the last of one that leaves */
    return 0;
}

/* Never more than half of the pool's first segments ahead: what was read ahead must not push itself out. */
static bool extent_load_ahead(struct efs *fs, struct efs_extent *x, size_t bytes)
{
    if (fs->extents->no_memory || fs->closing || fs->extents->ahead_bytes + bytes > fs->extents->ahead_max_bytes ||
        efs_extent_load(fs, (uint32_t)(x - fs->extents->at), EFS_LOAD_AHEAD) < 0)
        return false;
    x->ahead_bytes = (uint32_t)bytes;
    fs->extents->ahead_bytes += bytes;
    efs_count(&fs->stats, readahead_extents, 1);
    return true;
}

bool efs_extent_ahead_passing(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->state != EFS_EXTENT_REST || x->have == x->needs)
        return true;
    size_t bytes = efs_extent_span(fs, x, x->needs & ~(unsigned)x->have);
    if (!efs_extents_pass_on(fs, bytes, false))
        return false;
    bool theirs = x->have == 0;
    if (theirs)
        efs_extent_set_passing(fs, x, true);
    bool begun = extent_load_ahead(fs, x, bytes);
    if (theirs) {
        efs_extent_set_passing(fs, x, begun);
        x->streamed = begun;
        x->passed_bytes = 0;
        x->passing_clock = fs->extents->streams.clock;
    }
    return begun;
}

void efs_group_ahead(struct efs *fs, uint32_t group)
{
    const struct efs_disk_group *g = &fs->store->groups[group];
    for (uint32_t i = fs->extents->object_first[g->object_first];
         i < fs->extents->object_first[g->object_first + g->object_count]; i++) {
        struct efs_extent *x = &fs->extents->at[i];
        if (x->state == EFS_EXTENT_REST && x->have != x->needs)
            extent_load_ahead(fs, x, efs_extent_span(fs, x, x->needs & ~(unsigned)x->have));
    }
}

/* ---- guesses ---- */

uint64_t efs_extents_missing(const struct efs *fs, uint32_t expert)
{
    uint64_t bytes = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        if (x->state == EFS_EXTENT_REST)
            bytes += efs_extent_span(fs, x, x->needs & ~(unsigned)x->have);
    }
    return bytes;
}

uint32_t efs_extents_guess(struct efs *fs, uint32_t expert)
{
    uint32_t begun = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        if (x->state != EFS_EXTENT_REST || x->have == x->needs)
            continue;
        if (fs->closing || efs_extent_load(fs, i, EFS_LOAD_GUESS) < 0)
            break;
        fs->extents->at[i].awaited = true;
        begun++;
    }
    efs_count(&fs->stats, guessed_extents, begun);
    return begun;
}

void efs_extents_guess_raise(struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        struct efs_extent_load *load = load_unwanted_of(fs, i);
        if (load && load->guessed)
            load_raise(fs, load);
    }
}

void efs_extents_guess_cancel(struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        struct efs_extent_load *load = load_unwanted_of(fs, i);
        if (!load || !load->guessed)
            continue;
        atomic_store(&load->e.change, EFS_DISK_CANCEL);
        atomic_store(&load->sm.change, EFS_DISK_CANCEL);
        efs_defer_look(fs);
    }
}

void efs_extents_guess_drop(struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        if (!fs->extents->at[i].awaited) /* was there before, or was asked for since */
            continue;
        fs->extents->at[i].awaited = false;
        efs_extent_evict_first(fs, i);
    }
}
