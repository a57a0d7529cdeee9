/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_mixed.c - nearest maps x transitions x rate x recency, each with an exponent, all learned online.
 *
 * The odds that expert e of layer t is chosen, predicted from d layers before, are a product; its logarithm is a sum:
 *
 *     bias[e] + sum of link[i][e] over the recently chosen experts i + sum of exponent[f] * log(feature f of e)
 *
 * - link: a table for each layer and distance. Its inputs are the experts chosen by the last observed layer, by t
 *   itself in the iteration before, and by up to three earlier layers. Similar to transition counts, but fitted
 *   jointly, so that correlated links are not counted twice. Tables of wide layers are large: the number of inputs is
 *   limited by memory.
 * - nearest: the weighted fraction of the maps nearest to the last layers that contain e, with weight exp(sharpness *
 *   likeness). Likeness counts common experts, decays with each layer, and carries a part over from the map before.
 * - rate: how often this sequence chose e in layer t, with a prior; recency: the same with exponential decay.
 *
 * Each observed layer is compared with its prediction: one gradient step on the logarithmic loss, with a step size for
 * each weight that falls with its accumulated squared gradients (AdaGrad). So the results are probabilities, and the
 * exponents follow the workload.
 */
#include "predict_maps.h"

#include <math.h>

enum mixed_feature { MIXED_NEAREST, MIXED_RATE, MIXED_RECENCY, MIXED_FEATURES };

#define INPUTS 5u       /* layer now, t one iteration before, layers now - 1, now - 2, now - 3 */
#define NEAREST 24u     /* number of voting maps */
#define FADE 0.85F      /* decay of likeness per layer */
#define CARRY 0.3F      /* part of likeness carried into the next iteration */
#define SHARPNESS 20.0F /* of the vote weights */
#define RECENCY 0.8F    /* decay per iteration */
#define PRIOR 4.0F      /* weight of the prior, in iterations */
#define FLOOR 0.02F     /* added to features, to avoid log(0) */
#define LINK_STEP 0.1F
#define EXPONENT_STEP 0.05F
#define BIAS_STEP 0.02F
#define SHRINK 0.02F /* decay of links towards 0 per step */
#define BIAS_FIRST 1.5F
static const float first_exponents[MIXED_FEATURES] = {1.2F, 0.3F, 0.3F};

/* State of one sequence. */
struct mixed_sequence {
    float *likeness; /* [room] */
    float *recent;   /* [layers][experts] */
    float *votes;    /* [distances + 1 positions][distances][experts] log(share + FLOOR), predicted at a position */
    float weight;    /* likeness of a map with the same experts in all layers */
    uint32_t last;   /* index + 1 of the map of the iteration before; 0: none */
};

struct mixed {
    struct efs_maps maps;
    unsigned inputs;
    size_t rows;         /* distances * layers */
    uint32_t *next;      /* [1] index of the next map to write */
    float *link;         /* [rows][inputs][experts i][experts e] */
    float *link_squares; /* [rows][inputs][experts i] squared gradients, mean over e */
    float *bias;         /* [rows][experts], relative to BIAS_FIRST */
    float *exponent;     /* [rows][MIXED_FEATURES], relative to first_exponents */
    float *exponent_squares;
    struct mixed_sequence *sequences;
    float *feature;  /* [MIXED_FEATURES][experts] scratch */
    float *odds;     /* [experts] scratch: log odds, then gradients */
    float *carried;  /* [room] scratch */
    uint8_t *wanted; /* [experts] all 0 between calls */
};

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static int mixed_tables(struct efs_predictor *p, struct mixed *x)
{
    size_t sequences = p->config.sequences, experts = p->experts, links = x->rows * experts;

    x->next = efs_predict_learned(p, 1, sizeof(*x->next));
    x->bias = efs_predict_learned(p, links, sizeof(*x->bias));
    x->exponent = efs_predict_learned(p, x->rows * MIXED_FEATURES, sizeof(*x->exponent));
    x->exponent_squares = efs_predict_learned(p, x->rows * MIXED_FEATURES, sizeof(*x->exponent_squares));
    x->sequences = efs_predict_table(p, sequences, sizeof(*x->sequences));
    x->feature = efs_predict_table(p, MIXED_FEATURES * experts, sizeof(*x->feature));
    x->odds = efs_predict_table(p, experts, sizeof(*x->odds));
    x->wanted = efs_predict_table(p, experts, sizeof(*x->wanted));
    for (size_t s = 0; x->sequences && s < sequences; s++) {
        x->sequences[s].recent = efs_predict_table(p, p->layers * experts, sizeof(float));
        x->sequences[s].votes = efs_predict_table(p, (p->distances + 1) * p->distances * experts, sizeof(float));
    }
    return efs_predict_table_error(p);
}

