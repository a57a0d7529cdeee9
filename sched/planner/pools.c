/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pools.c - the planner as one call: costs, skew and budget in, pools out.
 */
#include "pools.h"
#include "task.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define STEP 0.05
#define MAX_BYTES (UINT64_C(1) << 40) /* of an expert */
#define NO_E_BYTES 4                  /* an expert with fewer bytes of E-chunks has none */

static uint64_t round_within(double number, uint64_t least, uint64_t most)
{
    return !(number > (double)least) ? least : number < (double)most ? (uint64_t)(number + 0.5) : most;
}

struct efs_cost efs_pools_cost(const struct efs_pools_costs *c, uint64_t bytes[EFS_POOLS])
{
    unsigned tensors = (unsigned)round_within(c->tensors, 1, EFS_TASK_MAX_TENSORS),
             shards = (unsigned)round_within(c->shards, 1, EFS_TASK_MAX_SHARDS),
             workers = (unsigned)round_within(c->workers, 1, EFS_TASK_MAX_WORKERS);
    double chunks = (double)tensors * shards;

    bytes[EFS_POOL_F] = round_within(c->full_bytes, 1, MAX_BYTES);
    bytes[EFS_POOL_C] = round_within(c->coded_bytes, 1, MAX_BYTES);
    bytes[EFS_POOL_S] = round_within(c->sm_bytes, 1, MAX_BYTES);
    bytes[EFS_POOL_E] = round_within(c->e_bytes, 1, MAX_BYTES);
    return (struct efs_cost){
        .sm_read_ns = (double)bytes[EFS_POOL_S] / tensors / c->disk_bytes_per_second * 1e9,
        .e_read_ns = (double)bytes[EFS_POOL_E] / chunks / c->disk_bytes_per_second * 1e9,
        .decode_ns = (double)bytes[EFS_POOL_F] / chunks / c->decode_bytes_per_second * 1e9,
        .threads = workers,
        .shards = shards,
        .tensors = tensors,
        .extended = true,
        .request_ns = c->read_latency_ns,
    };
}

unsigned efs_pools_possible(const struct efs_pools_costs *costs)
{
    return costs->e_bytes >= NO_E_BYTES ? EFS_PLAN_ALL_POOLS : EFS_PLAN_POOL(EFS_POOL_F) | EFS_PLAN_POOL(EFS_POOL_C);
}

/* The request for the average layer. */
static struct efs_plan_request pools_layer_request(const struct efs_pools_request *r)
{
    unsigned possible = efs_pools_possible(&r->costs);
    struct efs_plan_request request = {.inclusion = r->skew->mean,
                                       .experts = r->skew->experts,
                                       .chosen = r->skew->chosen,
                                       .pools = r->pools ? r->pools & possible : possible,
                                       .step = r->step > 0 ? r->step : STEP,
                                       .goal = r->goal,
                                       .fill = true};

    request.cost = efs_pools_cost(&r->costs, request.expert_bytes);
    return request;
}

/* Plans pools shared by all layers, from the mean of the layers' inclusion lists. */
static int pools_plan_shared(const struct efs_pools_request *r, struct efs_pools *plan)
{
    struct efs_plan_request request = pools_layer_request(r);
    struct efs_plan_shared shared;
    int rc = efs_plan_share(&request, plan->layers, r->budget_bytes, &shared);

    if (rc < 0)
        return rc;
    memcpy(plan->pool_bytes, shared.pool_bytes, sizeof(plan->pool_bytes));
    memcpy(plan->experts, shared.experts, sizeof(plan->experts));
    memcpy(plan->hits, shared.hits, sizeof(shared.hits));
    plan->io_ns = shared.io_ns * plan->layers;
    plan->makespan_ns = shared.makespan_ns * plan->layers;
    return 0;
}

/* ---- pools with given ratios ------------------------------------------------------------------------------------- */

/* Sum of the first `count` inclusion probabilities; count may have a fraction. */
static double inclusion_sum(const double *inclusion, unsigned experts, double count)
{
    double sum = 0;
    unsigned r = 0;

    for (; r < experts && r + 1 <= count; r++)
        sum += inclusion[r];
    return r < experts ? sum + (count - r) * inclusion[r] : sum;
}

/* Makespan of fractional capacities: a mix of layers with one expert fewer and layers with one more, so that their I/O
 * is io_ns. */
