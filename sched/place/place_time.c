/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_time.c - ours by time: what one more copy saves of a pass that waits for its slowest expert.
 *
 * A layer waits as soon as one of its experts is elsewhere, so that the last expert of a layer saves more than the
 * first: a server with room for a third of everything serves a third of its layers without waiting if it holds these
 * whole, and hardly any if it holds a third of each. So a layer's experts, most called first, are taken in stretches:
 * those of the concave hull over what 1, 2, ... of them save. Servers take the best stretches that fit; layers that
 * nobody took whole are put, what is missing of them at once, where most is saved for what has to go. Of this and the
 * placement by calls the better one is taken, by efs_place_wait_s().
 */
#include "place_core.h"

#include <stdlib.h>

struct stretch {
    double density; /* seconds saved by each of its experts */
    uint32_t layer, begin, end;
};

struct time_state {
    struct efs_tables tables;
    const struct efs_place_problem *problem;
    uint8_t *held;
    uint32_t *holders;             /* [layers][experts] */
    struct efs_place_item *sorted; /* [layers][experts]: of one server */
    double *saved;                 /* [experts + 1] */
    struct stretch *stretches;     /* [layers * experts] */
    double *loss;                  /* [servers][layers]: of its duplicates there, all of them */
    uint32_t *duplicates;          /* [servers][layers] */
};

/* What a server's layer waits, with what it holds. */
static double layer_wait(const struct efs_place_problem *p, const uint8_t *held, uint32_t n, uint32_t l)
{
    const struct efs_place_server *s = &p->server[n];
    const double *f = p->calls + efs_place_at(p, n, l, 0);
    double all_here = 1, calls = 0;
    for (uint32_t e = 0; e < p->experts; e++)
        if (!held[e]) {
            calls += f[e];
            all_here *= f[e] < s->passes ? 1 - f[e] / s->passes : s->passes > 0 ? 0 : 1;
        }
    return s->passes * s->pass_s * (1 - all_here) + calls * s->call_s;
}

/* saved[m]: by the m most called experts of a layer. */
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

/* The edges of the hull; each begins where the one before ended, and saves no more by an expert. */
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
    /* One that does not fit is left out, and all behind it in its layer: then what is left is filled as it comes. */
    for (unsigned whole = 0; whole < 2; whole++)
        for (size_t i = 0; i < count && room > 0; i++) {
            const struct stretch *s = &t->stretches[i];
            uint8_t *held = t->held + efs_place_at(p, n, s->layer, 0);
            const struct efs_place_item *sorted = t->sorted + (size_t)s->layer * p->experts;
            bool follows = s->begin == 0 || held[sorted[s->begin - 1].item];
            if (whole == 0 && (s->end - s->begin > room || !follows))
                continue;
            for (uint32_t m = s->begin; m < s->end && room > 0; m++) {
                room -= !held[sorted[m].item];
                held[sorted[m].item] = 1;
            }
        }
}

/* ---- coverage ------------------------------------------------------------------------------------------------------
 */

static void weigh_duplicates(struct time_state *t, uint32_t n, uint32_t l)
{
    const struct efs_place_problem *p = t->problem;
    const uint8_t *held = t->held + efs_place_at(p, n, l, 0);
    uint8_t without[EFS_PLACE_EXPERTS_MAX];
    uint32_t count = 0;
    for (uint32_t e = 0; e < p->experts; e++) {
        bool duplicate = held[e] && t->holders[(size_t)l * p->experts + e] > 1;
        without[e] = held[e] && !duplicate;
        count += duplicate;
    }
    size_t at = (size_t)n * p->layers + l;
    t->duplicates[at] = count;
    t->loss[at] = count ? layer_wait(p, without, n, l) - layer_wait(p, held, n, l) : 0;
}

/* The layer whose duplicates are lost most cheaply, each by itself; layers: there are none. */
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

/* What it costs a server to make so much room, less what the layer's uncovered experts save it. */
static double cost_of_cover(struct time_state *t, uint32_t n, uint32_t l, uint32_t missing, uint32_t *room)
{
    const struct efs_place_problem *p = t->problem;
    uint8_t skip[EFS_PLACE_LAYERS_MAX] = {0}, with[EFS_PLACE_EXPERTS_MAX];
    const uint8_t *held = t->held + efs_place_at(p, n, l, 0);
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
        with[e] = held[e] || comes;
    }
    return cost - (layer_wait(p, held, n, l) - layer_wait(p, with, n, l));
}

/* A duplicate of the cheapest layer goes, the least called first. */
static bool drop_duplicate(struct time_state *t, uint32_t n)
{
    const struct efs_place_problem *p = t->problem;
    uint32_t l = cheapest_layer(t, n, NULL), out = p->experts;
    if (l == p->layers)
        return false;
    for (uint32_t e = 0; e < p->experts; e++)
        if (t->held[efs_place_at(p, n, l, e)] && t->holders[(size_t)l * p->experts + e] > 1 &&
            (out == p->experts || p->calls[efs_place_at(p, n, l, e)] < p->calls[efs_place_at(p, n, l, out)]))
            out = e;
    t->held[efs_place_at(p, n, l, out)] = 0;
    if (--t->holders[(size_t)l * p->experts + out] > 1)
        weigh_duplicates(t, n, l);
    else /* a single copy now, wherever it is */
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
            return; /* efs_place_check() knows that there are slots for all */
        for (uint32_t e = 0; e < p->experts; e++) {
            uint32_t *holders = &t->holders[(size_t)l * p->experts + e];
            if (*holders > 0 || !drop_duplicate(t, best))
                continue;
            t->held[efs_place_at(p, best, l, e)] = 1;
            *holders = 1;
        }
        for (uint32_t n = 0; n < p->servers; n++)
            weigh_duplicates(t, n, l);
    }
}

/* Layers that lack most first: they need the most room in one place. */
static void cover_layers(struct time_state *t)
{
    const struct efs_place_problem *p = t->problem;
    efs_place_count_holders(p, t->held, t->holders);
    for (uint32_t n = 0; n < p->servers; n++)
        for (uint32_t l = 0; l < p->layers; l++)
            weigh_duplicates(t, n, l);
    struct efs_place_item *layers = t->sorted; /* not needed any more; has room for layers * experts */
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

/* ---- all of it ------------------------------------------------------------------------------------------------------
 */

static int time_open(struct time_state *t, const struct efs_place_problem *p, uint8_t *held)
{
    size_t all = (size_t)p->layers * p->experts, rows = (size_t)p->servers * p->layers;
    *t = (struct time_state){.problem = p, .held = held};
    EFS_TABLE(&t->tables, t->holders, all);
    EFS_TABLE(&t->tables, t->sorted, all);
    EFS_TABLE(&t->tables, t->saved, (size_t)p->experts + 1);
    EFS_TABLE(&t->tables, t->stretches, all);
    EFS_TABLE(&t->tables, t->loss, rows);
    EFS_TABLE(&t->tables, t->duplicates, rows);
    return efs_tables_error(&t->tables);
}

int efs_place_time(const struct efs_place_problem *p, uint8_t *held)
{
    struct time_state t;
    int rc = time_open(&t, p, held);
    if (rc == 0) {
        for (uint32_t n = 0; n < p->servers; n++)
            take_stretches(&t, n);
        cover_layers(&t);
        rc = efs_place_keep_better(p, efs_place_gain, efs_place_wait_s, held);
    }
    if (rc == 0)
        rc = efs_place_keep_better(p, efs_place_prism, efs_place_wait_s, held);
    efs_tables_free(&t.tables);
    return rc;
}
