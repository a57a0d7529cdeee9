/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.c - one budget for all memory of the engine: fixed memory, the chunk pool's segments, the full pool's memory
 * files. All functions with efs.lock held, except the release of a segment, efs_budget_wait() and efs_budget_check().
 *
 * The budget consists of: fixed memory; one or two segments for chunks that are read and not kept; the share of
 * prefetch; the recent peak of leases on experts outside of F; and the pools. F is memory files; C, S and E share the
 * chunk pool, of which 3 % stay unused between blocks of different sizes.
 *
 * The effective budget is what the controller (controller.h) allows of the requested one, in whole segments. The pools
 * are planned for it. Planned for the requested budget, they would count on segments that are never allocated and lose
 * experts that the plan keeps: with a quarter of a model, in a cgroup of 8 MiB above it, 200 MB were read per token
 * instead of 169.
 */
#include "budget.h"
#include "stats.h"

#include "container.h"
#include "cache.h"
#include "expertfs-private.h"
#include "extent.h"

#include <errno.h>

#define MIB (1ull << 20)
#define FLOOR_SHARE 8      /* minimum of the chunk pool: 1/8 of the budget that is not fixed, ... */
#define FLOOR_MOST 8       /* ... but 1 to 8 segments */
#define CODED_SHARE 4      /* 1/4 of the budget that is not fixed may be pinned coded, independently of the plan */
#define TRANSIENT_SHARE 64 /* of the memory for chunks that are read, decoded and not kept: a segment or two */
#define CHUNK_FILL 0.97    /* of the chunk pool can be used, as blocks do not fit seamlessly */
#define LEASED_SHARE 2     /* leases may take half of the pools' memory before they must wait for it */
#define STEP_SHARE 32u     /* smaller changes than 1/32 of the effective budget do not raise it; ... */
#define STEP_SEGMENTS 2u   /* ... but at least 2 segments */

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
    while (rc == 1 && !(*memfile = efs_full_get_memfile(fs, bytes, use)))
        rc = memfile_make_room(fs, bytes);
    if (rc == 0)
        efs_account_charge(&fs->account, EFS_ACCOUNT_FULL, bytes);
    return rc < 0 ? rc : 0;
}

/* ---- the cut into pools ---- */

static uint64_t cut_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void efs_budget_cut(struct efs *fs)
{
    const struct efs_cache_tuning *t = efs_cache_tuning(fs);
    uint64_t segment = fs->arena.segment_bytes, available = efs_account_available(&fs->account);
    uint64_t peak = fs->options.full_pool ? efs_cache(fs)->leased_peak_bytes : 0, most = available / LEASED_SHARE;
    uint64_t leases = peak < most ? peak : most, transient = available / TRANSIENT_SHARE > segment ? 2 : 1;
    uint64_t prefetch = (fs->account.prefetch_bytes + segment - 1) / segment;
    uint64_t pools = cut_less(available, (transient + prefetch) * segment + leases), capacity[EFS_POOLS], chunks = 0;
    uint64_t full = (uint64_t)(t->ratio[EFS_POOL_F] * (double)pools) + leases;
    /* An automatic plan counts the bytes of experts, without the holes between them, and may leave memory free: the
     * chunk pools exceed their ratios. */
    double coded = t->ratio[EFS_POOL_C] + t->ratio[EFS_POOL_S] + t->ratio[EFS_POOL_E];
    double grown = coded > 0 ? (1 - t->ratio[EFS_POOL_F]) / coded : 1;
    grown = t->fixed_plan || grown < 1 ? 1 : grown < 1 / CHUNK_FILL ? grown : 1 / CHUNK_FILL;
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        double bytes = t->ratio[p] * (double)pools * (p == EFS_POOL_F ? 1 : grown);
        capacity[p] = (uint64_t)(p == EFS_POOL_F ? bytes : bytes * CHUNK_FILL);
        chunks += p == EFS_POOL_F ? 0 : (uint64_t)bytes;
    }
    uint64_t planned = (chunks + segment - 1) / segment + transient + prefetch;
    if (planned * segment > available)
        planned = available / segment;
    planned = planned > fs->account.floor_segments ? planned : fs->account.floor_segments;
    efs_account_set_planned(&fs->account, planned, cut_less(available, planned * segment + full));
    efs_cache_resize(fs, pools, capacity);
    efs_budget_shrink(fs);
}

void efs_budget_change(struct efs *fs, uint64_t bytes)
{
    bool automatic = bytes == 0;
    if (automatic != efs_budget_is_auto(fs) || bytes != fs->options.budget_bytes)
        efs_controller_reset(&fs->budget->controller, automatic);
    efs_budget_set(fs, automatic ? fs->options.budget_bytes : bytes);
    efs_budget_cut(fs);
}

