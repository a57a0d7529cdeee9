/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_layer.c - prepares one layer for the grid search, and computes the expected cost of a split of its memory.
 */
#include "planner_layer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipf.h"

/* 16 TiB is more than any expert; sums over 4096 experts and products with 100 steps then fit in 64 bits. */
#define MAX_EXPERT_BYTES (UINT64_C(1) << 44)

static bool is_time(double ns)
{
    return ns >= 0 && isfinite(ns);
}

static int plan_request_check(const struct efs_plan_request *r)
{
    const struct efs_cost *cost = &r->cost;

    if (!r->inclusion || !r->experts || r->experts > EFS_PLAN_MAX_EXPERTS || !r->chosen || r->chosen > r->experts ||
        r->chosen > EFS_PLAN_MAX_CHOSEN)
        return -EINVAL;
    if ((r->goal != EFS_PLAN_MAKESPAN && r->goal != EFS_PLAN_IO) || !(r->step >= 0.01 && r->step <= 1) || !r->pools ||
        r->pools & ~EFS_PLAN_ALL_POOLS)
        return -EINVAL;
    if (!is_time(cost->sm_read_ns) || !is_time(cost->e_read_ns) || !is_time(cost->decode_ns) ||
        !is_time(cost->request_ns))
        return -EINVAL;
    for (unsigned p = 0; p < EFS_POOLS; p++)
        if (!r->expert_bytes[p] || r->expert_bytes[p] > MAX_EXPERT_BYTES)
            return -EINVAL;
    return 0;
}

/* Prefix sums, so that the sum over any range of ranks is one subtraction. */
static int layer_lay_out(struct efs_plan_layer_state *layer)
{
    const struct efs_plan_request *r = layer->request;

    layer->f = calloc((size_t)r->experts + 1, sizeof(*layer->f));
    if (!layer->f)
        return -ENOMEM;
    for (unsigned i = 0; i < r->experts; i++)
        layer->f[i + 1] = layer->f[i] + r->inclusion[i];
    return 0;
}

int efs_plan_open(struct efs_plan_layer_state *layer, const struct efs_plan_request *request)
{
    double *q;
    int rc = plan_request_check(request);

    memset(layer, 0, sizeof(*layer));
    if (rc)
        return rc;
    layer->request = request;
    layer->steps = (unsigned)lround(1 / request->step);
    for (unsigned p = 0; p <= EFS_POOLS; p++)
        layer->share[p] = efs_makespan_share(&request->cost, p);
    q = malloc(request->experts * sizeof(*q));
    if (!q)
        return -ENOMEM;
    rc = efs_ipf_fit(request->inclusion, request->experts, request->chosen, q);
    if (!rc) {
        const double *row;

        layer->table = efs_hits_table_new(q, request->experts, request->chosen);
        row = layer->table ? efs_hits_range(layer->table, 0, request->experts) : NULL;
        if (row)
            layer->all = row[request->chosen];
        rc = row ? layer_lay_out(layer) : -ENOMEM;
    }
    free(q);
    if (rc)
        efs_plan_close(layer);
    return rc;
}

void efs_plan_close(struct efs_plan_layer_state *layer)
{
    efs_hits_table_free(layer->table);
    free(layer->f);
    memset(layer, 0, sizeof(*layer));
}

/* A pool in the sum over hit patterns. */
struct interval {
    const double *phi;
    struct efs_share share; /* of one hit */
    unsigned most;          /* upper bound of the hits */
};

/* Divides the ranks into the pools' intervals, the missing ones last. */
static int layer_cut(struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS],
                     struct interval interval[EFS_POOLS + 1])
{
    const struct efs_plan_request *r = layer->request;
    unsigned first = 0;

    for (unsigned p = 0; p <= EFS_POOLS; p++) {
        unsigned count = p == EFS_POOL_M ? r->experts - first : capacity[p];
        struct interval *in = &interval[p];

        in->phi = efs_hits_range(layer->table, first, count);
        if (!in->phi)
            return -ENOMEM;
        in->share = layer->share[p];
        in->most = count < r->chosen ? count : r->chosen;
        first += count;
    }
    return 0;
}

static struct efs_share share_plus(struct efs_share a, double times, struct efs_share b)
{
    return (struct efs_share){a.io_ns + times * b.io_ns, a.cpu_ns + times * b.cpu_ns};
}

/* The innermost sum of Algorithm 4: over h_E, with the rest of the chosen missing. */
static double layer_sum_over_e(const struct efs_plan_layer_state *layer, const struct interval *e,
                               const struct interval *m, unsigned left, struct efs_share base, bool reads)
{
    unsigned most = left < e->most ? left : e->most;
    double sum = 0;

    for (unsigned h = 0; h <= most; h++) {
        unsigned missing = left - h;
        struct efs_share work;

        if (missing > m->most)
            continue;
        work = share_plus(share_plus(base, h, e->share), missing, m->share);
        sum += e->phi[h] * m->phi[missing] * efs_makespan_of(&layer->request->cost, work, reads || h || missing);
    }
    return sum;
}

int efs_plan_expect(struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS], double *makespan_ns)
{
    struct interval in[EFS_POOLS + 1];
    unsigned k = layer->request->chosen;
    double sum = 0;
    int rc = layer_cut(layer, capacity, in);

    if (rc)
        return rc;
    for (unsigned f = 0; f <= in[EFS_POOL_F].most; f++) {
        struct efs_share with_f = share_plus((struct efs_share){0}, f, in[EFS_POOL_F].share);

        for (unsigned c = 0; c <= in[EFS_POOL_C].most && f + c <= k; c++) {
            struct efs_share with_c = share_plus(with_f, c, in[EFS_POOL_C].share);
            double p_fc = in[EFS_POOL_F].phi[f] * in[EFS_POOL_C].phi[c];

            for (unsigned s = 0; s <= in[EFS_POOL_S].most && f + c + s <= k; s++) {
                struct efs_share with_s = share_plus(with_c, s, in[EFS_POOL_S].share);

                sum += p_fc * in[EFS_POOL_S].phi[s] *
                       layer_sum_over_e(layer, &in[EFS_POOL_E], &in[EFS_POOL_M], k - f - c - s, with_s, s > 0);
            }
        }
    }
    *makespan_ns = sum / layer->all;
    return 0;
}

struct efs_share efs_plan_expect_share(const struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS])
{
    struct efs_share mean = {0};
    unsigned first = 0;

    for (unsigned p = 0; p <= EFS_POOLS; p++) {
        unsigned count = p == EFS_POOL_M ? layer->request->experts - first : capacity[p];

        mean = share_plus(mean, layer->f[first + count] - layer->f[first], layer->share[p]);
        first += count;
    }
    return mean;
}

int efs_plan_fill_in(struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS], struct efs_plan *plan)
{
    unsigned first = 0;

    plan->io_ns = efs_plan_expect_share(layer, capacity).io_ns;
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        plan->capacity[p] = capacity[p];
        plan->used_bytes[p] = capacity[p] * layer->request->expert_bytes[p];
        plan->hits[p] = layer->f[first + capacity[p]] - layer->f[first];
        first += capacity[p];
    }
    return efs_plan_expect(layer, capacity, &plan->makespan_ns);
}
