/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_zipmoe.c - rank-based dispatch (ZipMoE 3.4), and a variant with a better hit rate.
 *
 * Published: the rank of a unit is its place in the frequency list of its layer; it is entitled to the pools whose
 * threshold is above its rank; the unit with the lowest count is the victim. Default: the rank is by expected time
 * until the next use (policy_reuse.h), over all layers together, so that a layer with a flat distribution does not
 * occupy memory that a skewed one could use better. A unit is then entitled to every pool, and enters the first pool in
 * which it beats the unit of least worth.
 *
 * Layers are visited in turn, and only a visit changes the scores of a layer. So each layer keeps the TAIL units of
 * least worth of each pool: to find a victim costs one comparison per layer, and sometimes a scan of a layer.
 */
#include "policy_internal.h"
#include "policy_reuse.h"

#include <errno.h>
#include <math.h>

#define PROMOTE_MARGIN 6 /* to replace an expert in F, the next use must be this many times sooner */

/* The units of least worth in a layer and pool, the least first. */
#define TAIL 4u
struct tail {
    uint32_t unit[TAIL];
    int32_t score[TAIL];
    unsigned count;
};

struct zipmoe {
    bool published;
    struct efs_rank *rank;          /* published */
    struct efs_reuse *reuse;        /* otherwise */
    int32_t *score;                 /* [experts] scratch of ranks */
    uint16_t *evictable;            /* [layer][i] experts that are eviction candidates, unordered */
    uint16_t *place;                /* [unit] index in evictable */
    uint16_t *evictables;           /* [layer] number of them */
    struct tail *tail[EFS_POOLS];   /* [layer] */
    double *least_worth[EFS_POOLS]; /* [layer] of the first of the tail, without passes_until; INFINITY: none */
    bool *known;                    /* [layer] the tails are valid */
    uint16_t *unknown;              /* the layers whose tails are not valid */
    uint16_t *unknown_at;           /* [layer] index in unknown */
    unsigned unknowns;
    double *passes_until; /* [2 * layers] passes until the visit of l: [layers - 1 - (last requested) + l] */
};

static void zipmoe_close(struct efs_policy *policy)
{
    struct zipmoe *z = policy->state;

    efs_rank_free(z->rank);
    efs_reuse_free(z->reuse);
}

static void tail_forget(struct zipmoe *z, unsigned layer)
{
    if (!z->known[layer])
        return;
    z->known[layer] = false;
    z->unknown_at[layer] = (uint16_t)z->unknowns;
    z->unknown[z->unknowns++] = (uint16_t)layer;
}

static int zipmoe_open(struct efs_policy *policy)
{
    const struct efs_policy_tuning *t = &policy->tuning;
    struct efs_tables *tables = &policy->tables;
    struct zipmoe *z = EFS_TABLE(tables, z, 1);

    if (!z)
        return -ENOMEM;
    policy->state = z;
    z->published = t->published;
    if (z->published)
        z->rank = efs_rank_new(policy->layers, policy->experts, t->count_age);
    else
        z->reuse = efs_reuse_new(policy->layers, policy->experts, policy->chosen, t->steady);
    EFS_TABLE(tables, z->score, policy->experts);
    EFS_TABLE(tables, z->evictable, policy->units);
    EFS_TABLE(tables, z->place, policy->units);
    EFS_TABLE(tables, z->evictables, policy->layers);
    EFS_TABLE(tables, z->known, policy->layers);
    EFS_TABLE(tables, z->unknown, policy->layers);
    EFS_TABLE(tables, z->unknown_at, policy->layers);
    EFS_TABLE(tables, z->passes_until, 2 * (size_t)policy->layers);
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        EFS_TABLE(tables, z->tail[p], policy->layers);
        EFS_TABLE(tables, z->least_worth[p], policy->layers);
    }
    if ((!z->rank && !z->reuse) || tables->failed)
        return -ENOMEM;
    for (unsigned l = 0; l < policy->layers; l++) {
        z->known[l] = true;
        tail_forget(z, l);
    }
    /* The layer after the last requested one is next, with 0; the last requested one has the largest wait. */
    for (unsigned i = 0; i < 2 * policy->layers; i++)
        z->passes_until[i] = z->published ? 0 : (double)(i % policy->layers) / policy->layers;
    return 0;
}

