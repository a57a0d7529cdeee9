/*
 * policy_zipmoe.c - rank-based dispatch (ZipMoE 3.4), and what beats it.
 *
 * Published: a unit's rank is its place in the frequency list of its layer; it is entitled to the pools whose threshold
 * is above its rank; the unit with the lowest count is the victim. Otherwise the rank is by expected time until the
 * next use (policy_value.h), over all layers together, so that a layer with a flat distribution does not waste what a
 * skewed one could use; a unit is entitled to every pool, and gets the first in which it beats the one that is worth
 * least.
 *
 * Layers are visited in turn, and only a visit changes the scores of a layer: the least of each pool is kept by layer,
 * so a victim costs a look at one unit a layer and a scan of one layer.
 */
#include "policy_core.h"
#include "policy_value.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct zipmoe {
    bool published;
    double promote_margin;
    struct efs_rank *rank;   /* published */
    struct efs_value *value; /* otherwise */
    int32_t *score;          /* [experts] scratch: of a layer */
    struct least {
        uint32_t unit[EFS_POOLS];
        double worth[EFS_POOLS]; /* without what the layer's turn adds */
        bool known;
    } * least; /* [layers] */
};

static void zipmoe_close(struct efs_policy *policy)
{
    struct zipmoe *z = policy->state;

    efs_rank_free(z->rank);
    efs_value_free(z->value);
    free(z->score);
    free(z->least);
    free(z);
    policy->state = NULL;
}

static int zipmoe_open(struct efs_policy *policy)
{
    const struct efs_policy_tuning *t = &policy->tuning;
    struct efs_value_tuning value = {.rate_weight = t->rate_weight,
                                     .age_weight = t->age_weight,
                                     .smooth = t->smooth,
                                     .half_life = t->half_life,
                                     .change_bits = t->change_bits};
    struct zipmoe *z = policy->state = calloc(1, sizeof(*z));

    if (!z)
        return -ENOMEM;
    z->published = t->published;
    z->promote_margin = t->promote_margin > 0 ? t->promote_margin : 6;
    if (z->published)
        z->rank = efs_rank_new(policy->layers, policy->experts, t->count_age);
    else
        z->value = efs_value_new(policy->layers, policy->experts, policy->chosen, &value);
    z->score = calloc(policy->experts, sizeof(*z->score));
    z->least = calloc(policy->layers, sizeof(*z->least));
    return (z->rank || z->value) && z->score && z->least ? 0 : -ENOMEM;
}

static void zipmoe_request(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count)
{
    struct zipmoe *z = policy->state;

    z->least[layer].known = false;
    if (z->published)
        efs_rank_request(z->rank, layer, expert, count);
    else if (efs_value_request(z->value, layer, expert, count))
        for (unsigned l = 0; l < policy->layers; l++)
            z->least[l].known = false;
}

static void zipmoe_begin(struct efs_policy *policy)
{
    struct zipmoe *z = policy->state;

    if (z->published)
        return;
    efs_value_begin(z->value);
    for (unsigned l = 0; l < policy->layers; l++)
        z->least[l].known = false;
}

static void zipmoe_seed(struct efs_policy *policy, unsigned layer, const uint32_t *counts, uint64_t passes)
{
    struct zipmoe *z = policy->state;

    z->least[layer].known = false;
    if (z->published)
        efs_rank_seed(z->rank, layer, counts);
    else
        efs_value_seed(z->value, layer, counts, passes);
}

/* ---- worth -------------------------------------------------------------------------------------------------- */

/* Passes until the turn of a layer comes, less than one: the layer after the one asked for last is the next. */
static double until_turn(const struct efs_policy *policy, unsigned layer)
{
    unsigned ahead = layer > policy->layer ? layer - policy->layer - 1 : layer + policy->layers - policy->layer - 1;

    return (double)ahead / policy->layers;
}

/* Worth within the layer: less the expected passes until the next use; published: the count, equals by rank. */
static double worth_in_layer(struct efs_policy *policy, uint32_t unit)
{
    struct zipmoe *z = policy->state;
    unsigned layer = efs_unit_layer(policy, unit), expert = unit % policy->experts;

    if (z->published)
        return efs_rank_count(z->rank, layer, expert) - 1e-4 * efs_rank_of(z->rank, layer, expert);
    return -efs_value_reuse(efs_value_score(z->value, layer, expert));
}

static double turn_cost(const struct efs_policy *policy, unsigned layer)
{
    return policy->tuning.published ? 0 : until_turn(policy, layer);
}

static double zipmoe_worth(struct efs_policy *policy, uint32_t unit)
{
    return worth_in_layer(policy, unit) - turn_cost(policy, efs_unit_layer(policy, unit));
}

