/* SPDX-License-Identifier: Apache-2.0 */
/* place_published.c - the placement rules of other published systems: the baselines in Prism's paper. */
#include "place_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void shuffle(struct efs_place_item *items, size_t count, uint64_t *seed)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = efs_random(seed) % i;
        struct efs_place_item swap = items[i - 1];
        items[i - 1] = items[j];
        items[j] = swap;
    }
}

/* ---- uniform, redundance ----------------------------------------------------------------------------------------- */

/* The server with most free slots; servers: none has any. Repeated use fills all servers in proportion. */
static uint32_t most_room(const uint64_t *room, uint32_t servers)
{
    uint32_t best = 0;
    for (uint32_t n = 1; n < servers; n++)
        best = room[n] > room[best] ? n : best;
    return room[best] > 0 ? best : servers;
}

static void fill_at_random(const struct efs_place_problem *p, uint32_t n, uint64_t room, struct efs_place_item *items,
                           uint64_t *seed, uint8_t *placement)
{
    size_t all = (size_t)p->layers * p->experts;
    for (size_t i = 0; i < all; i++)
        items[i] = (struct efs_place_item){0, (uint32_t)i};
    shuffle(items, all, seed);
    for (size_t i = 0; i < all && room > 0; i++) {
        uint8_t *at = &placement[n * all + items[i].item];
        room -= !*at;
        *at = 1;
    }
}

int efs_place_uniform(const struct efs_place_problem *p, bool fill, uint64_t seed, uint8_t *placement)
{
    size_t all = (size_t)p->layers * p->experts;
    struct efs_place_item *items = calloc(all, sizeof(*items));
    uint64_t *room = calloc(p->servers, sizeof(*room));
    if (items && room) {
        for (uint32_t n = 0; n < p->servers; n++)
            room[n] = efs_place_slots(p, n);
        for (uint32_t l = 0; l < p->layers; l++) { /* by layer, so that each server gets a part of each */
            for (uint32_t e = 0; e < p->experts; e++)
                items[e] = (struct efs_place_item){0, e};
            shuffle(items, p->experts, &seed);
            for (uint32_t e = 0; e < p->experts; e++) {
                uint32_t n = most_room(room, p->servers);
                placement[efs_place_at(p, n, l, items[e].item)] = 1;
                room[n]--;
            }
        }
        for (uint32_t n = 0; fill && n < p->servers; n++)
            fill_at_random(p, n, room[n], items, &seed, placement);
    }
    int rc = items && room ? 0 : -ENOMEM;
    free(items);
    free(room);
    return rc;
}

/* ---- balanced loads ---------------------------------------------------------------------------------------------- */

struct level { /* packing of one layer */
    struct efs_tables tables;
    const struct efs_place_problem *problem;
    uint64_t *room;  /* [servers]: free slots for all layers */
    uint64_t *quota; /* [servers]: free slots for this layer */
    double *load;    /* [servers]: in this layer */
    double *calls;   /* [experts]: over all servers */
    uint32_t *copies;
    struct efs_place_item *items;
    size_t items_room;
};

static int level_open(struct level *v, const struct efs_place_problem *p)
{
    *v = (struct level){.problem = p, .items_room = (size_t)p->servers * p->experts};
    EFS_TABLE(&v->tables, v->room, p->servers);
    EFS_TABLE(&v->tables, v->quota, p->servers);
    EFS_TABLE(&v->tables, v->load, p->servers);
    EFS_TABLE(&v->tables, v->calls, p->experts);
    EFS_TABLE(&v->tables, v->copies, p->experts);
    EFS_TABLE(&v->tables, v->items, v->items_room);
    if (v->tables.failed)
        return -ENOMEM;
    for (uint32_t n = 0; n < p->servers; n++)
        v->room[n] = efs_place_slots(p, n);
    return 0;
}

static void level_begin(struct level *v, uint32_t l)
{
    const struct efs_place_problem *p = v->problem;
    memset(v->load, 0, p->servers * sizeof(*v->load));
    memset(v->calls, 0, p->experts * sizeof(*v->calls));
    for (uint32_t n = 0; n < p->servers; n++)
        for (uint32_t e = 0; e < p->experts; e++)
            v->calls[e] += p->calls[efs_place_at(p, n, l, e)];
    for (uint32_t e = 0; e < p->experts; e++)
        v->copies[e] = 1;
}

/* Places each copy, the heaviest first, on the least loaded server with quota left that does not hold the expert. If no
 * server has quota, an expert without any copy goes to the least loaded server with a free slot. */
