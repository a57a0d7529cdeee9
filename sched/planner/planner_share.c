/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_share.c - pools that all layers share: the best mix of two plans of whole experts.
 *
 * With whole experts the time of a layer falls in steps as its memory grows. Layers that share a pool need not all be
 * on the same step: if some have a little more and the others a little less, the average is anywhere between, on the
 * lower convex hull of the steps.
 */
#include "planner_layer.h"

#include <errno.h>

#define AROUND 8u /* budgets tried below and above the mean, an eighth of a full expert apart */
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
    /* I/O first means first: the makespan only decides between plans that read alike. */
    return request->goal == EFS_PLAN_IO ? plan->io_ns + 1e-9 * plan->makespan_ns : plan->makespan_ns;
}

/* How much of the mix is plan b, so that both together use mean bytes a layer. */
static double mix_part_of_b(const struct efs_plan *a, const struct efs_plan *b, double mean)
{
    double used_a = plan_used_bytes(a), used_b = plan_used_bytes(b);

    return used_b > used_a ? (mean - used_a) / (used_b - used_a) : 0;
}

int efs_plan_share(const struct efs_plan_request *request, unsigned layers, uint64_t budget_bytes,
                   struct efs_plan_shared *shared)
{
    struct efs_plan_layer_state layer;
    struct efs_plan plan[POINTS];
    double mean, least = 0, part = 0;
    unsigned best_a = 0, best_b = 0, points = 0;
    int rc;

    if (!layers || layers > EFS_PLAN_MAX_LAYERS)
        return -EINVAL;
    rc = efs_plan_open(&layer, request);
    if (rc)
        return rc;
    mean = (double)budget_bytes / layers;
    for (unsigned i = 0; i < POINTS && !rc; i++) {
        uint64_t step = request->expert_bytes[EFS_POOL_F] / AROUND, base = budget_bytes / layers;

        if (i < AROUND && (AROUND - i) * step > base)
            continue; /* below nothing; the mean itself is always tried */
        rc = efs_plan_search(&layer, i < AROUND ? base - (AROUND - i) * step : base + (i - AROUND) * step,
                             &plan[points++]);
    }
    efs_plan_close(&layer);
    if (rc)
        return rc;
    for (unsigned a = 0, any = 0; a < points; a++) {
        if (plan_used_bytes(&plan[a]) > mean)
            continue;
        for (unsigned b = 0; b < points; b++) {
            double x = plan_used_bytes(&plan[b]) >= mean ? mix_part_of_b(&plan[a], &plan[b], mean) : 0;
            double cost = (1 - x) * plan_cost_ns(request, &plan[a]) + x * plan_cost_ns(request, &plan[b]);

            if (!any++ || cost < least * (1 - 1e-12)) {
                least = cost;
                part = x;
                best_a = a;
                best_b = b;
            }
        }
    }
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        const struct efs_plan *a = &plan[best_a], *b = &plan[best_b];

        shared->experts[p] = (1 - part) * a->capacity[p] + part * b->capacity[p];
        shared->hits[p] = (1 - part) * a->hits[p] + part * b->hits[p];
        shared->pool_bytes[p] =
            (uint64_t)(layers * ((1 - part) * (double)a->used_bytes[p] + part * (double)b->used_bytes[p]));
    }
    for (unsigned p = 0; p < EFS_POOLS; p++) /* a byte too many by rounding of the mix */
        while (shared->pool_bytes[p] && pool_bytes_sum(shared->pool_bytes) > budget_bytes)
            shared->pool_bytes[p]--;
    shared->makespan_ns = (1 - part) * plan[best_a].makespan_ns + part * plan[best_b].makespan_ns;
    shared->io_ns = (1 - part) * plan[best_a].io_ns + part * plan[best_b].io_ns;
    return 0;
}