static int mixed_links_and_maps(struct efs_predictor *p, struct mixed *x)
{
    size_t sequences = p->config.sequences, rows = x->rows * p->experts,
           input = rows * (p->experts + 1) * sizeof(float);
    float *likeness;
    int rc;

    /* A quarter of the remaining memory is for maps. */
    x->inputs = p->room_bytes / 4 * 3 / input < INPUTS ? (unsigned)(p->room_bytes / 4 * 3 / input) : INPUTS;
    x->link = efs_predict_learned(p, rows * x->inputs * p->experts, sizeof(*x->link));
    x->link_squares = efs_predict_learned(p, rows * x->inputs, sizeof(*x->link_squares));
    rc = efs_maps_open(&x->maps, p, (sequences + 1) * sizeof(*likeness));
    if (rc < 0)
        return rc;
    likeness = efs_predict_table(p, sequences * x->maps.room, sizeof(*likeness));
    x->carried = efs_predict_table(p, x->maps.room, sizeof(*x->carried));
    if (!likeness || !x->carried)
        return efs_predict_table_error(p);
    for (size_t s = 0; s < sequences; s++)
        x->sequences[s].likeness = likeness + s * x->maps.room;
    return 0;
}

static int mixed_open(struct efs_predictor *p)
{
    struct mixed *x = p->state = efs_predict_table(p, 1, sizeof(*x));
    int rc;

    if (!x)
        return efs_predict_table_error(p);
    x->rows = (size_t)p->distances * p->layers;
    rc = mixed_tables(p, x);
    return rc < 0 ? rc : mixed_links_and_maps(p, x);
}

static float *mixed_votes(const struct efs_predictor *p, unsigned s, int64_t position, unsigned distance)
{
    const struct mixed *x = p->state;
    size_t slot = (size_t)(position % (p->distances + 1));

    return x->sequences[s].votes + (slot * p->distances + distance - 1) * p->experts;
}

static void mixed_begin(struct efs_predictor *p, unsigned s)
{
    struct mixed *x = p->state;
    struct mixed_sequence *q = &x->sequences[s];
    size_t votes = (size_t)(p->distances + 1) * p->distances * p->experts;

    memset(q->likeness, 0, x->maps.room * sizeof(*q->likeness));
    memset(q->recent, 0, (size_t)p->layers * p->experts * sizeof(*q->recent));
    for (size_t i = 0; i < votes; i++)
        q->votes[i] = logf(FLOOR);
    q->weight = 0;
    q->last = 0;
}

/* ---- the sum ----------------------------------------------------------------------------------------------------- */

/* The experts of an input, for a target predicted from now. */
static struct efs_predict_row mixed_input(const struct efs_predictor *p, unsigned s, unsigned input, int64_t now,
                                          int64_t target)
{
    switch (input) {
    case 0:
        return efs_predict_at(p, s, now);
    case 1:
        return efs_predict_at(p, s, target - p->layers);
    default:
        return efs_predict_at(p, s, now - (input - 1));
    }
}

