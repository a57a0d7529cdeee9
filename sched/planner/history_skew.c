/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history_skew.c - inclusion probabilities by rank from counts, and their drift.
 */
#include "history.h"
#include "planner.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

const char *efs_skew_source_name(enum efs_skew_source source)
{
    static const char *const names[] = {"assumed", "counts", "ranks"};

    return names[source];
}

/* Scales a layer's list to the sum chosen, with no value above 1. */
static void skew_scale(double *inclusion, unsigned experts, unsigned chosen)
{
    for (unsigned round = 0; round < 64; round++) {
        double open = 0, closed = 0, factor;

        for (unsigned i = 0; i < experts; i++)
            *(inclusion[i] < 1 ? &open : &closed) += inclusion[i];
        factor = open > 0 ? (chosen - closed) / open : 1;
        if (fabs(factor - 1) < 1e-12)
            break;
        for (unsigned i = 0; i < experts; i++)
            if (inclusion[i] < 1)
                inclusion[i] = inclusion[i] * factor < 1 ? inclusion[i] * factor : 1;
    }
}

/* ---- one layer --------------------------------------------------------------------------------------------------- */

static int compare_falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/*
 * Sorted frequencies, shrunk towards their mean: each has the variance of a binomial share by chance; the spread of all
 * is reduced by that (method of moments), so that a few passes of an even workload do not look skewed.
 */
static void skew_from_counts(const uint32_t *counts, uint64_t passes, unsigned experts, double *inclusion)
{
    double n = (double)passes, mean = 0, spread = 0, chance = 0, keep;

    for (unsigned i = 0; i < experts; i++) {
        inclusion[i] = counts[i] / n;
        mean += inclusion[i] / experts;
    }
    for (unsigned i = 0; i < experts; i++) {
        spread += (inclusion[i] - mean) * (inclusion[i] - mean);
        chance += inclusion[i] * (1 - inclusion[i]) / n;
    }
    keep = chance < spread ? sqrt(1 - chance / spread) : 0;
    for (unsigned i = 0; i < experts; i++)
        inclusion[i] = ((mean + keep * (inclusion[i] - mean)) * n + 0.5) / (n + 1);
    qsort(inclusion, experts, sizeof(*inclusion), compare_falling);
}

static void skew_from_ranks(const uint32_t *at_rank, uint64_t passes, unsigned experts, double *inclusion)
{
    for (unsigned i = 0; i < experts; i++)
        inclusion[i] = (at_rank[i] + 0.5) / ((double)passes + 1);
}

/* Fills in a layer from its own data; false: no data. */
static bool skew_learn_layer(struct efs_skew *skew, const struct efs_history *h, unsigned layer, unsigned tally[3])
{
    size_t first = (size_t)layer * h->experts;
    uint64_t passes = h->passes[layer], ranked = h->ranked[layer];

    if (!passes)
        return false;
    if (ranked && (ranked >= EFS_SKEW_RANKED || 8 * ranked >= passes)) {
        skew_from_ranks(h->at_rank + first, ranked, h->experts, skew->inclusion + first);
        tally[EFS_SKEW_RANKS]++;
    } else {
        skew_from_counts(h->counts + first, passes, h->experts, skew->inclusion + first);
        tally[EFS_SKEW_COUNTS]++;
    }
    skew_scale(skew->inclusion + first, h->experts, skew->chosen);
    return true;
}

/* ---- all layers -------------------------------------------------------------------------------------------------- */

static void skew_count_chosen(struct efs_skew *skew, const struct efs_history *h, double assumed)
{
    unsigned most = skew->experts < EFS_PLAN_MAX_CHOSEN ? skew->experts : EFS_PLAN_MAX_CHOSEN;
    uint64_t asked = 0;

    for (unsigned l = 0; h && l < h->layers; l++)
        skew->passes += h->passes[l];
    for (size_t i = 0; h && i < (size_t)h->layers * h->experts; i++)
        asked += h->counts[i];
    skew->mean_chosen = asked ? (double)asked / (double)skew->passes : assumed;
    skew->chosen = !(skew->mean_chosen > 1) ? 1 : skew->mean_chosen < most ? (unsigned)(skew->mean_chosen + 0.5) : most;
}

/*
 * The passes, over all layers together, that are needed for a plan. With fewer, chance alone moves the shares by more
 * than EFS_DRIFT_REPLAN, measured as in efs_history_drift(). Computed for an even workload, whose shares chance moves
 * most.
 */
