/* SPDX-License-Identifier: Apache-2.0 */
/* plan_pools.c - see plan_thread_core.h: from what is known to the pools. */
#include "plan_thread_core.h"

#include "budget.h"

#include "estimator.h"
#include "warm.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define KNOWN_PASSES 20000u /* of the history; what is older counts less */
#define PLAN_WORTH 0.95     /* another cut of the pools must cost at most this part of the one that is there */

/*
 * Every other cut of the pools costs what it moves, and rates that are kept current are never quite the same: a plan
 * stays as long as it is nearly as good as the best. *plan: the best one, and then the one to go by.
 */
static void prefer_what_is(const struct efs_plan_thread *s, struct efs_pools_request *request,
                           const struct efs_cache_tuning *tuning, unsigned pools, struct efs_pools *plan)
{
    struct efs_pools same = {0};
    request->how = EFS_POOLS_RATIO;
    memcpy(request->ratio, tuning->ratio, sizeof(request->ratio));
    if (!s->planned_at || s->plan_error || s->pools != pools || s->goal != request->goal ||
        efs_pools_plan(request, &same) < 0)
        return;
    bool stays = same.makespan_ns * PLAN_WORTH <= plan->makespan_ns &&
                 (request->goal != EFS_PLAN_IO || same.io_ns * PLAN_WORTH <= plan->io_ns);
    if (stays)
        *plan = same;
}

static int make_plan(struct efs_plan_thread *s, const struct efs_cache_tuning *tuning, uint64_t bytes, unsigned pools,
                     double chosen, const double product_ns[2], struct efs_skew *skew, struct efs_pools *plan)
{
    const struct efs_profile *p = &s->profile;
    struct efs_rates_now rates; /* as it is by now; what is read is decoded in any plan, what is kept coded in some */
    efs_estimator_now(s->fs->estimator, &rates, NULL, NULL);
    int rc = efs_skew_learn(skew, &s->known, efs_cache_layers(s->fs), efs_cache_width(s->fs), chosen);
    if (rc < 0)
        return rc;
    struct efs_pools_request request = {.costs = {.full_bytes = p->full_bytes,
                                                  .coded_bytes = p->coded_bytes,
                                                  .sm_bytes = p->sm_bytes,
                                                  .e_bytes = p->e_bytes,
                                                  .tensors = p->tensors,
                                                  .shards = p->shards,
                                                  .workers = p->workers,
                                                  .disk_bytes_per_second = rates.disk_bytes_per_second,
                                                  .read_latency_ns = rates.read_latency_ns,
                                                  .decode_bytes_per_second = rates.decode_each[EFS_DECODE_KEPT],
                                                  .f_hit_ns = product_ns[EFS_FORM_FULL],
                                                  .c_hit_ns = product_ns[EFS_FORM_CODED]},
                                        .skew = skew,
                                        .budget_bytes = bytes,
                                        .goal = tuning->goal,
                                        .how = tuning->fixed_plan ? EFS_POOLS_RATIO : EFS_POOLS_SHARED};
    request.pools = tuning->fixed_plan ? 0 : pools & efs_pools_possible(&request.costs);
    memcpy(request.ratio, tuning->ratio, sizeof(request.ratio));
    rc = efs_pools_plan(&request, plan);
    if (rc == 0 && !tuning->fixed_plan)
        prefer_what_is(s, &request, tuning, pools, plan);
    return rc;
}

/* F only for those who map or lease whole experts, or whose memory is taken before they come: others are served from
 * the page cache (rule 3). */
static unsigned pools_now(struct efs *fs)
{
    unsigned pools = efs_cache_tuning(fs)->pools;
    if (!fs->options.full_pool || (!efs_cache_was_leased(fs) && !fs->options.prealloc))
        pools &= ~EFS_PLAN_POOL(EFS_POOL_F);
    return pools;
}

void efs_plan_thread_plan(struct efs_plan_thread *s)
{
    struct efs *fs = s->fs;
    struct efs_cache_tuning *now = efs_cache_tuning(fs);
    struct efs_skew skew = {0};
    struct efs_pools plan = {0};
    efs_lock(fs);
    s->asked = false;
    efs_history_add(&s->known, &s->seen);
    efs_history_clear(&s->seen);
    efs_history_fade(&s->known, KNOWN_PASSES);
    efs_budget_cut(fs); /* what is left for the pools, at the ratios of before */
    struct efs_cache_tuning tuning = *now;
    uint64_t bytes = efs_cache_pools_bytes(fs);
    unsigned pools = pools_now(fs);
    const double chosen = efs_cache_chosen(fs);
    const double product_ns[2] = {s->product_ns[0], s->product_ns[1]};
    efs_unlock(fs);
    uint64_t begin = efs_now_ns();
    int rc = bytes && (pools || tuning.fixed_plan)
                 ? make_plan(s, &tuning, bytes, pools, chosen, product_ns, &skew, &plan)
                 : -ENODATA;
    uint64_t took = efs_now_ns() - begin;
    efs_lock(fs);
    if (rc == 0 && !tuning.fixed_plan && !now->fixed_plan)
        memcpy(now->ratio, plan.ratio, sizeof(now->ratio));
    if (rc == 0) {
        efs_budget_cut(fs);
        efs_count(&fs->stats, plans, 1);
    }
    efs_skew_free(&s->skew);
    s->skew = skew;
    s->plan = plan;
    s->plan_error = rc;
    s->pools = pools;
    s->goal = tuning.goal;
    s->planned_at = time(NULL);
    s->plan_ns = took;
    efs_unlock(fs);
    efs_warm_plan(fs, &s->known);
}