static void find_least(struct efs_policy *policy, unsigned layer)
{
    struct zipmoe *z = policy->state;
    struct least *least = &z->least[layer];
    uint32_t first = layer * policy->experts;
    const uint8_t *evictable = policy->evictable + first;
    int32_t low[EFS_POOLS] = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};

    for (unsigned p = 0; p < EFS_POOLS; p++)
        least->unit[p] = EFS_NO_UNIT;
    if (z->published)
        for (unsigned e = 0; e < policy->experts; e++)
            z->score[e] = -(int32_t)efs_rank_of(z->rank, layer, e);
    else
        efs_value_scores(z->value, layer, z->score);
    for (unsigned e = 0; e < policy->experts; e++) {
        unsigned p = evictable[e];

        if (p == EFS_NOT_EVICTABLE || z->score[e] >= low[p])
            continue;
        low[p] = z->score[e];
        least->unit[p] = first + e;
    }
    for (unsigned p = 0; p < EFS_POOLS; p++)
        if (least->unit[p] != EFS_NO_UNIT)
            least->worth[p] = worth_in_layer(policy, least->unit[p]);
    least->known = true;
}

static uint32_t zipmoe_lowest(struct efs_policy *policy, unsigned domain, enum efs_pool pool)
{
    struct zipmoe *z = policy->state;
    unsigned first = policy->domains == 1 ? 0 : domain, end = policy->domains == 1 ? policy->layers : domain + 1;
    uint32_t lowest = EFS_NO_UNIT;
    double worth = 0;

    for (unsigned l = first; l < end; l++) {
        if (!z->least[l].known)
            find_least(policy, l);
        if (z->least[l].unit[pool] == EFS_NO_UNIT)
            continue;
        double here = z->least[l].worth[pool] - turn_cost(policy, l);

        if (lowest == EFS_NO_UNIT || here < worth) {
            lowest = z->least[l].unit[pool];
            worth = here;
        }
    }
    return lowest;
}

/* A new possible victim may be the least of its layer; one that was it no more leaves it open. */
static void zipmoe_enter(struct efs_policy *policy, uint32_t unit)
{
    struct zipmoe *z = policy->state;
    struct least *least = &z->least[efs_unit_layer(policy, unit)];
    enum efs_pool pool = policy->pool[unit];

    if (!least->known)
        return;
    double worth = worth_in_layer(policy, unit);

    if (least->unit[pool] == EFS_NO_UNIT || worth < least->worth[pool]) {
        least->unit[pool] = unit;
        least->worth[pool] = worth;
    }
}

static void zipmoe_leave(struct efs_policy *policy, uint32_t unit)
{
    struct zipmoe *z = policy->state;
    struct least *least = &z->least[efs_unit_layer(policy, unit)];

    if (least->unit[policy->evictable[unit]] == unit)
        least->known = false;
}

/* ---- entitlement -------------------------------------------------------------------------------------------- */

static bool zipmoe_beats(struct efs_policy *policy, uint32_t unit, uint32_t victim, enum efs_pool pool)
{
    const struct zipmoe *z = policy->state;
    double mine = zipmoe_worth(policy, unit), theirs = zipmoe_worth(policy, victim);

    /* To leave F costs coding again: that the two do not change places at every use, ask for a margin. */
    if (pool == EFS_POOL_F && !z->published && policy->recode)
        return mine * z->promote_margin > theirs;
    return mine > theirs;
}

static bool zipmoe_entitled(struct efs_policy *policy, uint32_t unit, enum efs_pool pool)
{
    const struct zipmoe *z = policy->state;
    unsigned layer = efs_unit_layer(policy, unit);

    if (!z->published)
        return true;
    return efs_rank_of(z->rank, layer, unit % policy->experts) < policy->threshold[layer][pool] + policy->tuning.delta;
}

static unsigned zipmoe_rank(struct efs_policy *policy, uint32_t unit)
{
    struct zipmoe *z = policy->state;
    unsigned layer = efs_unit_layer(policy, unit), expert = unit % policy->experts, rank = 0;

    if (z->published)
        return efs_rank_of(z->rank, layer, expert);
    efs_value_scores(z->value, layer, z->score);
    for (unsigned e = 0; e < policy->experts; e++)
        rank += z->score[e] > z->score[expert] || (z->score[e] == z->score[expert] && e < expert);
    return rank;
}

const struct efs_policy_order efs_order_zipmoe = {.name = "zipmoe",
                                                  .open = zipmoe_open,
                                                  .close = zipmoe_close,
                                                  .request = zipmoe_request,
                                                  .enter = zipmoe_enter,
                                                  .leave = zipmoe_leave,
                                                  .lowest = zipmoe_lowest,
                                                  .beats = zipmoe_beats,
                                                  .entitled = zipmoe_entitled,
                                                  .worth = zipmoe_worth,
                                                  .begin = zipmoe_begin,
                                                  .seed = zipmoe_seed,
                                                  .rank = zipmoe_rank};
