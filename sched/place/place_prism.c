/* SPDX-License-Identifier: Apache-2.0 */
/* place_prism.c - Algorithms 1 and 2 of Prism, with choices where the paper is not specific. */
#include "place_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Algorithm 1: counts ----------------------------------------------------------------------------------------- */

/* v of a server's layer, in bits; 0 without any calls. */
static double layer_entropy(const struct efs_place_problem *p, uint32_t n, uint32_t l)
{
    const double *f = p->calls + efs_place_at(p, n, l, 0);
    double sum = 0, entropy = 0;
    for (uint32_t e = 0; e < p->experts; e++)
        sum += f[e];
    for (uint32_t e = 0; e < p->experts; e++)
        if (f[e] > 0)
            entropy -= f[e] / sum * log2(f[e] / sum);
    return entropy > 0 ? entropy : 0; /* rounding may make it negative */
}

/* Divides a server's slots by entropy, rounded down; the remaining slots go to the largest remainders. */
static void share_slots(const struct efs_place_problem *p, uint32_t n, uint32_t *count, struct efs_place_item *rest)
{
    uint64_t slots = efs_place_slots(p, n), left = slots;
    double sum = 0;
    for (uint32_t l = 0; l < p->layers; l++)
        sum += layer_entropy(p, n, l);
    for (uint32_t l = 0; l < p->layers; l++) {
        double share = sum > 0 ? (double)slots * layer_entropy(p, n, l) / sum : (double)slots / p->layers;
        count[l] = share < p->experts ? (uint32_t)share : p->experts;
        count[l] = count[l] < left ? count[l] : (uint32_t)left;
        left -= count[l];
        rest[l] = (struct efs_place_item){share - count[l], l};
    }
    efs_place_sort(rest, p->layers);
    while (left > 0)
        for (uint32_t i = 0; i < p->layers && left > 0; i++)
            if (count[rest[i].item] < p->experts) {
                count[rest[i].item]++;
                left--;
            }
}

/* Step 2: layers that lack experts borrow, server by server, from the layer with the most. */
static void borrow_slots(const struct efs_place_problem *p, uint32_t *counts, uint64_t *total,
                         const struct efs_place_item *by_memory)
{
    for (uint32_t l = 0; l < p->layers; l++)
        while (total[l] < p->experts)
            for (uint32_t k = 0; k < p->servers && total[l] < p->experts; k++) {
                uint32_t *count = counts + (size_t)by_memory[k].item * p->layers, most = 0;
                for (uint32_t other = 1; other < p->layers; other++)
                    most = total[other] > total[most] ? other : most;
                if (count[most] == 0 || total[most] <= p->experts)
                    continue;
                count[most]--;
                count[l]++;
                total[most]--;
                total[l]++;
            }
}

int efs_place_counts(const struct efs_place_problem *p, uint32_t *counts)
{
    int rc = efs_place_check(p);
    if (rc < 0)
        return rc;
    uint32_t most = p->layers > p->servers ? p->layers : p->servers;
    struct efs_place_item *items = calloc(most, sizeof(*items));
    uint64_t *total = calloc(p->layers, sizeof(*total));
    if (items && total) {
        for (uint32_t n = 0; n < p->servers; n++) {
            uint32_t *count = counts + (size_t)n * p->layers;
            share_slots(p, n, count, items);
            for (uint32_t l = 0; l < p->layers; l++)
                total[l] += count[l];
        }
        for (uint32_t n = 0; n < p->servers; n++)
            items[n] = (struct efs_place_item){(double)efs_place_slots(p, n), n};
        efs_place_sort(items, p->servers);
        borrow_slots(p, counts, total, items);
    } else {
        rc = -ENOMEM;
    }
    free(items);
    free(total);
    return rc;
}

/* ---- Algorithm 2: experts ---------------------------------------------------------------------------------------- */

struct layer_state { /* of one layer */
    const struct efs_place_problem *problem;
    uint32_t layer, uncovered;
    uint8_t *placement;
    uint32_t *holders;            /* [experts] */
    struct efs_place_item *items; /* room for all experts or all servers */
};

