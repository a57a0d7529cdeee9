/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner.c - Algorithm 4 of ZipMoE: the grid search over splits of a layer's memory.
 */
#include "planner_layer.h"

#include <errno.h>
#include <stdlib.h>

/* Set of capacities already added: splits that round to the same experts cost the same. */
struct seen {
    uint64_t *slot; /* 0: free; else the four capacities, 15 bits each, and the top bit */
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

/* There are at most C(steps + 3, 3) splits of steps into the allowed pools. Allocates a power of two of slots, at least
 * twice that. */
static int seen_new(struct seen *seen, unsigned steps)
{
    size_t splits = (size_t)(steps + 1) * (steps + 2) * (steps + 3) / 6, slots = 64;

    while (slots < 2 * splits)
        slots *= 2;
    seen->mask = slots - 1;
    seen->slot = calloc(slots, sizeof(*seen->slot));
    return seen->slot ? 0 : -ENOMEM;
}

/* Lines 6 to 12: the most experts that fit into each pool's share, assigned to the ranks in order. */
static void capacity_pack(const struct efs_plan_layer_state *layer, uint64_t budget, const unsigned parts[EFS_POOLS],
                          unsigned capacity[EFS_POOLS])
{
    unsigned left = layer->request->experts;

    for (unsigned p = 0; p < EFS_POOLS; p++) {
        /* budget * parts / steps without overflow, as budget may have any size */
        uint64_t share = budget / layer->steps * parts[p] + budget % layer->steps * parts[p] / layer->steps;
        uint64_t fits = share / layer->request->expert_bytes[p];

        capacity[p] = fits < left ? (unsigned)fits : left;
        left -= capacity[p];
    }
}

/* Assigns memory left by rounding to the first allowed pools in which another expert fits. */
static void capacity_fill(const struct efs_plan_layer_state *layer, uint64_t budget, unsigned capacity[EFS_POOLS])
{
    const struct efs_plan_request *r = layer->request;
    unsigned left = r->experts;

    for (unsigned p = 0; p < EFS_POOLS; p++) {
        budget -= capacity[p] * r->expert_bytes[p];
        left -= capacity[p];
    }
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        uint64_t fits = r->pools & EFS_PLAN_POOL(p) ? budget / r->expert_bytes[p] : 0;
        unsigned more = fits < left ? (unsigned)fits : left;

        capacity[p] += more;
        left -= more;
        budget -= more * r->expert_bytes[p];
    }
}

/* A candidate split. */
struct split {
    uint16_t capacity[EFS_POOLS];
    double io_ns;    /* 0 unless I/O is the goal */
    double bound_ns; /* lower bound of the makespan */
};

struct search {
    struct efs_plan_layer_state *layer;
    uint64_t budget;
    struct seen seen;
    struct split *splits; /* the distinct ones, in order */
    size_t count, room;
    double least_io_ns, least_ns;
    const struct split *best;
};

/* By more than rounding, so that the first of equal splits is kept. */
static bool is_clearly_less(double a, double b)
{
    return a < b * (1 - 1e-12) - 1e-9;
}

/* Adds a split, unless an earlier one rounded to the same experts, with a lower bound of its cost: a mean of maxima is
 * at least the maximum of the means. */
static int search_add_split(struct search *search, const unsigned parts[EFS_POOLS])
{
    const struct efs_plan_request *request = search->layer->request;
    unsigned capacity[EFS_POOLS];
    struct efs_share mean;
    struct split *split;

    capacity_pack(search->layer, search->budget, parts, capacity);
    if (request->fill)
        capacity_fill(search->layer, search->budget, capacity);
    if (seen_before(&search->seen, capacity))
        return 0;
    if (search->count == search->room) {
        size_t room = search->room ? 2 * search->room : 256;
        struct split *more = realloc(search->splits, room * sizeof(*more));

        if (!more)
            return -ENOMEM;
        search->splits = more;
        search->room = room;
    }
    split = &search->splits[search->count++];
    mean = efs_plan_expect_share(search->layer, capacity);
    for (unsigned p = 0; p < EFS_POOLS; p++)
        split->capacity[p] = (uint16_t)capacity[p];
    split->io_ns = request->goal == EFS_PLAN_IO ? mean.io_ns : 0;
    split->bound_ns = mean.io_ns > mean.cpu_ns ? mean.io_ns : mean.cpu_ns;
    return 0;
}

static int search_judge(struct search *search, const struct split *split, double *ns)
{
    unsigned capacity[EFS_POOLS];

    for (unsigned p = 0; p < EFS_POOLS; p++)
        capacity[p] = split->capacity[p];
    return efs_plan_expect(search->layer, capacity, ns);
}

/* The split with the least I/O, and of those with the least bound: close to the best. */
static const struct split *search_likely(const struct search *search)
{
    const struct split *best = search->splits;

    for (const struct split *s = best + 1; s < search->splits + search->count; s++)
        if (is_clearly_less(s->io_ns, best->io_ns) ||
            (!is_clearly_less(best->io_ns, s->io_ns) && s->bound_ns < best->bound_ns))
            best = s;
    return best;
}

/* Evaluates every split that can be the best. */
static int search_choose(struct search *search)
{
    const struct split *guess = search_likely(search);
    double enough, ns;
    int rc = search_judge(search, guess, &enough);

    for (const struct split *s = search->splits; rc == 0 && s < search->splits + search->count; s++) {
        if (is_clearly_less(guess->io_ns, s->io_ns) || s->bound_ns * (1 - 1e-9) > enough)
            continue;
        rc = search_judge(search, s, &ns);
        if (rc == 0 && (!search->best || is_clearly_less(s->io_ns, search->least_io_ns) ||
                        is_clearly_less(ns, search->least_ns))) {
            search->least_io_ns = s->io_ns;
            search->least_ns = ns;
            search->best = s;
        }
    }
    return rc;
}

/* Line 5: enumerates the splits of the remaining steps over the pools from `pool` on. */
static int search_each_split(struct search *search, unsigned pool, unsigned left, unsigned parts[EFS_POOLS])
{
    unsigned allowed = search->layer->request->pools >> pool;
    int rc = 0;

    if (!(allowed & 1)) {
        parts[pool] = 0;
        return search_each_split(search, pool + 1, left, parts);
    }
    if (allowed == 1) { /* the last allowed pool takes the rest */
        parts[pool] = left;
        for (unsigned p = pool + 1; p < EFS_POOLS; p++)
            parts[p] = 0;
        return search_add_split(search, parts);
    }
    for (unsigned part = left + 1; part-- > 0 && !rc;) {
        parts[pool] = part;
        rc = search_each_split(search, pool + 1, left - part, parts);
    }
    return rc;
}

int efs_plan_search(struct efs_plan_layer_state *layer, uint64_t budget_bytes, struct efs_plan *plan)
{
    struct search search = {.layer = layer, .budget = budget_bytes};
    unsigned parts[EFS_POOLS];
    int rc = seen_new(&search.seen, layer->steps);

    if (!rc)
        rc = search_each_split(&search, 0, layer->steps, parts);
    free(search.seen.slot);
    if (!rc)
        rc = search_choose(&search);
    for (unsigned p = 0; !rc && p < EFS_POOLS; p++)
        parts[p] = search.best->capacity[p];
    free(search.splits);
    return rc ? rc : efs_plan_fill_in(layer, parts, plan);
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
    rc = efs_plan_fill_in(&layer, cut, plan);
    efs_plan_close(&layer);
    return rc;
}
