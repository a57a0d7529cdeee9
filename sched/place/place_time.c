/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_time.c - our rule by time: the time that a copy saves of a pass, which waits for its slowest expert.
 *
 * A layer waits if any one of its experts is remote, so the last expert of a layer saves more than the first: a server
 * with room for a third of all experts processes a third of its layers without waiting if it holds these completely,
 * but almost none if it holds a third of each. So the experts of a layer, the most called first, are divided into
 * stretches: the edges of the concave hull of the curve of the time saved by the first 1, 2, ... of them. Servers take
 * the stretches that fit, those that save most per expert first. Experts without a holder are then placed, all of a
 * layer at once, where they save most relative to the duplicates they replace. The result is the best of this, the
 * placement by calls and Prism's, by efs_place_wait_s().
 */
#include "place_internal.h"

#include <stdlib.h>

struct stretch {
    double density; /* seconds saved per expert */
    uint32_t layer, begin, end;
};

struct time_state {
    struct efs_tables tables;
    const struct efs_place_problem *problem;
    uint8_t *placement;
    uint32_t *holders;             /* [layers][experts] */
    struct efs_place_item *sorted; /* [layers][experts]: for one server */
    double *saved;                 /* [experts + 1] */
    struct stretch *stretches;     /* [layers * experts] */
    double *loss;                  /* [servers][layers]: waiting time added if all duplicates are dropped */
    uint32_t *duplicates;          /* [servers][layers] */
};

/* Waiting time of a server's layer, with the experts that it holds. */
static double layer_wait(const struct efs_place_problem *p, const uint8_t *placement, uint32_t n, uint32_t l)
{
    const struct efs_place_server *s = &p->server[n];
    const double *f = p->calls + efs_place_at(p, n, l, 0);
    double all_here = 1, calls = 0;
    for (uint32_t e = 0; e < p->experts; e++)
        if (!placement[e]) {
            calls += f[e];
            all_here *= f[e] < s->passes ? 1 - f[e] / s->passes : s->passes > 0 ? 0 : 1;
        }
    return s->passes * s->pass_s * (1 - all_here) + calls * s->call_s;
}

/* saved[m]: time saved by the m most called experts of a layer. */
static void fill_saved(struct time_state *t, uint32_t n, const struct efs_place_item *sorted)
{
    const struct efs_place_problem *p = t->problem;
    const struct efs_place_server *s = &p->server[n];
    double all_here = 1, calls = 0;
    for (uint32_t m = p->experts; m-- > 0;) {
        t->saved[m + 1] = s->passes * s->pass_s * all_here - calls * s->call_s;
        double part = sorted[m].worth < s->passes ? sorted[m].worth / s->passes : s->passes > 0 ? 1 : 0;
        all_here *= 1 - part;
        calls += sorted[m].worth;
    }
    t->saved[0] = s->passes * s->pass_s * all_here - calls * s->call_s;
}