static int pools_mix(const struct efs_plan_request *request, const double end[EFS_POOLS], double io_ns,
                     double *makespan_ns)
{
    unsigned fewer[EFS_POOLS], more[EFS_POOLS];
    struct efs_plan a, b;
    double part = 0;
    int rc;

    for (unsigned p = 0; p < EFS_POOLS; p++) {
        double before = p ? end[p - 1] : 0, frac = end[p] - floor(end[p]);

        fewer[p] = (unsigned)(floor(end[p]) - floor(before));
        more[p] = (unsigned)(ceil(end[p]) - ceil(before));
        part = frac > part ? frac : part; /* used if both have the same I/O */
    }
    rc = efs_plan_evaluate(request, fewer, &a);
    if (rc == 0)
        rc = efs_plan_evaluate(request, more, &b);
    if (rc < 0)
        return rc;
    if (fabs(a.io_ns - b.io_ns) > 1e-9 * a.io_ns)
        part = (a.io_ns - io_ns) / (a.io_ns - b.io_ns);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    *makespan_ns = (1 - part) * a.makespan_ns + part * b.makespan_ns;
    return 0;
}

static int pools_plan_ratio(const struct efs_pools_request *r, struct efs_pools *plan)
{
    struct efs_plan_request request = pools_layer_request(r);
    double end[EFS_POOLS], at = 0, sum = 0, io_ns = 0, makespan_ns;
    double left = r->skew->chosen;
    int rc;

    for (unsigned p = 0; p < EFS_POOLS; p++) {
        if (!(r->ratio[p] >= 0 && r->ratio[p] <= 1) || (r->ratio[p] > 0 && !(request.pools & EFS_PLAN_POOL(p))))
            return -EINVAL;
        sum += r->ratio[p];
    }
    if (!(sum <= 1 + 1e-9))
        return -EINVAL;
    for (uint64_t p = 0, room = r->budget_bytes; p < EFS_POOLS; p++) {
        double bytes = r->ratio[p] * (double)r->budget_bytes, experts;

        plan->pool_bytes[p] = bytes < (double)room ? (uint64_t)bytes : room;
        room -= plan->pool_bytes[p];
        experts = (double)plan->pool_bytes[p] / (double)request.expert_bytes[p] / plan->layers;
        plan->experts[p] = at + experts < request.experts ? experts : request.experts - at;
        plan->hits[p] = inclusion_sum(request.inclusion, request.experts, at + plan->experts[p]) -
                        inclusion_sum(request.inclusion, request.experts, at);
        io_ns += plan->hits[p] * efs_makespan_share(&request.cost, (enum efs_pool)p).io_ns;
        left -= plan->hits[p];
        at = end[p] = at + plan->experts[p];
    }
    io_ns += (left > 0 ? left : 0) * efs_makespan_share(&request.cost, EFS_POOL_M).io_ns;
    rc = pools_mix(&request, end, io_ns, &makespan_ns);
    plan->io_ns = io_ns * plan->layers;
    plan->makespan_ns = rc < 0 ? 0 : makespan_ns * plan->layers;
    return rc;
}

/* ---- the public function ----------------------------------------------------------------------------------------- */

static bool pools_request_valid(const struct efs_pools_request *r)
{
    const struct efs_pools_costs *c = &r->costs;

    if (!r->skew || !r->skew->layers || r->pools & ~EFS_PLAN_ALL_POOLS ||
        (r->pools && !(r->pools & efs_pools_possible(c))))
        return false;
    return c->full_bytes > 0 && c->coded_bytes > 0 && c->sm_bytes > 0 && c->e_bytes >= 0 &&
           c->disk_bytes_per_second > 0 && c->decode_bytes_per_second > 0 && c->read_latency_ns >= 0 && r->step <= 1;
}

int efs_pools_plan(const struct efs_pools_request *r, struct efs_pools *plan)
{
    int rc;

    *plan = (struct efs_pools){.layers = r->skew ? r->skew->layers : 0};
    if (!pools_request_valid(r))
        return -EINVAL;
    if (plan->layers > EFS_PLAN_MAX_LAYERS)
        return -E2BIG;
    switch (r->how) {
    case EFS_POOLS_SHARED:
        rc = pools_plan_shared(r, plan);
        break;
    case EFS_POOLS_RATIO:
        rc = pools_plan_ratio(r, plan);
        break;
    default:
        rc = -EINVAL;
    }
    plan->hits[EFS_POOL_M] = r->skew->chosen;
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        plan->hits[EFS_POOL_M] -= plan->hits[p];
        plan->ratio[p] = r->budget_bytes ? (double)plan->pool_bytes[p] / (double)r->budget_bytes : 0;
    }
    if (plan->hits[EFS_POOL_M] < 0) /* rounding */
        plan->hits[EFS_POOL_M] = 0;
    if (rc < 0)
        *plan = (struct efs_pools){0};
    return rc;
}
