/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.c - one budget for all memory of the engine: fixed memory, the chunk pool's segments, the full pool's memory
 * files. Chooses what to evict. All functions with efs.lock held, except the release of a segment and
 * efs_budget_wait().
 */
#include "budget.h"
#include "stats.h"

#include "container.h"
#include "cache.h"
#include "expertfs-private.h"
#include "extent.h"

#include <errno.h>

#define FLOOR_SHARE 8 /* minimum of the chunk pool: 1/8 of the budget that is not fixed, ... */
#define FLOOR_MOST 8  /* ... but 1 to 8 segments */
#define CODED_SHARE 4 /* 1/4 of the budget that is not fixed may be pinned coded, independently of the plan */

void efs_budget_set(struct efs *fs, uint64_t bytes)
{
    const struct efs_controller *c = &fs->budget->controller;
    uint64_t segment = fs->arena.segment_bytes, fixed = efs_account_fixed(&fs->account), limit = c->bytes;
    fs->options.budget_bytes = bytes;
    if (limit < UINT64_MAX && (limit < bytes || c->automatic))
        bytes = fixed + (limit > fixed ? (limit - fixed) / segment * segment : 0);
    if (bytes < fixed + segment) /* the minimum */
        bytes = fixed + segment;
    if (c->automatic)
        fs->options.budget_bytes = bytes;
    uint64_t segments = (bytes - fixed) / segment, floor = segments / FLOOR_SHARE;
    if (!fs->budget->built)
        efs_account_set_planned(&fs->account, segments, 0);
    efs_account_set_budget(&fs->account, bytes, floor < 1 ? 1 : floor > FLOOR_MOST ? FLOOR_MOST : floor);
}

uint64_t efs_budget_coded(const struct efs *fs)
{
    uint64_t available = efs_account_available(&fs->account);
    uint64_t planned = fs->account.planned_segments * fs->arena.segment_bytes / 2;
    return planned > available / CODED_SHARE ? planned : available / CODED_SHARE;
}

/* Segments that full experts may not take: the planned ones, or twice the bytes of pinned coded experts. */
static uint64_t segments_needed(const struct efs *fs)
{
    uint64_t pinned = fs->account.bytes[EFS_ACCOUNT_CODED_PINNED];
    uint64_t coded = pinned * 2 / fs->arena.segment_bytes + (pinned != 0);
    return coded > fs->account.planned_segments ? coded : fs->account.planned_segments;
}

/* Fails with -ENOMEM when the system has less than `bytes` free. Pages of freed files in pipes, sockets and I/O in
 * flight are charged to the cgroup but not to the budget, so the budget alone cannot prevent an OOM kill. */
static errint_t budget_check_memory(struct efs *fs, uint64_t bytes)
{
    errint_t rc = efs_grow_check_memory(fs, bytes);
    efs_count(fs->stats, memory_short, rc == -ENOMEM);
    return rc;
}

bool efs_budget_has_segment(struct efs *fs)
{
    return fs->arena.segment_count < fs->account.planned_segments && fs->arena.segment_count < fs->arena.segment_max &&
           fs->account.used_bytes + fs->arena.segment_bytes <= fs->account.budget_bytes &&
           efs_grow_check_memory(fs, fs->arena.segment_bytes) == 0;
}

/* ---- release of a segment: evict its extents, unregister it, free its memory; one at a time ---- */

static void segment_release(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_retirement *r = EFS_CONTAINER(job, struct efs_retirement, job);
    struct efs *fs = EFS_CONTAINER(r, struct efs_budget, retirement)->fs;
    (void)scratch;
    efs_arena_release_pages(&fs->arena, r->request.segment);
    efs_lock(fs);
    efs_arena_drop(&fs->arena, r->request.segment);
    efs_account_release(&fs->account, EFS_ACCOUNT_RETIRING, fs->arena.segment_bytes);
    efs_return_bytes(fs, EFS_ACCOUNT_SEGMENTS, fs->arena.segment_bytes);
    r->busy = false;
    efs_unlock(fs);
    efs_in_flight_end(fs);
}

/* On the I/O thread. */
static void segment_unregistered(struct efs_io *request, errint_t error)
{
    struct efs_retirement *r = EFS_CONTAINER(request, struct efs_retirement, request);
    (void)error;
    r->job.run = segment_release;
    efs_workers_push(EFS_CONTAINER(r, struct efs_budget, retirement)->fs->workers, &r->job);
}

void efs_budget_retire(struct efs *fs)
{
    struct efs_retirement *r = &fs->budget->retirement;
    for (uint32_t i = 0; !r->busy && i < fs->arena.segment_max; i++) {
        if (!efs_arena_segment_is_unused(&fs->arena, i))
            continue;
        r->busy = true;
        r->request = (struct efs_io){.segment = i, .complete = segment_unregistered};
        efs_defer_read(fs, &r->request);
        efs_in_flight_begin(fs);
    }
}

