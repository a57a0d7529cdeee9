/* SPDX-License-Identifier: Apache-2.0 */
/* use.c - see fetch.h: reports that experts are used to the trace, the predictor, the planner and the policy, in this
 * order: the first three see the experts where the request found them. */
#include "fetch.h"

#include "budget.h"
#include "cache.h"
#include "plan_thread.h"
#include "prefetcher.h"
#include "record.h"

static void uses_place(struct efs *fs, const struct efs_uses *uses)
{
    if (!uses->count)
        return;
    efs_record_request(fs, uses->layer, uses->ids, uses->tokens, uses->count, uses->named);
    efs_prefetcher_requested(fs, uses->layer, uses->ids, uses->count, uses->named);
    if (efs_cache(fs)->policy)
        efs_plan_thread_record(fs, uses->layer, uses->ids, uses->count);
    efs_cache_place(fs, uses);
}

void efs_use_experts(struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_use_kind kind)
{
    struct efs_uses uses;
    efs_budget_use_experts(fs);
    efs_cache_request(fs, needs, count, kind, &uses);
    uses_place(fs, &uses);
}

void efs_use_bytes(struct efs *fs, uint32_t expert, uint64_t bytes)
{
    struct efs_uses uses;
    efs_cache_read(fs, expert, bytes, &uses);
    uses_place(fs, &uses);
}
