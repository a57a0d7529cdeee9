/* SPDX-License-Identifier: Apache-2.0 */
/*
 * effective.c - the effective budget: the part of the requested budget that the system can provide. The pools are
 * planned for it. Planned for the requested budget, they would count on segments that are never allocated and lose
 * experts that the plan keeps: with a quarter of a model, in a cgroup of 8 MiB above it, 200 MB were read per token
 * instead of 169.
 *
 * It falls at once, by whole segments: the memory is used by other processes already, or would be refused. It rises
 * when RISE_SAMPLES samples in a row had a step more available, and then leaves half a step, so that short changes of
 * free memory do not resize the pools.
 */
#include "budget.h"

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
    efs_count(&fs->stats, memory_short, fs->account.budget_bytes < before);
    efs_budget_cut(fs);
    efs_retry(fs, EFS_RETRY_EXTENTS);
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
