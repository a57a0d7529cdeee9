/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_gain.c - our rule by calls: places each copy where it saves most calls, under coverage.
 *
 * All experts have the same size, so the best set for a server is its most called experts. Experts without a holder are
 * then placed, the most called first, on the server where that costs least: the loss of the server's least duplicate
 * minus the expert's own gain there. Then single copies move to other servers, or are exchanged, while that saves more.
 * If Prism's placement is better, the rule returns that.
 */
#include "place_internal.h"

#include <errno.h>

#define ROUNDS_MAX 8 /* of moves and exchanges; usually few are needed */

struct gain {
    struct efs_tables tables;
    const struct efs_place_problem *problem;
    size_t all; /* experts of all layers */
    uint8_t *placement;
    uint32_t *holders;
    struct efs_place_item *order; /* [servers][all]: by falling gain */
    size_t *low, *top;            /* [servers]: indices in order where the searches of this round continue */
    struct efs_place_item *ours, *theirs;
};

static double gain_of(const struct gain *g, uint32_t n, size_t item)
{
    return g->problem->calls[n * g->all + item] * g->problem->server[n].remote_s;
}

static int gain_open(struct gain *g, const struct efs_place_problem *p, uint8_t *placement)
{
    *g = (struct gain){.problem = p, .all = (size_t)p->layers * p->experts, .placement = placement};
    EFS_TABLE(&g->tables, g->holders, g->all);
    EFS_TABLE(&g->tables, g->order, p->servers * g->all);
    EFS_TABLE(&g->tables, g->low, p->servers);
    EFS_TABLE(&g->tables, g->top, p->servers);
    EFS_TABLE(&g->tables, g->ours, g->all);
    EFS_TABLE(&g->tables, g->theirs, g->all);
    if (g->tables.failed)
        return -ENOMEM;
    for (uint32_t n = 0; n < p->servers; n++) {
        struct efs_place_item *order = g->order + n * g->all;
        for (size_t i = 0; i < g->all; i++)
            order[i] = (struct efs_place_item){gain_of(g, n, i), (uint32_t)i};
        efs_place_sort(order, g->all);
    }
    return 0;
}

static void gain_rewind(struct gain *g)
{
    for (uint32_t n = 0; n < g->problem->servers; n++) {
        g->low[n] = g->all;
        g->top[n] = 0;
    }
}

/* The server's duplicate of least gain below low, or all. Duplicates that appear at or after low are found in the next
 * round. */
static size_t gain_low(struct gain *g, uint32_t n)
{
    while (g->low[n] > 0) {
        size_t item = g->order[n * g->all + g->low[n] - 1].item;
        if (g->placement[n * g->all + item] && g->holders[item] > 1)
            return item;
        g->low[n]--;
    }
    return g->all;
}

/* The missing expert of most gain from top on, or all. */
static size_t gain_top(struct gain *g, uint32_t n)
{
    while (g->top[n] < g->all && g->placement[n * g->all + g->order[n * g->all + g->top[n]].item])
        g->top[n]++;
    return g->top[n] < g->all ? g->order[n * g->all + g->top[n]].item : g->all;
}

static void gain_set(struct gain *g, uint32_t n, size_t item, bool is_placed)
{
    g->placement[n * g->all + item] = is_placed;
    g->holders[item] += is_placed ? 1 : UINT32_MAX;
}

static void gain_cover(struct gain *g)
{
    const struct efs_place_problem *p = g->problem;
    size_t count = 0;
    for (size_t i = 0; i < g->all; i++) {
        double most = 0;
        for (uint32_t n = 0; n < p->servers && g->holders[i] == 0; n++)
            most = gain_of(g, n, i) > most ? gain_of(g, n, i) : most;
        if (g->holders[i] == 0)
            g->ours[count++] = (struct efs_place_item){most, (uint32_t)i};
    }
    efs_place_sort(g->ours, count);
    for (size_t k = 0; k < count; k++) {
        size_t item = g->ours[k].item;
        uint32_t best = p->servers;
        double best_cost = 0;
        for (uint32_t n = 0; n < p->servers; n++) {
            size_t low = gain_low(g, n);
            double cost = low < g->all ? gain_of(g, n, low) - gain_of(g, n, item) : 0;
            if (low < g->all && (best == p->servers || cost < best_cost)) {
                best = n;
                best_cost = cost;
            }
        }
        if (best == p->servers) /* efs_place_check() has ensured slots for all experts */
            return;
        gain_set(g, best, gain_low(g, best), false);
        gain_set(g, best, item, true);
    }
}

