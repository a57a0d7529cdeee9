/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget_cut.c - the effective budget, and its cut into pools.
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

#include "cache.h"

#define TRANSIENT_SHARE 64 /* of the memory for chunks that are read, decoded and not kept: a segment or two */
#define CHUNK_FILL 0.97    /* of the chunk pool can be used, as blocks do not fit seamlessly */
#define LEASED_SHARE 2     /* leases may take half of the pools' memory before they must wait for it */

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

#define STEP_SHARE 32u   /* of the effective budget; ... */
#define STEP_SEGMENTS 2u /* ... but at least 2 */

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
