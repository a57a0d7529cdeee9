/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_share.c - pools that all layers share: the best mix of two plans of whole experts.
 *
 * With whole experts the time of a layer falls in steps as its memory grows. Layers that share a pool need not all be
 * on the same step: if some have slightly more memory and the rest slightly less, the average is on the lower convex
 * hull of the steps.
 */
#include "planner_layer.h"

#include <errno.h>

#define AROUND 8u /* number of budgets tried below the mean, and above it, an eighth of a full expert apart */
#define POINTS (2 * AROUND + 1)

static double plan_used_bytes(const struct efs_plan *plan)
{
    double used = 0;

    for (unsigned p = 0; p < EFS_POOLS; p++)
        used += (double)plan->used_bytes[p];
    return used;
}

static uint64_t pool_bytes_sum(const uint64_t bytes[EFS_POOLS])
{
    return bytes[0] + bytes[1] + bytes[2] + bytes[3];
}

static double plan_cost_ns(const struct efs_plan_request *request, const struct efs_plan *plan)
{
    /* The factor makes the makespan decide only between plans with equal I/O. */
    return request->goal == EFS_PLAN_IO ? plan->io_ns + 1e-9 * plan->makespan_ns : plan->makespan_ns;
}

/* A fraction `part` of the layers has the pools of plan b, the rest those of plan a. */
struct mix {
    const struct efs_plan *a, *b;
    double part;
};

static double mixed(const struct mix *mix, double a, double b)
{
    return (1 - mix->part) * a + mix->part * b;
}

/* The part of b with which both together use mean bytes per layer; a alone uses at most that. */
static struct mix mix_of(const struct efs_plan *a, const struct efs_plan *b, double mean)
{
    double used_a = plan_used_bytes(a), used_b = plan_used_bytes(b);
    bool between = used_b >= mean && used_b > used_a;

    return (struct mix){a, b, between ? (mean - used_a) / (used_b - used_a) : 0};
}

/* The mix of least cost, the first of equal ones. */
static struct mix mix_best(const struct efs_plan_request *request, const struct efs_plan *plans, unsigned count,
                           double mean)
{
    struct mix best = {plans, plans, 0};
    double least = 0;
    bool any = false;

    for (unsigned a = 0; a < count; a++) {
        if (plan_used_bytes(&plans[a]) > mean)
            continue;
        for (unsigned b = 0; b < count; b++) {
            struct mix mix = mix_of(&plans[a], &plans[b], mean);
            double cost = mixed(&mix, plan_cost_ns(request, mix.a), plan_cost_ns(request, mix.b));

            if (!any || cost < least * (1 - 1e-12)) {
                any = true;
                least = cost;
                best = mix;
            }
        }
    }
    return best;
}

/* Plans for a layer with the mean budget, and with up to a full expert less and more. Returns their number or
 * -errno. */
static int plans_around(const struct efs_plan_request *request, uint64_t mean_bytes, struct efs_plan plans[POINTS])
{
    const uint64_t step = request->expert_bytes[EFS_POOL_F] / AROUND;
    struct efs_plan_layer_state layer;
    int count = 0, rc = efs_plan_open(&layer, request);

    if (rc)
        return rc;
    for (unsigned i = AROUND; i > 0 && !rc; i--)
        if (i * step <= mean_bytes)
            rc = efs_plan_search(&layer, mean_bytes - i * step, &plans[count++]);
    for (unsigned i = 0; i <= AROUND && !rc; i++)
        rc = efs_plan_search(&layer, mean_bytes + i * step, &plans[count++]);
    efs_plan_close(&layer);
    return rc ? rc : count;
}

int efs_plan_share(const struct efs_plan_request *request, unsigned layers, uint64_t budget_bytes,
                   struct efs_plan_shared *shared)
{
    struct efs_plan plans[POINTS];
    struct mix mix;
    int count;

    if (!layers || layers > EFS_PLAN_MAX_LAYERS)
        return -EINVAL;
    count = plans_around(request, budget_bytes / layers, plans);
    if (count < 0)
        return count;
    mix = mix_best(request, plans, (unsigned)count, (double)budget_bytes / layers);
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        shared->experts[p] = mixed(&mix, mix.a->capacity[p], mix.b->capacity[p]);
        shared->hits[p] = mixed(&mix, mix.a->hits[p], mix.b->hits[p]);
        shared->pool_bytes[p] =
            (uint64_t)(layers * mixed(&mix, (double)mix.a->used_bytes[p], (double)mix.b->used_bytes[p]));
    }
    for (unsigned p = 0; p < EFS_POOLS; p++) /* rounding of the mix may exceed the budget by bytes */
        while (shared->pool_bytes[p] && pool_bytes_sum(shared->pool_bytes) > budget_bytes)
            shared->pool_bytes[p]--;
    shared->makespan_ns = mixed(&mix, mix.a->makespan_ns, mix.b->makespan_ns);
    shared->io_ns = mixed(&mix, mix.a->io_ns, mix.b->io_ns);
    return 0;
}
