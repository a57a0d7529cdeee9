/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.c - one budget for all memory of the engine: fixed memory, the chunk pool's segments, the full pool's memory
 * files. All functions with efs.lock held, except the release of a segment and efs_budget_wait().
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
    efs_account_return(&fs->account, EFS_ACCOUNT_SEGMENTS, fs->arena.segment_bytes);
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
    efs_workers_push(EFS_CONTAINER(r, struct efs_budget, retirement)->fs->workers, &r->job, EFS_JOB_NORMAL);
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

/* Bytes of retiring segments that no client holds. */
static uint64_t retiring_soon(const struct efs *fs)
{
    return fs->account.bytes[EFS_ACCOUNT_RETIRING] - fs->account.bytes[EFS_ACCOUNT_RETIRING_HELD];
}

/* Whether the memory in use is within the budget, or no operation in flight will free memory of the pools without a
 * client: the release of a memory file or a segment, or the end of a copy. */
static bool budget_is_settled(const struct efs *fs)
{
    const uint64_t *bytes = fs->account.bytes;
    return fs->account.used_bytes <= fs->account.budget_bytes || fs->closing ||
           (!bytes[EFS_ACCOUNT_RETURNING] && !bytes[EFS_ACCOUNT_FULL_COPIED] && !retiring_soon(fs));
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
        if (fs->arena.segment_count >= efs_segments_needed(fs))
            return -ENOMEM;
        bool planned = fs->arena.segment_count < fs->account.planned_segments;
        if (efs_cache_reclaim(fs, planned ? EFS_FOR_SEGMENT : EFS_FOR_CODED, used + bytes - budget) < 0)
            return -ENOMEM;
    }
    errint_t rc = fs->arena.segment_count < fs->account.floor_segments ? 0 : budget_check_memory(fs, bytes);
    return rc == 0 ? efs_grow_add_segment(fs) : rc;
}

void efs_budget_shrink(struct efs *fs)
{
    const uint64_t *bytes = fs->account.bytes, retiring = bytes[EFS_ACCOUNT_RETIRING];
    uint64_t stays; /* memory that is not being freed */
    do
        stays = fs->account.used_bytes - bytes[EFS_ACCOUNT_RETURNING] - bytes[EFS_ACCOUNT_RETIRING];
    while (stays > fs->account.budget_bytes &&
           efs_cache_reclaim(fs, EFS_FOR_BUDGET, stays - fs->account.budget_bytes) == 0);
    if (bytes[EFS_ACCOUNT_RETIRING] > retiring)
        efs_extents_evict_retiring(fs);
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

/* Makes room for another memory file of this size. 0: there is room; 1: something was freed, look again; -EAGAIN;
 * -ENOMEM. */
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
    if (efs_cache_reclaim(fs, EFS_FOR_FILE, excess) == 0)
        return 1;
    return retiring_soon(fs) ? -EAGAIN : -ENOMEM;
}

errint_t efs_budget_get_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use, struct efs_memfile **memfile)
{
    int rc = 1;
    if (fs->account.used_bytes > fs->account.budget_bytes) /* it was lowered while leases were held */
        efs_budget_shrink(fs);
    uint32_t old = efs_lru_oldest(&efs_full_pool(fs)->lists[false]);
    if (fs->account.used_bytes + bytes > fs->account.budget_bytes && !efs_full_pool(fs)->free && old != EFS_NONE &&
        efs_memfile_bytes(fs, old) == bytes)
        efs_cache_reclaim(fs, EFS_FOR_REUSE, 0); /* the budget is used up: reuse the memory file of an old expert */
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
    c->mapped_bytes = EFS_LEAVE_HALF;
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