static void zipmoe_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count)
{
    struct zipmoe *z = policy->state;

    tail_forget(z, layer);
    if (z->published)
        efs_rank_request(z->rank, layer, expert, count);
    else if (efs_reuse_request(z->reuse, layer, expert, count))
        for (unsigned l = 0; l < policy->layers; l++)
            tail_forget(z, l);
}

static void zipmoe_seed(struct efs_policy *policy, unsigned layer, const uint32_t *counts, uint64_t passes)
{
    struct zipmoe *z = policy->state;

    tail_forget(z, layer);
    if (z->published)
        efs_rank_seed(z->rank, layer, counts);
    else
        efs_reuse_seed(z->reuse, layer, counts, passes);
}

/* ---- worth ------------------------------------------------------------------------------------------------------- */

/* Worth within the layer: minus the expected passes until the next use; published: the count, ties by rank. */
static double zipmoe_worth_in_layer(struct efs_policy *policy, uint32_t unit)
{
    struct zipmoe *z = policy->state;
    unsigned layer = efs_unit_layer(policy, unit), expert = unit % policy->experts;
    struct efs_reuse_view view;

    if (z->published)
        return efs_rank_count(z->rank, layer, expert) - 1e-4 * efs_rank_of(z->rank, layer, expert);
    view = efs_reuse_view_layer(z->reuse, layer);
    return -efs_reuse_passes(efs_reuse_score(&view, expert));
}

static const double *zipmoe_passes_until(const struct efs_policy *policy)
{
    const struct zipmoe *z = policy->state;

    return z->passes_until + policy->layers - 1 - policy->layer;
}

static double zipmoe_worth(struct efs_policy *policy, uint32_t unit)
{
    return zipmoe_worth_in_layer(policy, unit) - zipmoe_passes_until(policy)[efs_unit_layer(policy, unit)];
}

/* The first of a tail has changed: stores its worth. */
static void tail_note_least(struct efs_policy *policy, unsigned layer, enum efs_pool pool)
{
    struct zipmoe *z = policy->state;
    const struct tail *tail = &z->tail[pool][layer];

    z->least_worth[pool][layer] = tail->count ? zipmoe_worth_in_layer(policy, tail->unit[0]) : INFINITY;
}

static void tail_add(struct tail *tail, uint32_t unit, int32_t score)
{
    unsigned at = tail->count < TAIL ? tail->count++ : TAIL - 1;

    /* Ties by unit number, so that the result does not depend on the order of the scan. */
    for (; at > 0 && (tail->score[at - 1] > score || (tail->score[at - 1] == score && tail->unit[at - 1] > unit));
         at--) {
        tail->unit[at] = tail->unit[at - 1];
        tail->score[at] = tail->score[at - 1];
    }
    tail->unit[at] = unit;
    tail->score[at] = score;
}

static void tail_find(struct efs_policy *policy, unsigned layer)
{
    struct zipmoe *z = policy->state;
    uint32_t first = layer * policy->experts;
    struct efs_reuse_view view = {0};
    struct tail tail[EFS_POOLS];

    if (!z->published)
        view = efs_reuse_view_layer(z->reuse, layer);
    for (unsigned p = 0; p < EFS_POOLS; p++)
        tail[p].count = 0;
    for (unsigned i = 0; i < z->evictables[layer]; i++) {
        unsigned expert = z->evictable[first + i];
        int32_t score = z->published ? -(int32_t)efs_rank_of(z->rank, layer, expert) : efs_reuse_score(&view, expert);
        struct tail *t = &tail[policy->evictable[first + expert]];

        if (t->count < TAIL || score < t->score[TAIL - 1] ||
            (score == t->score[TAIL - 1] && first + expert < t->unit[TAIL - 1]))
            tail_add(t, first + expert, score);
    }
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        z->tail[p][layer] = tail[p];
        tail_note_least(policy, layer, p);
    }
    z->unknown[z->unknown_at[layer]] = z->unknown[--z->unknowns];
    z->unknown_at[z->unknown[z->unknown_at[layer]]] = z->unknown_at[layer];
    z->known[layer] = true;
}

