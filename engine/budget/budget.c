/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.c - one budget for all memory of the engine: fixed memory, the chunk pool's segments, the full pool's memory
 * files. Chooses what to evict. All functions with efs.lock held, except the release of a segment and
 * efs_budget_wait().
 */
#include "budget.h"

#include "container.h"
#include "cache.h"
#include "extent.h"

#include <errno.h>
#include <time.h>

#define FLOOR_SHARE 8 /* the chunk pool's floor: that part of what is not fixed, ... */
#define FLOOR_MOST 8  /* ... but one to so many segments */
#define CODED_SHARE 4 /* of what is not fixed may be held coded, whatever the plan */
#define SETTLE_NS 1000000
#define SETTLE_ROUNDS 5000

void efs_budget_set(struct efs *fs, uint64_t bytes)
{
    const struct efs_effective *effective = &fs->budget->effective;
    uint64_t segment = fs->arena.segment_bytes, fixed = fs->account.fixed_bytes;
    fs->options.budget_bytes = bytes;
    bytes = effective->is_less && effective->bytes < bytes ? effective->bytes : bytes;
    if (bytes < fixed + segment) /* less does not serve */
        bytes = fixed + segment;
    fs->account.budget_bytes = bytes;
    uint64_t segments = (bytes - fixed) / segment, floor = segments / FLOOR_SHARE;
    fs->account.floor_segments = floor < 1 ? 1 : floor > FLOOR_MOST ? FLOOR_MOST : floor;
    efs_extents_set_ahead(fs, segments * segment / 2);
}

uint64_t efs_budget_coded(const struct efs *fs)
{
    uint64_t available =
        fs->account.budget_bytes > fs->account.fixed_bytes ? fs->account.budget_bytes - fs->account.fixed_bytes : 0;
    uint64_t planned = fs->account.planned_segments * fs->arena.segment_bytes / 2;
    return planned > available / CODED_SHARE ? planned : available / CODED_SHARE;
}

/* Segments that nobody else may take: what the plan needs, or what is handed out coded and some room beside it. */
static uint64_t segments_needed(const struct efs *fs)
{
    uint64_t coded = fs->account.coded_bytes * 2 / fs->arena.segment_bytes + (fs->account.coded_bytes != 0);
    return coded > fs->account.planned_segments ? coded : fs->account.planned_segments;
}

/*
 * Is there memory for so much more, whatever the budget says? What others still hold of experts that were given back is
 * not ours to count, and yet in our cgroup: rather no room than to be killed for it.
 */
static errint_t budget_memory_left(struct efs *fs, uint64_t bytes)
{
    errint_t rc = efs_supply_memory(fs, bytes);
    efs_count(&fs->stats, memory_short, rc == -ENOMEM);
    return rc;
}

errint_t efs_budget_add_segment(struct efs *fs)
{
    uint64_t bytes = fs->arena.segment_bytes, budget = fs->account.budget_bytes, used;
    if (fs->arena.segment_count == fs->arena.segment_max)
        return -ENOMEM;
    while ((used = efs_budget_used(fs)) + bytes > budget) {
        uint64_t before = fs->account.full_bytes;
        if (used - fs->account.freeing_bytes + bytes <= budget)
            return -EAGAIN;
        if (fs->arena.segment_count >= segments_needed(fs))
            return -ENOMEM;
        /* what the plan gives to chunks is taken back from experts that only happen to be full */
        bool kept = fs->arena.segment_count >= fs->account.planned_segments;
        efs_full_drop_free_memfiles(fs, used - fs->account.freeing_bytes + bytes - budget);
        if (fs->account.full_bytes == before && !efs_full_evict_oldest(fs, false) &&
            !(kept && efs_full_evict_oldest(fs, true)))
            return -ENOMEM;
    }
    errint_t rc = fs->arena.segment_count < fs->account.floor_segments ? 0 : budget_memory_left(fs, bytes);
    return rc == 0 ? efs_supply_segment(fs) : rc;
}

bool efs_budget_has_segment(struct efs *fs)
{
    return fs->arena.segment_count < fs->account.planned_segments && fs->arena.segment_count < fs->arena.segment_max &&
           efs_budget_used(fs) + fs->arena.segment_bytes <= fs->account.budget_bytes &&
           efs_supply_memory(fs, fs->arena.segment_bytes) == 0;
}

