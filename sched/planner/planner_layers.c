/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_layers.c - one budget over layers that differ: more memory where it saves more time.
 *
 * Every layer is planned for each multiple of a quantum, which gives its time as a function of its memory; these curves
 * need not be convex, as experts are whole, so the best sum is found by dynamic programming over layers and quanta and
 * not by taking the steepest step each time.
 */
#include "planner_layer.h"

#include <errno.h>
#include <stdlib.h>

/* A layer's time by quanta: a plan is made again for the one that wins, so that not all need to be kept. */
static int layer_cost_curve(const struct efs_plan_request *request, uint64_t quantum_bytes, unsigned most, double *ns)
{
    struct efs_plan_layer_state layer;
    struct efs_plan plan;
    int rc = efs_plan_open(&layer, request);

    for (unsigned j = 0; j <= most && !rc; j++) {
        rc = efs_plan_search(&layer, j * quantum_bytes, &plan);
        ns[j] = plan.makespan_ns;
    }
    if (layer.table)
        efs_plan_close(&layer);
    return rc;
}

/* One more layer: least[b] of the layers so far with b quanta in all, and how many of them this one takes. */
static void layers_add_curve(const double *curve, unsigned most, unsigned total, const double *before, double *least,
                             uint16_t *take)
{
    for (unsigned b = 0; b <= total; b++) {
        for (unsigned j = 0; j <= most && j <= b; j++) {
            double ns = before[b - j] + curve[j];

            if (j == 0 || ns < least[b] * (1 - 1e-12)) {
                least[b] = ns;
                take[b] = (uint16_t)j;
            }
        }
    }
}

int efs_plan_layers(const struct efs_plan_request *requests, unsigned count, uint64_t budget_bytes, unsigned quanta,
                    struct efs_plan *plans, double *total_ns)
{
    unsigned total = count * quanta, most = 4 * quanta < total ? 4 * quanta : total;
    uint64_t quantum_bytes;
    double *work, *before, *least;
    uint16_t *take;
    int rc = 0;

    if (count > EFS_PLAN_MAX_LAYERS)
        return -E2BIG;
    if (!count || !quanta || quanta > 64)
        return -EINVAL;
    quantum_bytes = budget_bytes / total;
    work = calloc((size_t)(most + 1) + 2 * (size_t)(total + 1), sizeof(*work));
    take = calloc((size_t)count * (total + 1), sizeof(*take));
    if (!work || !take) {
        free(work);
        free(take);
        return -ENOMEM;
    }
    before = work + most + 1;
    least = before + total + 1;
    for (unsigned l = 0; l < count && !rc; l++) {
        double *swap = before;

        rc = layer_cost_curve(&requests[l], quantum_bytes, most, work);
        if (rc)
            break;
        layers_add_curve(work, most, total, before, least, take + (size_t)l * (total + 1));
        before = least;
        least = swap;
    }
    if (!rc && total_ns)
        *total_ns = before[total];
    for (unsigned l = count, left = total; l-- > 0 && !rc;) {
        struct efs_plan_request request = requests[l];
        unsigned mine = take[(size_t)l * (total + 1) + left];

        request.budget_bytes = mine * quantum_bytes;
        rc = efs_plan_layer(&request, &plans[l]);
        left -= mine;
    }
    free(work);
    free(take);
    return rc;
}