static uint32_t zipmoe_lowest(struct efs_policy *policy, unsigned domain, enum efs_pool pool)
{
    struct zipmoe *z = policy->state;
    const double *worth = z->least_worth[pool], *passes_until = zipmoe_passes_until(policy);
    unsigned at = domain;

    if (policy->domains > 1) {
        if (!z->known[domain])
            tail_find(policy, domain);
    } else {
        double lowest = INFINITY;

        while (z->unknowns > 0)
            tail_find(policy, z->unknown[z->unknowns - 1]);
        for (unsigned l = 0; l < policy->layers; l++) {
            double here = worth[l] - passes_until[l];

            if (here < lowest) {
                lowest = here;
                at = l;
            }
        }
    }
    return worth[at] < INFINITY ? z->tail[pool][at].unit[0] : EFS_NO_UNIT;
}

static void zipmoe_insert(struct efs_policy *policy, uint32_t unit)
{
    struct zipmoe *z = policy->state;
    unsigned layer = efs_unit_layer(policy, unit), i = z->evictables[layer]++;

    z->evictable[layer * policy->experts + i] = (uint16_t)(unit % policy->experts);
    z->place[unit] = (uint16_t)i;
    tail_forget(z, layer);
}

static void zipmoe_remove(struct efs_policy *policy, uint32_t unit)
{
    struct zipmoe *z = policy->state;
    unsigned layer = efs_unit_layer(policy, unit), last = --z->evictables[layer];
    enum efs_pool pool = policy->evictable[unit];
    struct tail *tail = &z->tail[pool][layer];
    uint32_t first = layer * policy->experts;
    uint16_t moved = z->evictable[first + last];
    unsigned at = 0;

    z->evictable[first + z->place[unit]] = moved;
    z->place[first + moved] = z->place[unit];
    if (!z->known[layer])
        return;
    while (at < tail->count && tail->unit[at] != unit)
        at++;
    if (at == tail->count)
        return;
    tail->count--;
    for (unsigned i = at; i < tail->count; i++) {
        tail->unit[i] = tail->unit[i + 1];
        tail->score[i] = tail->score[i + 1];
    }
    if (!tail->count) /* the layer may have candidates that were not in the tail */
        tail_forget(z, layer);
    else if (at == 0)
        tail_note_least(policy, layer, pool);
}

/* ---- entitlement ------------------------------------------------------------------------------------------------- */

static bool zipmoe_beats(struct efs_policy *policy, uint32_t unit, uint32_t victim, enum efs_pool pool)
{
    const struct zipmoe *z = policy->state;
    double mine = zipmoe_worth(policy, unit), theirs = zipmoe_worth(policy, victim);

    /* An expert that leaves F must be coded again: the margin avoids two experts that alternate at every use. */
    if (pool == EFS_POOL_F && !z->published && policy->recode)
        return mine * PROMOTE_MARGIN > theirs;
    return mine > theirs;
}

static bool zipmoe_entitled(struct efs_policy *policy, uint32_t unit, enum efs_pool pool)
{
    const struct zipmoe *z = policy->state;
    unsigned layer = efs_unit_layer(policy, unit);

    if (!z->published)
        return true;
    return efs_rank_of(z->rank, layer, unit % policy->experts) < policy->threshold[layer][pool];
}

static void zipmoe_ranks(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                         uint32_t *ranks)
{
    struct zipmoe *z = policy->state;
    struct efs_reuse_view view;

    if (z->published) {
        for (unsigned i = 0; i < count; i++)
            ranks[i] = efs_rank_of(z->rank, layer, expert[i]);
        return;
    }
    view = efs_reuse_view_layer(z->reuse, layer);
    for (unsigned e = 0; e < policy->experts; e++)
        z->score[e] = efs_reuse_score(&view, e);
    for (unsigned i = 0; i < count; i++) {
        int32_t mine = z->score[expert[i]];
        uint32_t rank = 0;

        for (unsigned e = 0; e < expert[i]; e++)
            rank += z->score[e] >= mine;
        for (unsigned e = expert[i] + 1; e < policy->experts; e++)
            rank += z->score[e] > mine;
        ranks[i] = rank;
    }
}

const struct efs_policy_order efs_order_zipmoe = {.open = zipmoe_open,
                                                  .close = zipmoe_close,
                                                  .request = zipmoe_request,
                                                  .insert = zipmoe_insert,
                                                  .remove = zipmoe_remove,
                                                  .lowest = zipmoe_lowest,
                                                  .beats = zipmoe_beats,
                                                  .entitled = zipmoe_entitled,
                                                  .worth = zipmoe_worth,
                                                  .seed = zipmoe_seed,
                                                  .ranks = zipmoe_ranks};