/* ---- the effective budget ---- */

/* Applies the controller's budget. false: it is the one in force. */
static bool budget_adjust(struct efs *fs)
{
    uint64_t before = fs->account.budget_bytes;
    efs_budget_set(fs, fs->options.budget_bytes);
    if (fs->account.budget_bytes == before)
        return false;
    efs_budget_cut(fs);
    return true;
}

void efs_budget_use_experts(struct efs *fs)
{
    if (efs_controller_use_expert(&fs->budget->controller))
        budget_adjust(fs);
}

void efs_budget_follow(struct efs *fs)
{
    struct efs_grow *g = &fs->budget->grow;
    if (g->has_reading) {
        struct efs_reading reading = g->reading;
        uint64_t before = fs->account.budget_bytes, share = before / STEP_SHARE;
        uint64_t least = STEP_SEGMENTS * fs->arena.segment_bytes;
        g->has_reading = false;
        g->reading = (struct efs_reading){0};
        reading.fixed_bytes = efs_account_fixed(&fs->account);
        reading.step_bytes = share > least ? share : least;
        reading.cached_bytes = atomic_load_explicit(&fs->budget->cached_bytes, memory_order_relaxed);
        reading.direct_bytes = atomic_load_explicit(&fs->budget->direct_bytes, memory_order_relaxed);
        efs_controller_update(&fs->budget->controller, &reading, before);
        if (budget_adjust(fs))
            efs_count(fs->stats, memory_short, reading.provided_bytes < before);
    }
    efs_budget_shrink(fs);
}

/* ---- what other programs do with the memory ---- */

void efs_note_file_read(struct efs *fs, uint64_t bytes, bool cached)
{
    struct efs_budget *b = fs->budget;
    atomic_fetch_add_explicit(cached ? &b->cached_bytes : &b->direct_bytes, bytes, memory_order_relaxed);
}

/* ---- the memory limits: above them the process would be killed (OOM) ---- */

/* Bytes that the budget can use at most: with all of the store in memory, coded and full, unless they are allocated at
 * the start (prealloc). */
static uint64_t budget_max_use(struct efs *fs, uint64_t budget)
{
    uint64_t segment = fs->arena.segment_bytes;
    efs_lock(fs);
    uint64_t most = fs->account.bytes[EFS_ACCOUNT_FIXED];
    efs_unlock(fs);
    most += (fs->store->sb.store_bytes / segment * 9 / 8 + 4) * segment;
    for (uint32_t e = 0; fs->options.full_pool && e < fs->store->expert_count; e++)
        most += efs_memfile_bytes(fs, e);
    return fs->options.prealloc || budget < most ? budget : most;
}

errint_t efs_budget_check(struct efs *fs, uint64_t budget, uint64_t held, struct efs_error *err)
{
    struct efs_memory memory;
    char asked[EFS_SIZE_TEXT], most[EFS_SIZE_TEXT], limit[EFS_SIZE_TEXT];
    efs_memory(&memory);
    uint64_t take = budget_max_use(fs, budget), available = memory.available_bytes + held;
    const char *whose = memory.cgroup ? "the memory cgroup's limit" : "the machine's memory";
    if (available > memory.limit_bytes)
        available = memory.limit_bytes;
    if (take > memory.limit_bytes)
        return efs_fail(
            err, -ENOMEM,
            "%s: a budget of %llu MiB is not possible: %s is %llu MiB, of which %llu MiB are available\nhint: "
            "budget=auto takes half of that, or the minimum if that is more%s",
            fs->store->path, (unsigned long long)(budget / MIB), whose, (unsigned long long)(memory.limit_bytes / MIB),
            (unsigned long long)(available / MIB), memory.cgroup ? "; or raise the limit (memory.max)" : "");
    if (take > available)
        efs_fail(
            err, 0,
            "%s: a budget of %llu MiB is above the %llu MiB that are available (%s is %llu MiB): pools are planned for "
            "these (effective_budget)\nhint: budget=auto takes half of what is available",
            fs->store->path, (unsigned long long)(budget / MIB), (unsigned long long)(available / MIB), whose,
            (unsigned long long)(memory.limit_bytes / MIB));
    else if (budget > memory.limit_bytes)
        efs_fail(err, 0, "%s: budget %s accepted; this store uses at most %s (%s is %s)", fs->store->path,
                 efs_size_text(budget, asked), efs_size_text(take, most), whose,
                 efs_size_text(memory.limit_bytes, limit));
    return 0;
}

/* ---- open and close ---- */

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