static void take_top(struct layer_state *s, uint32_t n, uint32_t count)
{
    const struct efs_place_problem *p = s->problem;
    for (uint32_t e = 0; e < p->experts; e++)
        s->items[e] = (struct efs_place_item){p->calls[efs_place_at(p, n, s->layer, e)], e};
    efs_place_sort(s->items, p->experts);
    for (uint32_t i = 0; i < count; i++) {
        s->placement[efs_place_at(p, n, s->layer, s->items[i].item)] = 1;
        s->uncovered -= s->holders[s->items[i].item]++ == 0;
    }
}

static uint32_t count_duplicates(const struct layer_state *s, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < s->problem->experts; e++)
        count += s->placement[efs_place_at(s->problem, n, s->layer, e)] && s->holders[e] > 1;
    return count;
}

/* Replaces the least used duplicate by the most frequent uncovered expert; skips a server without a duplicate. */
static void cover_one(struct layer_state *s, uint32_t n)
{
    const struct efs_place_problem *p = s->problem;
    const double *f = p->calls + efs_place_at(p, n, s->layer, 0);
    uint8_t *placement = s->placement + efs_place_at(p, n, s->layer, 0);
    uint32_t in = p->experts, out = p->experts;
    for (uint32_t e = 0; e < p->experts; e++) {
        if (s->holders[e] == 0 && (in == p->experts || f[e] > f[in]))
            in = e;
        if (placement[e] && s->holders[e] > 1 && (out == p->experts || f[e] < f[out]))
            out = e;
    }
    if (in == p->experts || out == p->experts)
        return;
    placement[out] = 0;
    placement[in] = 1;
    s->holders[out]--;
    s->holders[in]++;
    s->uncovered--;
}

static void assign_layer(struct layer_state *s, const uint32_t *counts)
{
    const struct efs_place_problem *p = s->problem;
    memset(s->holders, 0, p->experts * sizeof(*s->holders));
    s->uncovered = p->experts;
    for (uint32_t n = 0; n < p->servers; n++)
        take_top(s, n, counts[(size_t)n * p->layers + s->layer]);
    while (s->uncovered > 0) { /* ends: an uncovered expert implies a duplicate */
        for (uint32_t n = 0; n < p->servers; n++)
            s->items[n] = (struct efs_place_item){-(double)count_duplicates(s, n), n};
        efs_place_sort(s->items, p->servers);
        for (uint32_t k = 0; k < p->servers && s->uncovered > 0; k++)
            cover_one(s, s->items[k].item);
    }
}

int efs_place_assign(const struct efs_place_problem *p, const uint32_t *counts, uint8_t *placement)
{
    int rc = efs_place_check(p);
    if (rc < 0)
        return rc;
    for (uint32_t l = 0; l < p->layers; l++) {
        uint64_t total = 0;
        for (uint32_t n = 0; n < p->servers; n++) {
            if (counts[(size_t)n * p->layers + l] > p->experts)
                return -EINVAL;
            total += counts[(size_t)n * p->layers + l];
        }
        if (total < p->experts)
            return -ENOSPC;
    }
    memset(placement, 0, efs_place_at(p, p->servers, 0, 0));
    uint32_t most = p->experts > p->servers ? p->experts : p->servers;
    struct layer_state s = {.problem = p,
                            .placement = placement,
                            .holders = calloc(p->experts, sizeof(*s.holders)),
                            .items = calloc(most, sizeof(*s.items))};
    rc = s.holders && s.items ? 0 : -ENOMEM;
    for (; rc == 0 && s.layer < p->layers; s.layer++)
        assign_layer(&s, counts);
    free(s.holders);
    free(s.items);
    return rc;
}

int efs_place_prism(const struct efs_place_problem *p, uint8_t *placement)
{
    uint32_t *counts = calloc((size_t)p->servers * p->layers, sizeof(*counts));
    int rc = counts ? efs_place_counts(p, counts) : -ENOMEM;
    if (rc == 0)
        rc = efs_place_assign(p, counts, placement);
    free(counts);
    return rc;
}