/* ---- a segment leaves: its extents go, then its registration, then its memory; one at a time ---- */

static void segment_give_back(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_retirement *r = EFS_CONTAINER(job, struct efs_retirement, job);
    struct efs *fs = r->fs;
    (void)scratch;
    efs_arena_give_back(&fs->arena, r->request.segment);
    efs_supply(fs, fs->arena.segment_bytes);
    efs_lock(fs);
    efs_arena_drop(&fs->arena, r->request.segment);
    atomic_fetch_sub(&fs->account.gone_bytes, fs->arena.segment_bytes);
    fs->account.segments_leaving--;
    r->busy = false;
    efs_again(fs, EFS_AGAIN_SEGMENTS);
    efs_again(fs, EFS_AGAIN_REST);
    efs_again(fs, EFS_AGAIN_LEASES);
    efs_unlock(fs);
    efs_active_end(fs);
}

/* On the I/O thread. */
static void segment_unpinned(struct efs_disk_request *request, errint_t error)
{
    struct efs_retirement *r = EFS_CONTAINER(request, struct efs_retirement, request);
    (void)error;
    r->job.run = segment_give_back;
    efs_workers_push(r->fs->workers, &r->job);
}

void efs_budget_retire(struct efs *fs)
{
    struct efs_retirement *r = &fs->budget->retirement;
    for (uint32_t i = 0; fs->account.segments_leaving && !r->busy && i < fs->arena.segment_max; i++) {
        if (!fs->arena.segments[i].retiring || atomic_load(&fs->arena.segments[i].populating) ||
            !efs_arena_segment_empty(&fs->arena, i))
            continue;
        r->busy = true;
        r->fs = fs;
        r->request = (struct efs_disk_request){.segment = i, .complete = segment_unpinned};
        efs_defer_read(fs, &r->request);
        efs_active_begin(fs);
    }
}

bool efs_budget_is_retiring(const struct efs *fs)
{
    return fs->budget->retirement.busy;
}

/* Choose the segment with the most free room and let it go; one with chunks that are held only if it may take long. */
static bool segment_begin_leaving(struct efs *fs, bool held)
{
    uint32_t best = EFS_NONE;
    for (uint32_t i = 0; i < fs->arena.segment_max; i++) {
        const struct efs_segment *s = &fs->arena.segments[i];
        if (s->base && !s->retiring && (held || !s->held) &&
            (best == EFS_NONE || s->free_granules > fs->arena.segments[best].free_granules))
            best = i;
    }
    if (best == EFS_NONE)
        return false;
    fs->arena.segments[best].retiring = true;
    fs->account.segments_leaving++;
    efs_again(fs, EFS_AGAIN_MOVE);
    efs_again(fs, EFS_AGAIN_SEGMENTS);
    return true;
}

/* Of those that are leaving, the segments that wait for nobody who holds chunks. */
static uint64_t segments_leaving_soon(const struct efs *fs)
{
    uint64_t count = 0;
    for (uint32_t i = 0; fs->account.segments_leaving && i < fs->arena.segment_max; i++)
        count += fs->arena.segments[i].retiring && !fs->arena.segments[i].held;
    return count;
}

/* Segments that stay, when those that are leaving have left. */
static uint64_t segments_staying(const struct efs *fs)
{
    return fs->arena.segment_count - fs->account.segments_leaving;
}

errint_t efs_budget_reserve_full(struct efs *fs, uint64_t bytes, enum efs_memfile_kind use)
{
    uint64_t budget = fs->account.budget_bytes, segment = fs->arena.segment_bytes;
    for (;;) {
        /* the floor of the chunk pool is kept free even while the pool is smaller */
        uint64_t used = efs_budget_used_with(fs, fs->account.floor_segments) - fs->account.freeing_bytes;
        if (used <= budget && efs_full_has_free_memfile(fs, bytes, use))
            return 0;
        bool within = used + bytes <= budget;
        if (within && used + fs->account.freeing_bytes + bytes > budget)
            return -EBUSY;
        errint_t left = within ? budget_memory_left(fs, bytes) : -ENOMEM;
        if (left != -ENOMEM)
            return left == 0 ? 0 : -EBUSY;
        if (within && fs->account.freeing_bytes >= bytes) /* the system will have it back */
            return -EBUSY;
        uint64_t excess = within ? bytes : used + bytes - budget, before = fs->account.full_bytes;
        efs_full_drop_free_memfiles(fs, excess);
        if (fs->account.full_bytes < before)
            continue;
        if (segments_leaving_soon(fs) * segment >= excess)
            return -EAGAIN;
        bool above_plan =
            segments_staying(fs) > segments_needed(fs) && segments_staying(fs) > fs->account.floor_segments;
        if (above_plan && segment_begin_leaving(fs, false))
            continue;
        if (efs_full_evict_oldest(fs, false) || efs_demotion_cancel(fs) || efs_full_evict_oldest(fs, true))
            continue;
        if (segments_staying(fs) > fs->account.floor_segments && segment_begin_leaving(fs, false))
            continue;
        return segments_leaving_soon(fs) ? -EAGAIN : -ENOMEM;
    }
}

