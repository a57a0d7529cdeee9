/*
 * unit_load.c - units come to memory: only the halves that are missing are read.
 *
 * States: REST -> (STARVED: waits for memory) -> LOADING -> REST. A unit that rests has some, all or none of its
 * halves; waiters come only while it is not whole.
 */
#include "unit_core.h"

#include "record.h"
#include "residency.h"
#include "sys.h"
#include "warm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_whole(const struct efs_unit *u)
{
    return u->state == EFS_UNIT_REST && u->have == u->needs;
}

void efs_unit_push_waiters(struct efs *fs, struct efs_unit_waiter *list, errint_t error)
{
    while (list) {
        struct efs_unit_waiter *w = list;
        list = w->next;
        w->error = error;
        efs_workers_push(fs->workers, &w->job);
    }
}

/* ---- memory ---- */

static bool alloc_half(struct efs *fs, struct efs_unit *u, unsigned half)
{
    struct efs_block *block = half == EFS_HALF_E ? &u->e : &u->sm;
    const struct efs_block *other = half == EFS_HALF_E ? &u->sm : &u->e; /* on the same node */
    return block->data || efs_arena_alloc_on(&fs->arena, efs_arena_node_of(&fs->arena, other),
                                             efs_unit_room(fs, u, half), half == EFS_HALF_SM, block);
}

/* Someone gives way: first what nobody will come back for, then the budget, then the oldest that is loose, and only
 * when all memory is kept the oldest of that. */
static bool more_memory(struct efs *fs)
{
    if (efs_units_evict(fs, true) == EFS_EVICTED_ONE)
        return true;
    if (efs_room_for_segment(fs) && efs_arena_grow(&fs->arena) == 0)
        return true;
    enum efs_evicted evicted = efs_units_evict(fs, false);
    if (evicted == EFS_EVICTED_NONE)
        return efs_units_evict_kept(fs);
    return evicted == EFS_EVICTED_ONE;
}

static bool alloc_halves(struct efs *fs, struct efs_unit *u, unsigned halves)
{
    return (!(halves & EFS_HALF_E) || alloc_half(fs, u, EFS_HALF_E)) &&
           (!(halves & EFS_HALF_SM) || alloc_half(fs, u, EFS_HALF_SM));
}

static void free_halves(struct efs *fs, struct efs_unit *u, unsigned halves)
{
    if (halves & EFS_HALF_E)
        efs_arena_free(&fs->arena, &u->e);
    if (halves & EFS_HALF_SM)
        efs_arena_free(&fs->arena, &u->sm);
}

errint_t efs_unit_place(struct efs *fs, uint32_t unit, unsigned halves)
{
    struct efs_unit *u = &fs->units[unit];
    efs_unit_delist(fs, unit); /* what it has already must not be evicted for the rest */
    while (!alloc_halves(fs, u, halves))
        if (!more_memory(fs)) {
            free_halves(fs, u, halves);
            bool others = fs->arena.used_bytes != 0;
            efs_unit_enlist(fs, unit);
            return others ? -EAGAIN : -ENOMEM;
        }
    efs_unit_delist(fs, unit); /* its expert may have left the books for it, which puts it in a list again */
    return 0;
}

/* The same in memory that is empty: nothing goes for it. */
static errint_t place_in_empty(struct efs *fs, uint32_t unit, unsigned halves)
{
    struct efs_unit *u = &fs->units[unit];
    while (!alloc_halves(fs, u, halves))
        if (!efs_room_has_segment(fs) || efs_arena_grow(&fs->arena) < 0) {
            free_halves(fs, u, halves);
            return -EAGAIN;
        }
    efs_unit_delist(fs, unit);
    return 0;
}

/* ---- reading ---- */

struct load {
    struct efs_disk_request e, sm;
    struct efs *fs;
    uint32_t unit;
    uint8_t halves, why; /* why: enum efs_load */
    _Atomic int pending;
    _Atomic errint_t error;
};

/* Lock held: the unit has, or has not, got what was under way. */
void efs_unit_loaded(struct efs *fs, uint32_t unit, unsigned halves, errint_t error, struct efs_unit_waiter **ready,
                     struct efs_disk_request **submit)
{
    struct efs_unit *u = &fs->units[unit];
    struct efs_unit_waiter *waiters = u->waiters;
    uint32_t expert = fs->store->objects[u->object].group;
    bool kept = (halves & u->keep) != 0;
    u->state = EFS_UNIT_REST;
    atomic_store(&u->checked, 0);
    if (error < 0) {
        efs_unit_used(fs, u);
        free_halves(fs, u, halves);
        efs_unit_set_passing(fs, u, u->passing_bytes && u->have);
    } else {
        u->have |= (uint8_t)halves;
        fs->unit_ready_count += u->have == u->needs;
    }
    efs_unit_enlist(fs, unit);
    if (error < 0 && kept)
        efs_residency_lost(fs, expert);
    if (waiters && (error == 0 || error == -EAGAIN) && !is_whole(u)) {
        efs_unit_starve(fs, unit); /* part of what is wanted is not there yet: read it as soon as there is room */
    } else {
        u->waiters = NULL;
        for (struct efs_unit_waiter *w = waiters; w && error == 0; w = w->next)
            u->refs++;
        efs_unit_settle(fs, unit);
        *ready = waiters;
    }
    efs_units_retry(fs, submit);
    efs_room_retire(fs, submit);
}