static void mixed_features(const struct efs_predictor *p, unsigned s, int64_t now, int64_t target)
{
    const struct mixed *x = p->state;
    const struct efs_predict_sequence *q = &p->sequences[s];
    size_t layer = efs_predict_layer(p, target), unit = layer * p->experts;
    const float *votes = mixed_votes(p, s, now, (unsigned)(target - now));
    const float *recent = x->sequences[s].recent + unit;
    /* Iterations before the target's, plus the prior. */
    float passes = (float)(target / p->layers) + PRIOR;

    for (unsigned e = 0; e < p->experts; e++) {
        x->feature[MIXED_NEAREST * p->experts + e] = votes[e];
        x->feature[MIXED_RATE * p->experts + e] = logf((float)q->wanted[unit + e] / passes + FLOOR);
        x->feature[MIXED_RECENCY * p->experts + e] = logf(recent[e] + FLOOR);
    }
}

static size_t mixed_row(const struct efs_predictor *p, int64_t now, int64_t target)
{
    return (size_t)(target - now - 1) * p->layers + efs_predict_layer(p, target);
}

static size_t mixed_link(const struct efs_predictor *p, size_t row, unsigned input, unsigned expert)
{
    const struct mixed *x = p->state;

    return (row * x->inputs + input) * p->experts + expert;
}

/* Computes the log odds of a target predicted from now into x->odds; fills x->feature. */
static void mixed_sum(const struct efs_predictor *p, unsigned s, int64_t now, int64_t target)
{
    const struct mixed *x = p->state;
    size_t row = mixed_row(p, now, target);

    mixed_features(p, s, now, target);
    for (unsigned e = 0; e < p->experts; e++)
        x->odds[e] = BIAS_FIRST + x->bias[row * p->experts + e];
    for (unsigned f = 0; f < MIXED_FEATURES; f++) {
        float exponent = first_exponents[f] + x->exponent[row * MIXED_FEATURES + f];

        for (unsigned e = 0; e < p->experts; e++)
            x->odds[e] += exponent * x->feature[f * p->experts + e];
    }
    for (unsigned input = 0; input < x->inputs; input++) {
        struct efs_predict_row chosen = mixed_input(p, s, input, now, target);

        for (unsigned i = 0; i < chosen.count; i++) {
            const float *link = x->link + mixed_link(p, row, input, chosen.experts[i]) * p->experts;

            for (unsigned e = 0; e < p->experts; e++)
                x->odds[e] += link[e];
        }
    }
}