/* Moves the only copy of an expert to the server with the best total gain, where it replaces the least duplicate; the
 * old server gets its best missing expert. False: no move has a gain. */
static bool gain_move(struct gain *g, uint32_t from, size_t item)
{
    const struct efs_place_problem *p = g->problem;
    size_t in = gain_top(g, from);
    double here = (in < g->all ? gain_of(g, from, in) : 0) - gain_of(g, from, item), best_gain = 1e-12;
    uint32_t best = p->servers;
    for (uint32_t n = 0; n < p->servers; n++) {
        size_t low = n == from ? g->all : gain_low(g, n);
        double gain = low < g->all ? here + gain_of(g, n, item) - gain_of(g, n, low) : 0;
        if (gain > best_gain) {
            best = n;
            best_gain = gain;
        }
    }
    if (best == p->servers)
        return false;
    gain_set(g, best, gain_low(g, best), false);
    gain_set(g, best, item, true);
    gain_set(g, from, item, false);
    if (in < g->all)
        gain_set(g, from, in, true);
    return true;
}

static bool gain_moves(struct gain *g)
{
    bool any = false;
    for (uint32_t n = 0; n < g->problem->servers; n++)
        for (size_t i = 0; i < g->all; i++)
            if (g->placement[n * g->all + i] && g->holders[i] == 1)
                any |= gain_move(g, n, i);
    return any;
}

/* The single copies on one server, by falling gain of a transfer to the other. */
static size_t gain_wanted(const struct gain *g, uint32_t from, uint32_t to, struct efs_place_item *items)
{
    size_t count = 0;
    for (size_t i = 0; i < g->all; i++)
        if (g->placement[from * g->all + i] && g->holders[i] == 1)
            items[count++] = (struct efs_place_item){gain_of(g, to, i) - gain_of(g, from, i), (uint32_t)i};
    efs_place_sort(items, count);
    return count;
}

static bool gain_exchanges(struct gain *g)
{
    bool any = false;
    for (uint32_t a = 0; a < g->problem->servers; a++)
        for (uint32_t b = a + 1; b < g->problem->servers; b++) {
            size_t ours = gain_wanted(g, a, b, g->ours), theirs = gain_wanted(g, b, a, g->theirs);
            for (size_t i = 0; i < ours && i < theirs && g->ours[i].worth + g->theirs[i].worth > 1e-12; i++) {
                gain_set(g, b, g->ours[i].item, true);
                gain_set(g, a, g->ours[i].item, false);
                gain_set(g, a, g->theirs[i].item, true);
                gain_set(g, b, g->theirs[i].item, false);
                any = true;
            }
        }
    return any;
}

int efs_place_gain(const struct efs_place_problem *p, uint8_t *placement)
{
    struct gain g;
    int rc = gain_open(&g, p, placement);
    if (rc == 0) {
        for (uint32_t n = 0; n < p->servers; n++)
            for (uint64_t i = 0, slots = efs_place_slots(p, n); i < slots; i++)
                gain_set(&g, n, g.order[n * g.all + i].item, true);
        gain_rewind(&g);
        gain_cover(&g);
        bool any = true;
        for (unsigned round = 0; any && round < ROUNDS_MAX; round++) {
            gain_rewind(&g);
            any = gain_moves(&g);
            any |= gain_exchanges(&g);
        }
        rc = efs_place_replace_if_cheaper(p, efs_place_prism, efs_place_remote_s, placement);
    }
    efs_tables_free(&g.tables);
    return rc;
}
