/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget_cut.c - the effective budget, and its cut into pools.
 *
 * The budget consists of: fixed memory; one or two segments for chunks that are read and not kept; the share of
 * prefetch; the recent peak of leases on experts outside of F; and the pools. F is memory files; C, S and E share the
 * chunk pool, of which 3 % stay unused between blocks of different sizes.
 *
 * The effective budget is the part of the requested budget that the system can provide. The pools are
 * planned for it. Planned for the requested budget, they would count on segments that are never allocated and lose
 * experts that the plan keeps: with a quarter of a model, in a cgroup of 8 MiB above it, 200 MB were read per token
 * instead of 169.
 *
 * It falls at once, by whole segments: the memory is used by other processes already, or would be refused. It rises
 * when RISE_SAMPLES samples in a row had a step more available, and then leaves half a step, so that short changes of
 * free memory do not resize the pools.
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

/* Bytes reserved for full experts that are leased but not kept. */
static uint64_t cut_for_leases(const struct efs *fs, uint64_t available)
{
    uint64_t most = available / LEASED_SHARE, peak = efs_cache(fs)->leased_peak_bytes;
    return !fs->options.full_pool ? 0 : peak < most ? peak : most;
}

/* By how much the chunk pools exceed their ratios: an automatic plan counts the bytes of experts, without the holes
 * between them, and may leave memory free. */
static double cut_grown(struct efs *fs)
{
    const struct efs_cache_tuning *t = efs_cache_tuning(fs);
    double coded = t->ratio[EFS_POOL_C] + t->ratio[EFS_POOL_S] + t->ratio[EFS_POOL_E];
    double most = coded > 0 ? (1 - t->ratio[EFS_POOL_F]) / coded : 1;
    return t->fixed_plan || most < 1 ? 1 : most < 1 / CHUNK_FILL ? most : 1 / CHUNK_FILL;
}

void efs_budget_cut(struct efs *fs)
{
    const double *ratio = efs_cache_tuning(fs)->ratio;
    uint64_t segment = fs->arena.segment_bytes, available = efs_account_available(&fs->account);
    uint64_t leases = cut_for_leases(fs, available), transient = available / TRANSIENT_SHARE > segment ? 2 : 1;
    uint64_t prefetch = (fs->account.prefetch_bytes + segment - 1) / segment;
    uint64_t pools = cut_less(available, (transient + prefetch) * segment + leases), capacity[EFS_POOLS], chunks = 0;
    uint64_t full = (uint64_t)(ratio[EFS_POOL_F] * (double)pools) + leases;
    double grown = cut_grown(fs);
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        double bytes = ratio[p] * (double)pools * (p == EFS_POOL_F ? 1 : grown);
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
    efs_changed(fs, EFS_CHANGED_LIMITS);
}

void efs_budget_change(struct efs *fs, uint64_t bytes)
{
    if (bytes != fs->options.budget_bytes)
        fs->budget->effective = (struct efs_effective){.is_reduced = false}; /* measured again */
    efs_budget_set(fs, bytes);
    efs_budget_cut(fs);
}

/* ---- the effective budget ---- */

#define RISE_SAMPLES 6   /* of the plan thread: 3 s */
#define STEP_SHARE 32u   /* of the effective budget; ... */
#define STEP_SEGMENTS 2u /* ... but at least 2 */

static uint64_t effective_step(const struct efs *fs)
{
    uint64_t share = fs->account.budget_bytes / STEP_SHARE, least = STEP_SEGMENTS * fs->arena.segment_bytes;
    return share > least ? share : least;
}

static void effective_set(struct efs *fs, uint64_t bytes)
{
    struct efs_effective *e = &fs->budget->effective;
    uint64_t fixed = efs_account_fixed(&fs->account), before = fs->account.budget_bytes;
    uint64_t pools = bytes > fixed ? bytes - fixed : 0;
    e->is_reduced = bytes < fs->options.budget_bytes;
    e->bytes = fixed + pools / fs->arena.segment_bytes * fs->arena.segment_bytes;
    e->least_bytes = UINT64_MAX;
    e->samples = 0;
    efs_budget_set(fs, fs->options.budget_bytes);
    if (fs->account.budget_bytes == before)
        return;
    efs_count(fs->stats, memory_short, fs->account.budget_bytes < before);
    efs_budget_cut(fs);
    efs_retry(fs, EFS_RETRY_PLAN);
}

static void effective_update(struct efs *fs, uint64_t bytes, bool sampled)
{
    struct efs_effective *e = &fs->budget->effective;
    uint64_t now = fs->account.budget_bytes, step = effective_step(fs);
    if (bytes < now) {
        effective_set(fs, bytes);
        return;
    }
    e->least_bytes = bytes < e->least_bytes ? bytes : e->least_bytes;
    e->samples += sampled;
    if (!e->is_reduced || e->samples < RISE_SAMPLES)
        return;
    if (e->least_bytes >= now + step) {
        effective_set(fs, e->least_bytes - step / 2);
        return;
    }
    e->least_bytes = UINT64_MAX;
    e->samples = 0;
}

void efs_budget_follow(struct efs *fs)
{
    struct efs_grow *g = &fs->budget->grow;
    if (g->is_new) {
        g->is_new = false;
        effective_update(fs, g->available_bytes, g->is_sample);
    }
    efs_budget_drain(fs);
}