void efs_budget_shrink(struct efs *fs)
{
    uint64_t budget = fs->account.budget_bytes, segment = fs->arena.segment_bytes;
    for (;;) {
        uint64_t used = efs_budget_used(fs) - fs->account.freeing_bytes;
        uint64_t leaving = fs->account.segments_leaving * segment, before = fs->account.full_bytes;
        if (used <= budget + leaving)
            return;
        efs_full_drop_free_memfiles(fs, used - budget - leaving);
        if (fs->account.full_bytes < before || efs_full_evict_oldest(fs, false))
            continue;
        bool above_plan = segments_staying(fs) > segments_needed(fs);
        if (above_plan && segment_begin_leaving(fs, true))
            continue;
        if (efs_demotion_cancel(fs) || efs_full_evict_oldest(fs, true))
            continue;
        if (segments_staying(fs) <= fs->account.floor_segments || !segment_begin_leaving(fs, true))
            return;
    }
}

/* Something above the budget is on its way out: segments, experts that are only being copied from. */
static bool budget_is_leaving(const struct efs *fs)
{
    if (fs->account.segments_leaving || fs->account.freeing_bytes)
        return true;
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        if (efs_full_may_go(efs_full_of(fs, e)))
            return true;
    return false;
}

uint64_t efs_budget_wait(struct efs *fs)
{
    const struct timespec pause = {0, SETTLE_NS};
    for (unsigned round = 0;; round++) {
        efs_lock(fs);
        efs_budget_shrink(fs);
        uint64_t used = efs_budget_used(fs), asked = fs->options.budget_bytes;
        bool wait = used > fs->account.budget_bytes && fs->disk && !fs->closing && round < SETTLE_ROUNDS &&
                    budget_is_leaving(fs);
        efs_unlock(fs);
        if (!wait)
            return used > asked ? used - asked : 0;
        nanosleep(&pause, NULL);
    }
}

errint_t efs_budget_take_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use, struct efs_memfile **memfile)
{
    *memfile = NULL;
    if (efs_budget_used(fs) > fs->account.budget_bytes) /* it was lowered while leases were held */
        efs_budget_shrink(fs);
    uint32_t old = efs_full_oldest_evictable(fs);
    if (efs_budget_used(fs) + bytes > fs->account.budget_bytes && !efs_full_has_free(fs) && old != EFS_NONE &&
        efs_memfile_bytes(fs, old) == bytes)
        efs_full_evict_oldest(fs, false); /* with the budget used up, an old expert of the same size gives its place */
    *memfile = efs_full_take_free(fs, bytes, use);
    errint_t rc = *memfile ? 0 : efs_budget_reserve_full(fs, bytes, use);
    if (rc < 0 || *memfile)
        return rc;
    *memfile = efs_full_take_free(fs, bytes, use);
    fs->account.full_bytes += *memfile ? 0 : bytes;
    return 0;
}

void efs_budget_build(struct efs *fs)
{
    efs_memory_left_open(&fs->budget->memory_left);
    pthread_mutex_init(&fs->budget->supply.lock, NULL);
    fs->supply_wanted = true;
    fs->budget->built = true;
}

void efs_budget_destroy(struct efs *fs)
{
    struct efs_supply *s = &fs->budget->supply;
    if (!fs->budget->built)
        return;
    while (s->count > 0)
        efs_arena_forget(&fs->arena, &s->segments[--s->count]);
    pthread_mutex_destroy(&s->lock);
    efs_memory_left_close(&fs->budget->memory_left);
}

void efs_budget_leave(struct efs *fs)
{
    if (fs->budget->built)
        efs_memory_left_close(&fs->budget->memory_left);
}
