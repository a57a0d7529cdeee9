/*
 * planner.c - Algorithm 4 of ZipMoE: the grid search over splits of a layer's memory.
 */
#include "planner_layer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Splits that round to the same experts cost the same: a set of those seen. */
struct seen {
    uint64_t *slot; /* 0: free; else the four capacities, 16 bits each, with the top bit set */
    size_t mask;
};

static bool seen_before(struct seen *seen, const unsigned capacity[EFS_POOLS])
{
    uint64_t key = UINT64_C(1) << 63;

    for (unsigned p = 0; p < EFS_POOLS; p++)
        key |= (uint64_t)capacity[p] << (15 * p);
    for (size_t at = key * UINT64_C(0x9E3779B97F4A7C15) >> 32;; at++) {
        uint64_t *slot = &seen->slot[at & seen->mask];

        if (*slot == key)
            return true;
        if (!*slot) {
            *slot = key;
            return false;
        }
    }
}

/* Splits of steps into the allowed pools: at most C(steps + 3, 3). Twice that and more, as a power of two. */
static int seen_new(struct seen *seen, unsigned steps)
{
    size_t splits = (size_t)(steps + 1) * (steps + 2) * (steps + 3) / 6, slots = 64;

    while (slots < 2 * splits)
        slots *= 2;
    seen->mask = slots - 1;
    seen->slot = calloc(slots, sizeof(*seen->slot));
    return seen->slot ? 0 : -ENOMEM;
}

/* Lines 6 to 12: the most experts that fit each pool's share, packed onto the ranks. Returns the bytes used. */
static uint64_t pack(const struct efs_plan_layer_state *layer, uint64_t budget, const unsigned parts[EFS_POOLS],
                     unsigned capacity[EFS_POOLS])
{
    unsigned first = 0;
    uint64_t used = 0;

    for (unsigned p = 0; p < EFS_POOLS; p++) {
        /* budget * parts / steps without overflow, as budget may have any size */
        uint64_t share = budget / layer->steps * parts[p] + budget % layer->steps * parts[p] / layer->steps;

        capacity[p] = parts[p] ? efs_plan_fit(layer, p, first, share) : 0;
        used += efs_plan_bytes(layer, p, first, capacity[p]);
        first += capacity[p];
    }
    return used;
}

static uint64_t bytes_of(const struct efs_plan_layer_state *layer, const unsigned capacity[EFS_POOLS])
{
    unsigned first = 0;
    uint64_t bytes = 0;

    for (unsigned p = 0; p < EFS_POOLS; p++) {
        bytes += efs_plan_bytes(layer, p, first, capacity[p]);
        first += capacity[p];
    }
    return bytes;
}

/* Give what the rounding left to the first allowed pools that one more expert fits. */
static void fill(const struct efs_plan_layer_state *layer, uint64_t budget, unsigned capacity[EFS_POOLS])
{
    const struct efs_plan_request *r = layer->request;
    unsigned cached = capacity[0] + capacity[1] + capacity[2] + capacity[3];

    for (unsigned p = 0; p < EFS_POOLS; p++) {
        while (r->pools & EFS_PLAN_POOL(p) && cached < r->experts) {
            capacity[p]++;
            if (bytes_of(layer, capacity) > budget) {
                capacity[p]--;
                break;
            }
            cached++;
        }
    }
}

struct search {
    struct efs_plan_layer_state *layer;
    uint64_t budget;
    struct seen seen;
    double least_io_ns, least_ns;
    unsigned best[EFS_POOLS], best_parts[EFS_POOLS];
    unsigned points;
};

/* Not for a difference that is only rounding: the first of equals stays. */
static bool less(double a, double b)
{
    return a < b * (1 - 1e-12) - 1e-9;
}

static int try_split(struct search *search, const unsigned parts[EFS_POOLS])
{
    unsigned capacity[EFS_POOLS];
    bool io_first = search->layer->request->goal == EFS_PLAN_IO, first;
    double ns, io_ns;
    int rc;

    pack(search->layer, search->budget, parts, capacity);
    if (search->layer->request->fill)
        fill(search->layer, search->budget, capacity);
    if (seen_before(&search->seen, capacity))
        return 0;
    first = search->points++ == 0;
    io_ns = io_first ? efs_plan_expect_io(search->layer, capacity) : 0;
    if (!first && less(search->least_io_ns, io_ns))
        return 0;
    rc = efs_plan_expect(search->layer, capacity, &ns);
    if (rc)
        return rc;
    if (first || less(io_ns, search->least_io_ns) || less(ns, search->least_ns)) {
        search->least_io_ns = io_ns;
        search->least_ns = ns;
        memcpy(search->best, capacity, sizeof(search->best));
        memcpy(search->best_parts, parts, sizeof(search->best_parts));
    }
    return 0;
}

/* Line 5: all splits of the steps left over the pools from pool on. */
static int each_split(struct search *search, unsigned pool, unsigned left, unsigned parts[EFS_POOLS])
{
    unsigned allowed = search->layer->request->pools >> pool;
    int rc = 0;

    if (!(allowed & 1)) {
        parts[pool] = 0;
        return each_split(search, pool + 1, left, parts);
    }
    if (allowed == 1) { /* the last allowed one takes the rest */
        parts[pool] = left;
        for (unsigned p = pool + 1; p < EFS_POOLS; p++)
            parts[p] = 0;
        return try_split(search, parts);
    }
    for (unsigned part = left + 1; part-- > 0 && !rc;) {
        parts[pool] = part;
        rc = each_split(search, pool + 1, left - part, parts);
    }
    return rc;
}

int efs_plan_search(struct efs_plan_layer_state *layer, uint64_t budget_bytes, struct efs_plan *plan)
{
    struct search search = {.layer = layer, .budget = budget_bytes};
    unsigned parts[EFS_POOLS];
    int rc = seen_new(&search.seen, layer->steps);

    if (!rc)
        rc = each_split(&search, 0, layer->steps, parts);
    free(search.seen.slot);
    if (!rc)
        rc = efs_plan_fill_in(layer, search.best, plan);
    if (rc)
        return rc;
    for (unsigned p = 0; p < EFS_POOLS; p++)
        plan->ratio[p] = (double)search.best_parts[p] / layer->steps;
    plan->budget_bytes = budget_bytes;
    plan->points = search.points;
    return 0;
}

int efs_plan_layer(const struct efs_plan_request *request, struct efs_plan *plan)
{
    struct efs_plan_layer_state layer;
    int rc = efs_plan_open(&layer, request);

    if (rc)
        return rc;
    rc = efs_plan_search(&layer, request->budget_bytes, plan);
    efs_plan_close(&layer);
    return rc;
}

int efs_plan_evaluate(const struct efs_plan_request *request, const unsigned capacity[EFS_POOLS], struct efs_plan *plan)
{
    struct efs_plan_layer_state layer;
    unsigned cut[EFS_POOLS], left = request->experts;
    int rc = efs_plan_open(&layer, request);

    if (rc)
        return rc;
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        cut[p] = capacity[p] < left ? capacity[p] : left;
        left -= cut[p];
    }
    memset(plan, 0, sizeof(*plan));
    rc = efs_plan_fill_in(&layer, cut, plan);
    plan->budget_bytes = request->budget_bytes;
    plan->points = 1;
    for (unsigned p = 0; !rc && p < EFS_POOLS && request->budget_bytes; p++)
        plan->ratio[p] = (double)plan->used_bytes[p] / (double)request->budget_bytes;
    efs_plan_close(&layer);
    return rc;
}