static int compare_stretches(const void *a, const void *b)
{
    const struct stretch *x = a, *y = b;
    if (x->density != y->density)
        return x->density < y->density ? 1 : -1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Adds the edges of the hull; each starts at the end of the one before, with at most its density. */
static size_t add_stretches(struct time_state *t, uint32_t l, size_t count)
{
    const struct efs_place_problem *p = t->problem;
    size_t first = count;
    for (uint32_t m = 0; m < p->experts; m++) {
        struct stretch next = {t->saved[m + 1] - t->saved[m], l, m, m + 1};
        while (count > first && t->stretches[count - 1].density <= next.density) {
            next.begin = t->stretches[--count].begin;
            next.density = (t->saved[m + 1] - t->saved[next.begin]) / (m + 1 - next.begin);
        }
        t->stretches[count++] = next;
    }
    return count;
}

static void take_stretches(struct time_state *t, uint32_t n)
{
    const struct efs_place_problem *p = t->problem;
    uint64_t room = efs_place_slots(p, n);
    size_t count = 0;
    for (uint32_t l = 0; l < p->layers; l++) {
        struct efs_place_item *sorted = t->sorted + (size_t)l * p->experts;
        for (uint32_t e = 0; e < p->experts; e++)
            sorted[e] = (struct efs_place_item){p->calls[efs_place_at(p, n, l, e)], e};
        efs_place_sort(sorted, p->experts);
        fill_saved(t, n, sorted);
        count = add_stretches(t, l, count);
    }
    qsort(t->stretches, count, sizeof(*t->stretches), compare_stretches);
    /* First pass: stretches that fit, skipping later ones of a layer after one that does not. Second pass: fill the
     * rest. */
    for (unsigned whole = 0; whole < 2; whole++)
        for (size_t i = 0; i < count && room > 0; i++) {
            const struct stretch *s = &t->stretches[i];
            uint8_t *placement = t->placement + efs_place_at(p, n, s->layer, 0);
            const struct efs_place_item *sorted = t->sorted + (size_t)s->layer * p->experts;
            bool follows = s->begin == 0 || placement[sorted[s->begin - 1].item];
            if (whole == 0 && (s->end - s->begin > room || !follows))
                continue;
            for (uint32_t m = s->begin; m < s->end && room > 0; m++) {
                room -= !placement[sorted[m].item];
                placement[sorted[m].item] = 1;
            }
        }
}

/* ---- coverage ---------------------------------------------------------------------------------------------------- */

static void weigh_duplicates(struct time_state *t, uint32_t n, uint32_t l)
{
    const struct efs_place_problem *p = t->problem;
    const uint8_t *placement = t->placement + efs_place_at(p, n, l, 0);
    uint8_t without[EFS_PLACE_EXPERTS_MAX];
    uint32_t count = 0;
    for (uint32_t e = 0; e < p->experts; e++) {
        bool duplicate = placement[e] && t->holders[(size_t)l * p->experts + e] > 1;
        without[e] = placement[e] && !duplicate;
        count += duplicate;
    }
    size_t at = (size_t)n * p->layers + l;
    t->duplicates[at] = count;
    t->loss[at] = count ? layer_wait(p, without, n, l) - layer_wait(p, placement, n, l) : 0;
}

/* The layer with the least loss per duplicate; layers: no duplicates. */
static uint32_t cheapest_layer(const struct time_state *t, uint32_t n, const uint8_t *skip)
{
    const struct efs_place_problem *p = t->problem;
    uint32_t best = p->layers;
    double best_each = 0;
    for (uint32_t l = 0; l < p->layers; l++) {
        size_t at = (size_t)n * p->layers + l;
        if (t->duplicates[at] == 0 || (skip && skip[l]))
            continue;
        double each = t->loss[at] / t->duplicates[at];
        if (best == p->layers || each < best_each) {
            best = l;
            best_each = each;
        }
    }
    return best;
}

/* Cost for a server of room for the layer's missing experts, minus the time that these save it. *room: slots it can
 * free. */
static double cost_of_cover(struct time_state *t, uint32_t n, uint32_t l, uint32_t missing, uint32_t *room)
{
    const struct efs_place_problem *p = t->problem;
    uint8_t skip[EFS_PLACE_LAYERS_MAX] = {0}, with[EFS_PLACE_EXPERTS_MAX];
    const uint8_t *placement = t->placement + efs_place_at(p, n, l, 0);
    double cost = 0;
    *room = 0;
    while (*room < missing) {
        uint32_t out = cheapest_layer(t, n, skip);
        if (out == p->layers)
            break;
        size_t at = (size_t)n * p->layers + out;
        uint32_t takes = missing - *room < t->duplicates[at] ? missing - *room : t->duplicates[at];
        cost += t->loss[at] * takes / t->duplicates[at];
        *room += takes;
        skip[out] = 1;
    }
    for (uint32_t e = 0, left = *room; e < p->experts; e++) {
        bool comes = left > 0 && t->holders[(size_t)l * p->experts + e] == 0;
        left -= comes;
        with[e] = placement[e] || comes;
    }
    return cost - (layer_wait(p, placement, n, l) - layer_wait(p, with, n, l));
}

/* Drops the least called duplicate of the cheapest layer. */
static bool drop_duplicate(struct time_state *t, uint32_t n)
{
    const struct efs_place_problem *p = t->problem;
    uint32_t l = cheapest_layer(t, n, NULL), out = p->experts;
    if (l == p->layers)
        return false;
    for (uint32_t e = 0; e < p->experts; e++)
        if (t->placement[efs_place_at(p, n, l, e)] && t->holders[(size_t)l * p->experts + e] > 1 &&
            (out == p->experts || p->calls[efs_place_at(p, n, l, e)] < p->calls[efs_place_at(p, n, l, out)]))
            out = e;
    t->placement[efs_place_at(p, n, l, out)] = 0;
    if (--t->holders[(size_t)l * p->experts + out] > 1)
        weigh_duplicates(t, n, l);
    else /* only one copy is left, on any server */
        for (uint32_t m = 0; m < p->servers; m++)
            weigh_duplicates(t, m, l);
    return true;
}

static void cover_layer(struct time_state *t, uint32_t l)
{
    const struct efs_place_problem *p = t->problem;
    for (;;) {
        uint32_t missing = 0, best = p->servers, best_room = 0;
        double best_cost = 0;
        for (uint32_t e = 0; e < p->experts; e++)
            missing += t->holders[(size_t)l * p->experts + e] == 0;
        if (missing == 0)
            return;
        for (uint32_t n = 0; n < p->servers; n++) {
            uint32_t room;
            double cost = cost_of_cover(t, n, l, missing, &room);
            if (room > best_room || (room > 0 && room == best_room && cost < best_cost)) {
                best = n;
                best_room = room;
                best_cost = cost;
            }
        }
        if (best == p->servers)
            return; /* efs_place_check() has ensured slots for all experts */
        for (uint32_t e = 0; e < p->experts; e++) {
            uint32_t *holders = &t->holders[(size_t)l * p->experts + e];
            if (*holders > 0 || !drop_duplicate(t, best))
                continue;
            t->placement[efs_place_at(p, best, l, e)] = 1;
            *holders = 1;
        }
        for (uint32_t n = 0; n < p->servers; n++)
            weigh_duplicates(t, n, l);
    }
}

/* Layers that lack most experts first: they need the most room on one server. */
static void cover_layers(struct time_state *t)
{
    const struct efs_place_problem *p = t->problem;
    efs_place_count_holders(p, t->placement, t->holders);
    for (uint32_t n = 0; n < p->servers; n++)
        for (uint32_t l = 0; l < p->layers; l++)
            weigh_duplicates(t, n, l);
    struct efs_place_item *layers = t->sorted; /* no longer needed; has room for layers * experts */
    for (uint32_t l = 0; l < p->layers; l++) {
        uint32_t missing = 0;
        for (uint32_t e = 0; e < p->experts; e++)
            missing += t->holders[(size_t)l * p->experts + e] == 0;
        layers[l] = (struct efs_place_item){missing, l};
    }
    efs_place_sort(layers, p->layers);
    for (uint32_t k = 0; k < p->layers; k++)
        cover_layer(t, layers[k].item);
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

static int time_open(struct time_state *t, const struct efs_place_problem *p, uint8_t *placement)
{
    size_t all = (size_t)p->layers * p->experts, rows = (size_t)p->servers * p->layers;
    *t = (struct time_state){.problem = p, .placement = placement};
    EFS_TABLE(&t->tables, t->holders, all);
    EFS_TABLE(&t->tables, t->sorted, all);
    EFS_TABLE(&t->tables, t->saved, (size_t)p->experts + 1);
    EFS_TABLE(&t->tables, t->stretches, all);
    EFS_TABLE(&t->tables, t->loss, rows);
    EFS_TABLE(&t->tables, t->duplicates, rows);
    return efs_tables_error(&t->tables);
}

int efs_place_time(const struct efs_place_problem *p, uint8_t *placement)
{
    struct time_state t;
    int rc = time_open(&t, p, placement);
    if (rc == 0) {
        for (uint32_t n = 0; n < p->servers; n++)
            take_stretches(&t, n);
        cover_layers(&t);
        rc = efs_place_replace_if_cheaper(p, efs_place_gain, efs_place_wait_s, placement);
    }
    if (rc == 0)
        rc = efs_place_replace_if_cheaper(p, efs_place_prism, efs_place_wait_s, placement);
    efs_tables_free(&t.tables);
    return rc;
}