static void load_done(struct load *load)
{
    struct efs *fs = load->fs;
    errint_t error = load->error;
    if (error < 0)
        efs_log(fs, EFS_LOG_ERROR, "%s: read at offset %llu failed: %s", fs->store->path,
                (unsigned long long)(load->e.bytes ? load->e.offset : load->sm.offset), strerror(-error));
    struct efs_disk_request *submit = NULL;
    struct efs_unit_waiter *ready = NULL;
    if (load->e.bytes)
        efs_record(fs, EFS_RECORD_READ_E, load->unit, 0, load->e.begin_ns, load->e.end_ns);
    if (load->sm.bytes)
        efs_record(fs, EFS_RECORD_READ_SM, load->unit, 0, load->sm.begin_ns, load->sm.end_ns);
    pthread_mutex_lock(&fs->lock);
    fs->loads[load->why]--;
    efs_unit_loaded(fs, load->unit, load->halves, error, &ready, &submit);
    if (load->why == EFS_LOAD_WARM)
        efs_warm_ended(fs, load->unit, error);
    efs_warm_go_on(fs, &submit);
    pthread_mutex_unlock(&fs->lock);
    efs_unit_push_waiters(fs, ready, error);
    efs_disk_submit_all(fs, submit);
    free(load);
    efs_active_end(fs);
}

static void part_done(struct load *load, errint_t error)
{
    if (error < 0)
        load->error = error;
    if (atomic_fetch_sub(&load->pending, 1) == 1)
        load_done(load);
}

static void e_done(struct efs_disk_request *r, errint_t error)
{
    part_done((struct load *)((char *)r - offsetof(struct load, e)), error);
}

static void sm_done(struct efs_disk_request *r, errint_t error)
{
    part_done((struct load *)((char *)r - offsetof(struct load, sm)), error);
}

static void request(struct efs_disk_request *r, uint64_t offset, size_t bytes, const struct efs_block *block,
                    enum efs_load why, struct efs_disk_request **submit)
{
    r->offset = offset;
    r->bytes = bytes;
    r->data = block->data;
    r->segment = block->segment;
    r->ahead = why != EFS_LOAD_WANTED;
    r->spare_time = why == EFS_LOAD_WARM;
    r->next = *submit;
    *submit = r;
}

errint_t efs_unit_load(struct efs *fs, uint32_t unit, enum efs_load why, struct efs_disk_request **submit)
{
    struct efs_unit *u = &fs->units[unit];
    unsigned halves = u->needs & ~(unsigned)u->have;
    struct load *load = efs_sys_calloc(1, sizeof(*load));
    if (!load)
        return -ENOMEM;
    errint_t rc = why == EFS_LOAD_WARM ? place_in_empty(fs, unit, halves) : efs_unit_place(fs, unit, halves);
    if (rc < 0) {
        if (rc != -EAGAIN && u->have == 0)
            efs_unit_set_passing(fs, u, false);
        free(load);
        return rc;
    }
    load->fs = fs;
    load->unit = unit;
    load->why = (uint8_t)why;
    load->halves = (uint8_t)halves;
    load->pending = (halves & EFS_HALF_E ? 1 : 0) + (halves & EFS_HALF_SM ? 1 : 0);
    load->e.complete = e_done;
    load->sm.complete = sm_done;
    if (halves & EFS_HALF_SM)
        request(&load->sm, efs_page_down(efs_unit_first_shard(fs, u)->sm_offset), efs_unit_span(fs, u, EFS_HALF_SM),
                &u->sm, why, submit);
    if (halves & EFS_HALF_E)
        request(&load->e, efs_page_down(efs_unit_first_shard(fs, u)->e_offset), efs_unit_span(fs, u, EFS_HALF_E), &u->e,
                why, submit);
    u->state = EFS_UNIT_LOADING;
    fs->active++;
    fs->loads[why]++;
    if (why != EFS_LOAD_AHEAD && !u->passing_bytes)
        efs_room_ahead(fs);
    efs_room_retire(fs, submit); /* what went for it may have been the last of a segment that leaves */
    return 0;
}

void efs_disk_submit_all(struct efs *fs, struct efs_disk_request *list)
{
    while (list) {
        struct efs_disk_request *r = list;
        list = r->next;
        efs_disk_submit(fs->disk, r);
    }
}

/* ---- waiting for memory ---- */

void efs_unit_starve(struct efs *fs, uint32_t unit)
{
    struct efs_unit *u = &fs->units[unit];
    u->state = EFS_UNIT_STARVED;
    u->next_starved = NULL;
    *fs->starved_tail = u;
    fs->starved_tail = &u->next_starved;
}