/* Retires the segment with the most free room, if possible one without long-term references; one with such references
 * only if with_long_refs. */
static bool segment_retire(struct efs *fs, bool with_long_refs)
{
    const struct efs_segment *segments = fs->arena.segments;
    uint32_t best = EFS_NONE;
    for (uint32_t i = 0; i < fs->arena.segment_max; i++) {
        if (!segments[i].base || segments[i].retiring || (segments[i].long_refs && !with_long_refs))
            continue;
        bool has = segments[i].long_refs, best_has = best != EFS_NONE && segments[best].long_refs;
        if (best == EFS_NONE || (has == best_has ? segments[i].free_granules > segments[best].free_granules : best_has))
            best = i;
    }
    if (best == EFS_NONE)
        return false;
    efs_account_charge(&fs->account, EFS_ACCOUNT_RETIRING, fs->arena.segment_bytes);
    if (segments[best].long_refs)
        efs_account_charge(&fs->account, EFS_ACCOUNT_RETIRING_HELD, fs->arena.segment_bytes);
    efs_arena_retire(&fs->arena, best);
    efs_extents_evict_retiring(fs);
    return true;
}

/* Bytes of retiring segments that no client holds. */
static uint64_t retiring_soon(const struct efs *fs)
{
    return fs->account.bytes[EFS_ACCOUNT_RETIRING] - fs->account.bytes[EFS_ACCOUNT_RETIRING_HELD];
}

/* Segments that are not retiring. */
static uint64_t segments_remaining(const struct efs *fs)
{
    return fs->arena.segment_count - fs->account.bytes[EFS_ACCOUNT_RETIRING] / fs->arena.segment_bytes;
}

/* What budget_reclaim() may free, besides free memory files and full experts that are not kept. */
enum reclaim {
    RECLAIM_SEGMENTS = 1,  /* segments above the plan */
    RECLAIM_KEPT = 2,      /* full experts that the policy keeps; with SEGMENTS those down to the floor, too */
    RECLAIM_LONG_REFS = 4, /* segments with long-term references */
    RECLAIM_ALL = RECLAIM_SEGMENTS | RECLAIM_KEPT
};

/* Frees or starts to free some memory, up to `bytes` of free memory files: the one order of eviction between the pools.
 * false: clients hold all of it, or it is the minimum of the chunk pool. */
static bool budget_reclaim(struct efs *fs, uint64_t bytes, unsigned what)
{
    uint64_t before = fs->account.bytes[EFS_ACCOUNT_FULL], remaining = segments_remaining(fs);
    bool segments = (what & RECLAIM_SEGMENTS) && remaining > fs->account.floor_segments;
    efs_full_drop_free_memfiles(fs, bytes);
    if (fs->account.bytes[EFS_ACCOUNT_FULL] < before)
        return true;
    if (segments && remaining > segments_needed(fs) && segment_retire(fs, what & RECLAIM_LONG_REFS))
        return true;
    if (efs_full_evict_oldest(fs, false))
        return true;
    if (!(what & RECLAIM_KEPT))
        return false;
    return efs_demotion_cancel(fs) || efs_full_evict_oldest(fs, true) ||
           (segments && segment_retire(fs, what & RECLAIM_LONG_REFS));
}

errint_t efs_budget_add_segment(struct efs *fs, bool may_evict)
{
    uint64_t bytes = fs->arena.segment_bytes, budget = fs->account.budget_bytes, used;
    if (fs->arena.segment_count == fs->arena.segment_max || (!may_evict && !efs_budget_has_segment(fs)))
        return -ENOMEM;
    while ((used = fs->account.used_bytes) + bytes > budget) {
        used -= fs->account.bytes[EFS_ACCOUNT_RETURNING];
        if (used + bytes <= budget)
            return -EAGAIN;
        if (fs->arena.segment_count >= segments_needed(fs))
            return -ENOMEM;
        /* the chunk pool is below its plan: evict experts that the plan does not keep full */
        bool kept = fs->arena.segment_count >= fs->account.planned_segments;
        if (!budget_reclaim(fs, used + bytes - budget, kept ? RECLAIM_KEPT : 0u))
            return -ENOMEM;
    }
    errint_t rc = fs->arena.segment_count < fs->account.floor_segments ? 0 : budget_check_memory(fs, bytes);
    return rc == 0 ? efs_grow_add_segment(fs) : rc;
}

/* Bytes in use above the budget, except those that are being freed. */
static uint64_t budget_over(const struct efs *fs)
{
    uint64_t leaving = fs->account.bytes[EFS_ACCOUNT_RETURNING] + fs->account.bytes[EFS_ACCOUNT_RETIRING];
    uint64_t used = fs->account.used_bytes - leaving, budget = fs->account.budget_bytes;
    return used > budget ? used - budget : 0;
}