static double skew_passes_needed(unsigned experts, unsigned chosen)
{
    double share = chosen < experts ? (double)chosen / experts : 1;
    double root = experts * sqrt(2 / M_PI * share * (1 - share)) / (2 * chosen * EFS_DRIFT_REPLAN);

    return root * root;
}

/* Fills in the layers without data: with the mean of the layers that have data (their number is known), or as
 * assumed. */
static void skew_fill_unknown(struct efs_skew *skew, const struct efs_history *h, unsigned known)
{
    unsigned experts = skew->experts;

    for (unsigned r = 0; r < experts; r++)
        skew->mean[r] = known ? 0 : 0.5 / (r + 1);
    for (unsigned l = 0; known && l < skew->layers; l++)
        for (unsigned r = 0; h->passes[l] && r < experts; r++)
            skew->mean[r] += skew->inclusion[(size_t)l * experts + r] / known;
    skew_scale(skew->mean, experts, skew->chosen);
    for (unsigned l = 0; l < skew->layers; l++)
        for (unsigned r = 0; !(known && h->passes[l]) && r < experts; r++)
            skew->inclusion[(size_t)l * experts + r] = skew->mean[r];
}

int efs_skew_learn(struct efs_skew *skew, const struct efs_history *h, unsigned layers, unsigned experts, double chosen)
{
    unsigned known = 0, tally[3] = {0};

    *skew = (struct efs_skew){0};
    if (h) {
        layers = h->layers;
        experts = h->experts;
    }
    if (!layers || layers > EFS_HISTORY_MAX_LAYERS || !experts || experts > EFS_HISTORY_MAX_EXPERTS)
        return -EINVAL;
    skew->layers = layers;
    skew->experts = experts;
    skew->inclusion = calloc((size_t)layers * experts, sizeof(*skew->inclusion));
    skew->mean = calloc(experts, sizeof(*skew->mean));
    if (!skew->inclusion || !skew->mean) {
        efs_skew_free(skew);
        return -ENOMEM;
    }
    skew_count_chosen(skew, h, chosen);
    if ((double)skew->passes < skew_passes_needed(experts, skew->chosen))
        skew->passes = 0; /* too few to use */
    for (unsigned l = 0; skew->passes && l < layers; l++)
        known += skew_learn_layer(skew, h, l, tally);
    if (known < layers)
        skew_fill_unknown(skew, h, known);
    for (unsigned r = 0; r < experts; r++)
        skew->mean[r] = 0;
    for (size_t i = 0; i < (size_t)layers * experts; i++)
        skew->mean[i % experts] += skew->inclusion[i] / layers;
    for (unsigned r = 0; r < experts; r++)
        skew->mean[r] = skew->mean[r] < 1 ? skew->mean[r] : 1; /* rounding may exceed 1 */
    skew->source = !known                                            ? EFS_SKEW_ASSUMED
                   : tally[EFS_SKEW_RANKS] >= tally[EFS_SKEW_COUNTS] ? EFS_SKEW_RANKS
                                                                     : EFS_SKEW_COUNTS;
    return 0;
}

void efs_skew_free(struct efs_skew *skew)
{
    free(skew->inclusion);
    free(skew->mean);
    *skew = (struct efs_skew){0};
}

/* ---- drift ------------------------------------------------------------------------------------------------------- */

double efs_history_drift(const struct efs_skew *planned, const struct efs_history *seen)
{
    double passes = 0, apart = 0, chance = 0, of_plan = 0, of_seen = 0;

    if (planned->layers != seen->layers || planned->experts != seen->experts)
        return 1;
    for (unsigned l = 0; l < seen->layers; l++)
        passes += (double)seen->ranked[l];
    for (unsigned r = 0; passes > 0 && r < seen->experts; r++) {
        double plan = planned->mean[r] * planned->mean_chosen / planned->chosen, there = 0;

        for (unsigned l = 0; l < seen->layers; l++)
            there += seen->at_rank[(size_t)l * seen->experts + r];
        there /= passes;
        apart += fabs(there - plan);
        chance += sqrt(2 / M_PI * there * (1 - there) / passes); /* mean absolute error of a binomial share */
        of_plan += plan;
        of_seen += there;
    }
    if (!(apart > chance))
        return 0;
    return (apart - chance) / (2 * (of_plan > of_seen ? of_plan : of_seen));
}

bool efs_history_drifted(const struct efs_skew *planned, const struct efs_history *seen, double threshold)
{
    uint64_t passes = 0;

    for (unsigned l = 0; l < seen->layers; l++)
        passes += seen->ranked[l];
    return passes >= (uint64_t)EFS_DRIFT_LEAST_PASSES * seen->layers && efs_history_drift(planned, seen) >= threshold;
}
