/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget_cut.c - cuts the budget into pools.
 *
 * The budget consists of: fixed memory; one or two segments for chunks that are read and not kept; the share of
 * prefetch; the recent peak of leases on experts outside of F; and the pools. F is memory files; C, S and E share the
 * chunk pool, of which 3 % stay unused between blocks of different sizes.
 */
#include "budget.h"

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
    uint64_t most = available / LEASED_SHARE, peak = efs_cache_leased_peak(fs);
    return !fs->options.full_pool ? 0 : peak < most ? peak : most;
}

void efs_budget_cut(struct efs *fs)
{
    const double *ratio = efs_cache_tuning(fs)->ratio;
    uint64_t segment = fs->arena.segment_bytes, available = efs_account_available(&fs->account);
    uint64_t leases = cut_for_leases(fs, available), transient = available / TRANSIENT_SHARE > segment ? 2 : 1;
    uint64_t prefetch = (fs->account.prefetch_bytes + segment - 1) / segment;
    uint64_t pools = cut_less(available, (transient + prefetch) * segment + leases), capacity[EFS_POOLS], chunks = 0;
    uint64_t full = (uint64_t)(ratio[EFS_POOL_F] * (double)pools) + leases;
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        double bytes = ratio[p] * (double)pools;
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
    efs_retry(fs, EFS_RETRY_ADMIT); /* limits may have risen */
}

void efs_budget_change(struct efs *fs, uint64_t bytes)
{
    if (bytes != fs->options.budget_bytes)
        fs->budget->effective = (struct efs_effective){.is_reduced = false}; /* measured again */
    efs_budget_set(fs, bytes);
    efs_budget_cut(fs);
    efs_retry(fs, EFS_RETRY_EXTENTS);
}