static float mixed_probability(float odds)
{
    return 1 / (1 + expf(-odds));
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

static void mixed_learn_links(struct efs_predictor *p, unsigned s, int64_t now, int64_t target)
{
    struct mixed *x = p->state;
    const float *slope = x->odds;
    size_t row = mixed_row(p, now, target);

    for (unsigned input = 0; input < x->inputs; input++) {
        struct efs_predict_row chosen = mixed_input(p, s, input, now, target);

        for (unsigned i = 0; i < chosen.count; i++) {
            size_t at = mixed_link(p, row, input, chosen.experts[i]);
            float *link = x->link + at * p->experts, square = 0, step;

            for (unsigned e = 0; e < p->experts; e++)
                square += slope[e] * slope[e];
            x->link_squares[at] += square / (float)p->experts;
            step = LINK_STEP / sqrtf(x->link_squares[at] + 1e-3F);
            for (unsigned e = 0; e < p->experts; e++)
                link[e] -= step * (slope[e] + SHRINK * link[e]);
        }
    }
}

/* One gradient step for the choice of position `target`, predicted from now. */
static void mixed_step(struct efs_predictor *p, unsigned s, int64_t now, int64_t target,
                       const struct efs_predict_row *chosen)
{
    struct mixed *x = p->state;
    size_t row = mixed_row(p, now, target);

    mixed_sum(p, s, now, target);
    for (unsigned i = 0; i < chosen->count; i++)
        x->wanted[chosen->experts[i]] = 1;
    for (unsigned e = 0; e < p->experts; e++) {
        x->odds[e] = mixed_probability(x->odds[e]) - x->wanted[e]; /* the gradient */
        x->bias[row * p->experts + e] -= BIAS_STEP * x->odds[e];
    }
    for (unsigned i = 0; i < chosen->count; i++)
        x->wanted[chosen->experts[i]] = 0;
    for (unsigned f = 0; f < MIXED_FEATURES; f++) {
        float slope = 0, *squares = &x->exponent_squares[row * MIXED_FEATURES + f];

        for (unsigned e = 0; e < p->experts; e++)
            slope += x->odds[e] * x->feature[f * p->experts + e];
        *squares += slope * slope;
        x->exponent[row * MIXED_FEATURES + f] -= EXPONENT_STEP * slope / sqrtf(*squares + 1);
    }
    mixed_learn_links(p, s, now, target);
}

/* ---- nearest maps ------------------------------------------------------------------------------------------------ */

struct mixed_nearest {
    unsigned count;
    uint32_t map[NEAREST];
    float likeness[NEAREST]; /* in falling order */
};

static inline __attribute__((always_inline)) void mixed_compare(const uint16_t *experts, const uint8_t *scores,
                                                                const uint8_t *wanted, float *likeness, unsigned count,
                                                                unsigned width)
{
    for (unsigned m = 0; m < count; m++, experts += width, scores += width) {
        unsigned common = 0;

        for (unsigned i = 0; i < width; i++)
            common += wanted[experts[i]] & (scores[i] != 0);
        likeness[m] = FADE * likeness[m] + (float)common;
    }
}

static void mixed_follow(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct mixed *x = p->state;
    struct mixed_sequence *q = &x->sequences[s];
    size_t at = efs_maps_at(&x->maps, efs_predict_layer(p, p->sequences[s].now), 0);
    const uint16_t *experts = x->maps.experts_of + at;
    const uint8_t *scores = x->maps.scores + at;

    for (unsigned i = 0; i < row->count; i++)
        x->wanted[row->experts[i]] = 1;
    switch (x->maps.width) {
    case 4:
        mixed_compare(experts, scores, x->wanted, q->likeness, *x->maps.count, 4);
        break;
    case 8:
        mixed_compare(experts, scores, x->wanted, q->likeness, *x->maps.count, 8);
        break;
    default:
        mixed_compare(experts, scores, x->wanted, q->likeness, *x->maps.count, x->maps.width);
    }
    for (unsigned i = 0; i < row->count; i++)
        x->wanted[row->experts[i]] = 0;
    q->weight = FADE * q->weight + (float)(row->count ? row->count : 1);
}

static void mixed_find(const struct mixed *x, const struct mixed_sequence *q, struct mixed_nearest *near)
{
    float least = 0;

    near->count = 0;
    for (uint32_t m = 0; m < *x->maps.count; m++) {
        float likeness = q->likeness[m];
        unsigned at;

        if (likeness <= least)
            continue;
        if (near->count < NEAREST)
            near->count++;
        for (at = near->count - 1; at > 0 && near->likeness[at - 1] < likeness; at--) {
            near->likeness[at] = near->likeness[at - 1];
            near->map[at] = near->map[at - 1];
        }
        near->likeness[at] = likeness;
        near->map[at] = m;
        if (near->count == NEAREST)
            least = near->likeness[NEAREST - 1];
    }
}

/* Computes the votes of the nearest maps for a position ahead. */
static void mixed_vote(const struct efs_predictor *p, unsigned s, const struct mixed_nearest *near, unsigned distance)
{
    const struct mixed *x = p->state;
    int64_t now = p->sequences[s].now, target = now + distance;
    bool next = target / p->layers != now / p->layers;
    float *votes = mixed_votes(p, s, now, distance), sum = 0;

    memset(votes, 0, p->experts * sizeof(*votes));
    for (unsigned n = 0; n < near->count; n++) {
        uint32_t map = next ? x->maps.after[near->map[n]] : near->map[n] + 1;
        float weight = expf(SHARPNESS * (near->likeness[n] - near->likeness[0]) / x->sequences[s].weight);
        size_t at;

        if (!map)
            continue;
        at = efs_maps_at(&x->maps, efs_predict_layer(p, target), map - 1);
        sum += weight;
        for (unsigned i = 0; i < x->maps.width && x->maps.scores[at + i]; i++)
            votes[x->maps.experts_of[at + i]] += weight;
    }
    for (unsigned e = 0; e < p->experts; e++)
        votes[e] = logf((sum > 0 ? votes[e] / sum : 0) + FLOOR);
}

static void mixed_observe(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct mixed *x = p->state;
    int64_t now = p->sequences[s].now;
    float *recent = x->sequences[s].recent + (size_t)efs_predict_layer(p, now) * p->experts;
    struct mixed_nearest near;

    for (unsigned d = 1; p->learn && d <= p->distances && d <= now; d++)
        mixed_step(p, s, now - d, now, row);
    for (unsigned e = 0; e < p->experts; e++)
        recent[e] *= RECENCY;
    for (unsigned i = 0; i < row->count; i++)
        recent[row->experts[i]] += 1 - RECENCY;
    mixed_follow(p, s, row);
    mixed_find(x, &x->sequences[s], &near);
    for (unsigned d = 1; d <= p->distances; d++)
        mixed_vote(p, s, &near, d);
}

/* Replaces the oldest map by that of this iteration. */
static void mixed_store(struct efs_predictor *p, unsigned s)
{
    struct mixed *x = p->state;
    struct mixed_sequence *q = &x->sequences[s];
    uint32_t place = *x->next;

    for (unsigned other = 0; other < p->config.sequences; other++) {
        x->sequences[other].likeness[place] = 0;
        if (x->sequences[other].last == place + 1)
            x->sequences[other].last = 0;
    }
    efs_maps_add(&x->maps, p, s, p->sequences[s].now, place, q->last);
    q->last = place + 1;
    *x->next = place + 1 < x->maps.room ? place + 1 : 0;
}

static void mixed_iteration(struct efs_predictor *p, unsigned s)
{
    struct mixed *x = p->state;
    struct mixed_sequence *q = &x->sequences[s];

    if (p->learn)
        mixed_store(p, s);
    else
        q->last = 0;
    for (uint32_t m = 0; m < *x->maps.count; m++) {
        uint32_t before = x->maps.before[m];

        x->carried[m] = before ? CARRY * q->likeness[before - 1] : 0;
    }
    memcpy(q->likeness, x->carried, *x->maps.count * sizeof(*q->likeness));
    q->weight *= CARRY;
}

static unsigned mixed_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct mixed *x = p->state;

    mixed_sum(p, s, p->sequences[s].now, target);
    for (unsigned e = 0; e < p->experts; e++)
        probability[e] = mixed_probability(x->odds[e]);
    return 0;
}

/* ---- check after a load ------------------------------------------------------------------------------------------ */

static bool mixed_all_within(const float *values, size_t count, float least)
{
    for (size_t i = 0; i < count; i++)
        if (!(values[i] >= least && values[i] <= 1e12F))
            return false;
    return true;
}

static bool mixed_valid(struct efs_predictor *p)
{
    const struct mixed *x = p->state;
    size_t rows = x->rows * p->experts;

    return *x->next < x->maps.room && *x->next <= *x->maps.count && efs_maps_valid(&x->maps) &&
           mixed_all_within(x->bias, rows, -1e12F) && mixed_all_within(x->exponent, x->rows * MIXED_FEATURES, -1e12F) &&
           mixed_all_within(x->exponent_squares, x->rows * MIXED_FEATURES, 0) &&
           mixed_all_within(x->link, rows * x->inputs * p->experts, -1e12F) &&
           mixed_all_within(x->link_squares, rows * x->inputs, 0);
}

const struct efs_predict_ops efs_predict_mixed = {.name = "mixed",
                                                  .open = mixed_open,
                                                  .begin = mixed_begin,
                                                  .observe = mixed_observe,
                                                  .iteration = mixed_iteration,
                                                  .score = mixed_score,
                                                  .valid = mixed_valid};