/* Lock held: units that waited for memory, in order, as far as there is room. */
void efs_units_retry(struct efs *fs, struct efs_disk_request **submit)
{
    struct efs_disk_request *late = NULL, **tail = &late; /* keep the order of units */
    while (fs->starved) {
        struct efs_unit *u = fs->starved;
        struct efs_disk_request *mine = NULL;
        errint_t rc = fs->closing ? -ECANCELED : efs_unit_load(fs, (uint32_t)(u - fs->units), EFS_LOAD_WANTED, &mine);
        if (rc == -EAGAIN)
            break;
        fs->starved = u->next_starved;
        if (!fs->starved)
            fs->starved_tail = &fs->starved;
        if (rc < 0) {
            struct efs_unit_waiter *waiters = u->waiters;
            u->waiters = NULL;
            u->state = EFS_UNIT_REST;
            efs_unit_push_waiters(fs, waiters, rc);
        }
        *tail = mine;
        while (*tail)
            tail = &(*tail)->next;
    }
    *tail = *submit;
    *submit = late;
}

/* ---- asking for units ---- */

static bool get(struct efs *fs, uint32_t unit, const enum efs_pace *pace, size_t bytes, struct efs_unit_waiter *waiter)
{
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    struct efs_unit_waiter *failed = NULL;
    if (pace)
        efs_unit_asked(fs, unit, *pace, bytes);
    bool here = efs_unit_ask(fs, unit, waiter, &failed, &submit);
    pthread_mutex_unlock(&fs->lock);
    efs_unit_push_waiters(fs, failed, failed ? failed->error : 0);
    efs_disk_submit_all(fs, submit);
    return here;
}

bool efs_unit_get(struct efs *fs, uint32_t unit, struct efs_unit_waiter *waiter)
{
    return get(fs, unit, NULL, 0, waiter);
}

bool efs_unit_get_paced(struct efs *fs, uint32_t unit, enum efs_pace pace, size_t bytes, struct efs_unit_waiter *waiter)
{
    return get(fs, unit, &pace, bytes, waiter);
}

bool efs_unit_ask(struct efs *fs, uint32_t unit, struct efs_unit_waiter *waiter, struct efs_unit_waiter **failed,
                  struct efs_disk_request **submit)
{
    struct efs_unit *u = &fs->units[unit];
    efs_unit_used(fs, u);
    if (is_whole(u)) {
        u->refs++;
        u->spare = false;
        efs_unit_enlist(fs, unit);
        return true;
    }
    waiter->unit = unit;
    waiter->error = 0;
    waiter->next = u->waiters;
    u->waiters = waiter;
    if (u->state != EFS_UNIT_REST)
        return false;
    errint_t rc = fs->closing ? -ECANCELED : fs->starved ? -EAGAIN : efs_unit_load(fs, unit, EFS_LOAD_WANTED, submit);
    if (rc == -EAGAIN) {
        efs_unit_starve(fs, unit);
    } else if (rc < 0) {
        u->waiters = NULL;
        waiter->error = rc;
        waiter->next = *failed;
        *failed = waiter;
    }
    return false;
}

void efs_unit_put(struct efs *fs, uint32_t unit)
{
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    if (--fs->units[unit].refs == 0) {
        efs_unit_settle(fs, unit);
        efs_units_retry(fs, &submit);
        efs_room_retire(fs, &submit);
        efs_warm_go_on(fs, &submit);
    }
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
}

/* Never more than half of the pool's first segments ahead: what was read ahead must not push itself out. */
static bool ahead(struct efs *fs, struct efs_unit *u, size_t bytes, struct efs_disk_request **submit)
{
    if (fs->starved || fs->closing || fs->ahead_bytes + bytes > fs->ahead_max_bytes ||
        efs_unit_load(fs, (uint32_t)(u - fs->units), EFS_LOAD_AHEAD, submit) < 0)
        return false;
    u->ahead_bytes = (uint32_t)bytes;
    fs->ahead_bytes += bytes;
    efs_count(&fs->stats, readahead_units, 1);
    return true;
}

bool efs_unit_ahead_passing(struct efs *fs, uint32_t unit, struct efs_disk_request **submit)
{
    struct efs_unit *u = &fs->units[unit];
    if (u->state != EFS_UNIT_REST || u->have == u->needs)
        return true;
    size_t bytes = efs_unit_span(fs, u, u->needs & ~(unsigned)u->have);
    if (!efs_units_pass_on(fs, bytes, false))
        return false;
    bool theirs = u->have == 0;
    if (theirs)
        efs_unit_set_passing(fs, u, true);
    bool begun = ahead(fs, u, bytes, submit);
    if (theirs) {
        efs_unit_set_passing(fs, u, begun);
        u->streamed = begun;
        u->passed_bytes = 0;
        u->passing_clock = fs->streams.clock;
    }
    return begun;
}

void efs_group_ahead(struct efs *fs, uint32_t group)
{
    const struct efs_disk_group *g = &fs->store->groups[group];
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    for (uint32_t i = fs->object_unit[g->object_first]; i < fs->object_unit[g->object_first + g->object_count]; i++) {
        struct efs_unit *u = &fs->units[i];
        if (u->state == EFS_UNIT_REST && u->have != u->needs)
            ahead(fs, u, efs_unit_span(fs, u, u->needs & ~(unsigned)u->have), &submit);
    }
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
}