void efs_budget_shrink(struct efs *fs)
{
    uint64_t over;
    while ((over = budget_over(fs)) && budget_reclaim(fs, over, RECLAIM_ALL | RECLAIM_LONG_REFS))
        ;
}

/* Whether an operation in flight will free memory of the pools, without a client: the release of a memory file or a
 * segment, or the end of a copy. */
static bool budget_will_free(const struct efs *fs)
{
    return fs->account.bytes[EFS_ACCOUNT_RETURNING] || fs->account.bytes[EFS_ACCOUNT_FULL_COPIED] || retiring_soon(fs);
}

static bool budget_is_settled(const struct efs *fs)
{
    return fs->account.used_bytes <= fs->account.budget_bytes || fs->closing || !budget_will_free(fs);
}

void efs_budget_drain(struct efs *fs)
{
    efs_budget_shrink(fs);
    if (fs->budget->settling && budget_is_settled(fs))
        pthread_cond_broadcast(&fs->budget->settled);
}

uint64_t efs_budget_wait(struct efs *fs)
{
    efs_lock(fs);
    efs_budget_shrink(fs);
    efs_unlock(fs);
    efs_lock(fs);
    fs->budget->settling++;
    while (!budget_is_settled(fs))
        pthread_cond_wait(&fs->budget->settled, &fs->lock);
    fs->budget->settling--;
    uint64_t used = fs->account.used_bytes, requested = fs->options.budget_bytes;
    efs_unlock(fs);
    return used > requested ? used - requested : 0;
}

/* Makes room for another memory file of this size, by one step of budget_reclaim() if necessary. 0: there is room;
 * 1: something was freed, look again; -EAGAIN; -ENOMEM. */
static int memfile_make_room(struct efs *fs, size_t bytes)
{
    /* the floor of the chunk pool is kept free even while the pool is smaller */
    uint64_t budget = fs->account.budget_bytes, returning = fs->account.bytes[EFS_ACCOUNT_RETURNING];
    uint64_t used = efs_budget_used_with(fs, fs->account.floor_segments) - returning;
    bool within = used + bytes <= budget;
    errint_t rc = !within ? -ENOMEM : used + returning + bytes > budget ? -EAGAIN : budget_check_memory(fs, bytes);
    if (rc != -ENOMEM || (within && returning >= bytes)) /* is available again soon */
        return rc == -ENOMEM ? -EAGAIN : rc;
    uint64_t excess = within ? bytes : used + bytes - budget;
    if (!efs_full_pool(fs)->free && retiring_soon(fs) >= excess)
        return -EAGAIN;
    if (budget_reclaim(fs, excess, RECLAIM_ALL))
        return 1;
    return retiring_soon(fs) ? -EAGAIN : -ENOMEM;
}

errint_t efs_budget_get_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use, struct efs_memfile **memfile)
{
    int rc = 1;
    if (fs->account.used_bytes > fs->account.budget_bytes) /* it was lowered while leases were held */
        efs_budget_shrink(fs);
    uint32_t old = efs_full_pool(fs)->lists[false].oldest;
    if (fs->account.used_bytes + bytes > fs->account.budget_bytes && !efs_full_pool(fs)->free && old != EFS_NONE &&
        efs_memfile_bytes(fs, old) == bytes)
        efs_full_evict_oldest(fs, false); /* the budget is used up: reuse the memory file of an old expert */
    while (rc == 1 && !(*memfile = efs_full_get_memfile(fs, bytes, use)))
        rc = memfile_make_room(fs, bytes);
    if (rc == 0)
        efs_account_charge(&fs->account, EFS_ACCOUNT_FULL, bytes);
    return rc < 0 ? rc : 0;
}

void efs_budget_begin(struct efs *fs)
{
    struct efs_controller *c = &fs->budget->controller;
    bool automatic = fs->options.budget_bytes == 0;
    c->mapped_bytes = EFS_MAPPED_UNKNOWN;
    efs_controller_reset(c, automatic);
    c->is_new = false; /* the first reading differs little */
    if (automatic)
        fs->options.budget_bytes = efs_auto_budget();
}

void efs_budget_build(struct efs *fs)
{
    fs->budget->fs = fs;
    efs_memory_left_open(&fs->budget->memory_left);
    pthread_mutex_init(&fs->budget->grow.lock, NULL);
    pthread_cond_init(&fs->budget->settled, NULL);
    fs->budget->built = true;
}

void efs_budget_destroy(struct efs *fs)
{
    struct efs_grow *g = &fs->budget->grow;
    if (!fs->budget->built)
        return;
    while (g->count > 0)
        efs_arena_discard(&fs->arena, &g->ready[--g->count]);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&fs->budget->settled);
    efs_memory_left_close(&fs->budget->memory_left);
}

void efs_budget_close_in_child(struct efs *fs)
{
    if (fs->budget->built)
        efs_memory_left_close(&fs->budget->memory_left);
}