static void level_pack(struct level *v, uint32_t l, uint8_t *placement)
{
    const struct efs_place_problem *p = v->problem;
    size_t count = 0;
    for (uint32_t e = 0; e < p->experts; e++)
        for (uint32_t c = 0; c < v->copies[e]; c++)
            v->items[count++] = (struct efs_place_item){v->calls[e] / v->copies[e], e};
    efs_place_sort(v->items, count);
    for (size_t i = 0; i < count; i++) {
        uint32_t e = v->items[i].item, best = p->servers;
        bool is_placed = false;
        for (unsigned beyond = 0; beyond < 2 && best == p->servers && !(beyond && is_placed); beyond++)
            for (uint32_t n = 0; n < p->servers; n++) {
                bool here = placement[efs_place_at(p, n, l, e)];
                is_placed |= here;
                if (!here && v->room[n] > 0 && (beyond || v->quota[n] > 0) &&
                    (best == p->servers || v->load[n] < v->load[best]))
                    best = n;
            }
        if (best == p->servers)
            continue;
        placement[efs_place_at(p, best, l, e)] = 1;
        v->room[best]--;
        v->quota[best] -= v->quota[best] > 0;
        v->load[best] += v->items[i].worth;
    }
}

/* Equal counts: a server's free slots are divided equally among the remaining layers. Returns the number of copies for
 * this layer, limited so that the later layers have room for one copy of each expert. */
static uint64_t level_quota(struct level *v, uint32_t l, bool one_each)
{
    const struct efs_place_problem *p = v->problem;
    uint64_t all = 0, room = 0, left = p->layers - l;
    for (uint32_t n = 0; n < p->servers; n++) {
        v->quota[n] = (v->room[n] + left - 1) / left;
        v->quota[n] = v->quota[n] < p->experts ? v->quota[n] : p->experts;
        all += v->quota[n];
        room += v->room[n];
    }
    uint64_t spare = room - (left - 1) * p->experts;
    all = all < spare ? all : spare;
    return one_each || all < p->experts ? p->experts : all;
}

int efs_place_smartmoe(const struct efs_place_problem *p, uint8_t *placement)
{
    struct level v;
    int rc = level_open(&v, p);
    for (uint32_t l = 0; rc == 0 && l < p->layers; l++) {
        level_quota(&v, l, true);
        level_begin(&v, l);
        level_pack(&v, l, placement);
    }
    efs_tables_free(&v.tables);
    return rc;
}

int efs_place_eplb(const struct efs_place_problem *p, uint8_t *placement)
{
    struct level v;
    int rc = level_open(&v, p);
    for (uint32_t l = 0; rc == 0 && l < p->layers; l++) {
        uint64_t copies = level_quota(&v, l, false);
        level_begin(&v, l);
        for (uint64_t made = p->experts; made < copies; made++) {
            uint32_t best = p->experts;
            for (uint32_t e = 0; e < p->experts; e++)
                if (v.copies[e] < p->servers &&
                    (best == p->experts || v.calls[e] / v.copies[e] > v.calls[best] / v.copies[best]))
                    best = e;
            if (best == p->experts)
                break;
            v.copies[best]++;
        }
        level_pack(&v, l, placement);
    }
    efs_tables_free(&v.tables);
    return rc;
}

/* ---- greedy by frequency ----------------------------------------------------------------------------------------- */

/* The least called duplicate on a server; all: it has none. */
static size_t least_duplicate(const struct efs_place_problem *p, uint32_t n, const uint8_t *placement,
                              const uint32_t *holders)
{
    size_t all = (size_t)p->layers * p->experts, out = all;
    const double *f = p->calls + n * all;
    for (size_t i = 0; i < all; i++)
        if (placement[n * all + i] && holders[i] > 1 && (out == all || f[i] < f[out]))
            out = i;
    return out;
}

int efs_place_greedy(const struct efs_place_problem *p, uint8_t *placement)
{
    size_t all = (size_t)p->layers * p->experts;
    struct efs_place_item *items = calloc(all, sizeof(*items));
    uint32_t *holders = calloc(all, sizeof(*holders));
    int rc = items && holders ? 0 : -ENOMEM;
    for (uint32_t n = 0; rc == 0 && n < p->servers; n++) {
        for (size_t i = 0; i < all; i++)
            items[i] = (struct efs_place_item){p->calls[n * all + i], (uint32_t)i};
        efs_place_sort(items, all);
        for (uint64_t i = 0, slots = efs_place_slots(p, n); i < slots; i++)
            placement[n * all + items[i].item] = 1;
    }
    if (rc == 0)
        efs_place_count_holders(p, placement, holders);
    uint32_t n = 0;
    for (size_t i = 0; rc == 0 && i < all; i++) /* experts without a holder, to one server after the other */
        while (holders[i] == 0) {
            size_t out = least_duplicate(p, n, placement, holders);
            if (out < all) {
                placement[n * all + out] = 0;
                placement[n * all + i] = 1;
                holders[out]--;
                holders[i]++;
            }
            n = (n + 1) % p->servers;
        }
    free(items);
    free(holders);
    return rc;
}
