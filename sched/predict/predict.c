/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict.c - what all predictors share: their tables, the sequences under way, the best of a layer.
 */
#include "predict_core.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static const struct efs_predict_ops *const kinds[EFS_PREDICTORS] = {
    [EFS_PREDICT_DEEPSPEED] = &efs_predict_deepspeed,
    [EFS_PREDICT_BRAINSTORM] = &efs_predict_brainstorm,
    [EFS_PREDICT_REQUEST] = &efs_predict_request,
    [EFS_PREDICT_TRANSITION] = &efs_predict_transition,
    [EFS_PREDICT_EDGEMOE] = &efs_predict_edgemoe,
    [EFS_PREDICT_INFINITY] = &efs_predict_infinity,
    [EFS_PREDICT_FMOE] = &efs_predict_fmoe,
    [EFS_PREDICT_MIXED] = &efs_predict_mixed,
    [EFS_PREDICT_OFFLOADING] = &efs_predict_offloading,
    [EFS_PREDICT_HYBRIMOE] = &efs_predict_hybrimoe,
    [EFS_PREDICT_DALI] = &efs_predict_dali,
    [EFS_PREDICT_LINEAR] = &efs_predict_linear,
};

const char *efs_predictor_name(enum efs_predictor_kind kind)
{
    return (unsigned)kind < EFS_PREDICTORS ? kinds[kind]->name : NULL;
}

enum efs_predictor_kind efs_predictor_by_name(const char *name)
{
    enum efs_predictor_kind kind = 0;

    while (kind < EFS_PREDICTORS && strcmp(kinds[kind]->name, name) != 0)
        kind++;
    return kind;
}

bool efs_predictor_needs_states(enum efs_predictor_kind kind)
{
    return (unsigned)kind < EFS_PREDICTORS && kinds[kind]->states;
}

/* ---- making one ------------------------------------------------------------------------------------------------ */

void *efs_predict_table(struct efs_predictor *p, size_t count, size_t size)
{
    size_t bytes;
    void *table;

    if (__builtin_mul_overflow(count, size, &bytes) || bytes > p->room_bytes || p->table_count == EFS_PREDICT_TABLES) {
        p->too_big = true;
        return NULL;
    }
    table = calloc(count ? count : 1, size);
    if (!table)
        return NULL;
    p->tables[p->table_count++] = table;
    p->room_bytes -= bytes;
    p->bytes += bytes;
    return table;
}

void *efs_predict_learned(struct efs_predictor *p, size_t count, size_t size)
{
    void *table = efs_predict_table(p, count, size);

    if (table)
        p->learned[p->learned_count++] = (struct efs_predict_learned_table){table, count, size};
    return table;
}

int efs_predict_table_error(const struct efs_predictor *p)
{
    return p->too_big ? -E2BIG : -ENOMEM;
}

void efs_predict_forget(struct efs_predictor *p)
{
    for (unsigned t = 0; t < p->learned_count; t++)
        memset(p->learned[t].at, 0, p->learned[t].count * p->learned[t].size);
}

static bool valid_config(const struct efs_predict_config *c)
{
    return (unsigned)c->kind < EFS_PREDICTORS && c->layers >= 1 && c->layers <= EFS_PREDICT_MAX_LAYERS &&
           c->experts >= 1 && c->experts <= EFS_PREDICT_MAX_EXPERTS && c->chosen >= 1 && c->chosen <= c->experts &&
           c->chosen <= EFS_PREDICT_MAX_CHOSEN && c->distances >= 1 && c->distances <= c->layers &&
           c->distances <= EFS_PREDICT_MAX_DISTANCE && c->tuning.width <= c->experts &&
           (!c->tuning.width || c->tuning.width >= c->chosen) && (unsigned)c->tuning.match <= EFS_MATCH_SEMANTIC &&
           c->sequences >= 1 && c->sequences <= EFS_PREDICT_MAX_SEQUENCES && c->state_width <= EFS_PREDICT_MAX_WIDTH;
}

static int make_tables(struct efs_predictor *p)
{
    size_t slots = (size_t)2 * p->layers * p->width, units = (size_t)p->layers * p->experts;
    unsigned count = p->config.sequences;
    uint16_t *ids;
    float *scores;
    uint16_t *counts;
    uint32_t *wanted;

    p->sequences = efs_predict_table(p, count, sizeof(*p->sequences));
    ids = efs_predict_table(p, count * slots, sizeof(*ids));
    scores = efs_predict_table(p, count * slots, sizeof(*scores));
    counts = efs_predict_table(p, (size_t)count * 4 * p->layers, sizeof(*counts));
    wanted = efs_predict_table(p, count * units, sizeof(*wanted));
    p->probability = efs_predict_table(p, p->experts, sizeof(*p->probability));
    p->best = efs_predict_table(p, p->experts, sizeof(*p->best));
    p->mark = efs_predict_table(p, p->experts, sizeof(*p->mark));
    if (!p->sequences || !ids || !scores || !counts || !wanted || !p->probability || !p->best || !p->mark)
        return efs_predict_table_error(p);
    for (unsigned s = 0; s < count; s++) {
        p->sequences[s].ids = ids + s * slots;
        p->sequences[s].scores = scores + s * slots;
        p->sequences[s].counts = counts + (size_t)s * 4 * p->layers;
        p->sequences[s].wanted = wanted + s * units;
    }
    return p->ops->open(p);
}

int efs_predictor_new(const struct efs_predict_config *config, struct efs_predictor **out)
{
    struct efs_predictor *p;
    int rc;

    *out = NULL;
    if (!valid_config(config))
        return -EINVAL;
    if (kinds[config->kind]->states && (!config->gates || config->state_width == 0))
        return -ENODATA;
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->ops = kinds[config->kind];
    p->config = *config;
    p->layers = config->layers;
    p->experts = config->experts;
    p->chosen = config->chosen;
    p->distances = config->distances;
    p->width = config->tuning.width ? config->tuning.width : config->chosen;
    p->learn = true;
    p->bytes = sizeof(*p);
    p->room_bytes = config->memory_bytes ? config->memory_bytes : EFS_PREDICT_MEMORY;
    p->room_bytes -= p->room_bytes < sizeof(*p) ? p->room_bytes : sizeof(*p);
    rc = make_tables(p);
    if (rc) {
        efs_predictor_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void efs_predictor_free(struct efs_predictor *p)
{
    if (!p)
        return;
    for (unsigned t = 0; t < p->table_count; t++)
        free(p->tables[t]);
    free(p);
}

uint64_t efs_predict_bytes(const struct efs_predictor *p)
{
    return p->bytes;
}

void efs_predict_learn(struct efs_predictor *p, bool on)
{
    p->learn = on;
}

/* ---- sequences ------------------------------------------------------------------------------------------------- */

static unsigned find_sequence(const struct efs_predictor *p, uint64_t id)
{
    unsigned s = 0;

    while (s < p->config.sequences && !(p->sequences[s].used && p->sequences[s].id == id))
        s++;
    return s;
}

int efs_predict_begin(struct efs_predictor *p, uint64_t id)
{
    struct efs_predict_sequence *q;
    unsigned s = 0;

    if (find_sequence(p, id) < p->config.sequences)
        return -EEXIST;
    while (s < p->config.sequences && p->sequences[s].used)
        s++;
    if (s == p->config.sequences)
        return -ENOSPC;
    q = &p->sequences[s];
    q->used = true;
    q->id = id;
    q->now = EFS_PREDICT_NOWHERE;
    q->tokens = 1;
    q->passes = 0;
    memset(q->counts, 0, (size_t)4 * p->layers * sizeof(*q->counts));
    memset(q->wanted, 0, (size_t)p->layers * p->experts * sizeof(*q->wanted));
    if (p->ops->begin)
        p->ops->begin(p, s);
    return 0;
}

static size_t row_of(const struct efs_predictor *p, int64_t position)
{
    return (size_t)(position / p->layers % 2) * p->layers + efs_predict_layer(p, position);
}

struct efs_predict_row efs_predict_at(const struct efs_predictor *p, unsigned s, int64_t position)
{
    const struct efs_predict_sequence *q = &p->sequences[s];
    size_t row, at;

    /* Rows are kept of two iterations: of q->now's, and of the one before. */
    if (position < 0 || position > q->now || position / p->layers < q->now / p->layers - 1)
        return (struct efs_predict_row){NULL, NULL, 0, 0};
    row = row_of(p, position);
    at = row * p->width;
    return (struct efs_predict_row){q->ids + at, q->counts[2 * row + 1] && q->scores[at] >= 0 ? q->scores + at : NULL,
                                    q->counts[2 * row], q->counts[2 * row + 1]};
}

static void end_iteration(struct efs_predictor *p, unsigned s)
{
    if (p->ops->iteration)
        p->ops->iteration(p, s);
    p->sequences[s].passes++;
}

/* Go on to a position; what was left out on the way has chosen nothing. */
static void advance(struct efs_predictor *p, unsigned s, int64_t position)
{
    struct efs_predict_sequence *q = &p->sequences[s];

    if (q->now >= 0 && q->now / p->layers != position / p->layers && efs_predict_layer(p, q->now) != p->layers - 1)
        end_iteration(p, s);
    for (int64_t skipped = q->now + 1; skipped <= position; skipped++)
        memset(q->counts + 2 * row_of(p, skipped), 0, 2 * sizeof(*q->counts));
    q->now = position;
}

static unsigned scored_of(const struct efs_predict_seen *seen)
{
    return seen->scored ? seen->scored : seen->count;
}

static unsigned lesser(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static void record(struct efs_predictor *p, struct efs_predict_sequence *q, const struct efs_predict_seen *seen)
{
    size_t row = row_of(p, q->now), at = row * p->width;
    unsigned scored = lesser(scored_of(seen), p->width);

    q->counts[2 * row] = (uint16_t)lesser(seen->count, p->chosen);
    q->counts[2 * row + 1] = (uint16_t)scored;
    q->tokens = seen->tokens ? seen->tokens : 1;
    for (unsigned i = 0; i < scored; i++) {
        q->ids[at + i] = seen->experts[i];
        q->scores[at + i] = seen->scores ? seen->scores[i] : -1.0F;
    }
}

static bool valid_seen(struct efs_predictor *p, const struct efs_predict_seen *seen)
{
    unsigned marked = 0;
    bool good = seen->layer < p->layers && scored_of(seen) <= p->experts && seen->count <= scored_of(seen);

    while (good && marked < scored_of(seen)) {
        unsigned expert = seen->experts[marked];

        good = expert < p->experts && !p->mark[expert] &&
               !(seen->scores && !(seen->scores[marked] >= 0 && seen->scores[marked] <= 1e6F));
        if (good) {
            p->mark[expert] = 1;
            marked++;
        }
    }
    while (marked-- > 0)
        p->mark[seen->experts[marked]] = 0;
    for (unsigned i = 0; good && seen->state && i < p->config.state_width; i++)
        good = fabsf(seen->state[i]) <= 1e6F;
    return good;
}

int efs_predict_observe(struct efs_predictor *p, uint64_t id, const struct efs_predict_seen *seen)
{
    unsigned s = find_sequence(p, id);
    struct efs_predict_sequence *q = p->sequences + s;
    int64_t iteration;

    if (s == p->config.sequences)
        return -ENOENT;
    if (!valid_seen(p, seen))
        return -EINVAL;
    iteration = q->now < 0 ? 0 : q->now / p->layers + (seen->layer <= efs_predict_layer(p, q->now));
    advance(p, s, iteration * p->layers + seen->layer);
    record(p, q, seen);
    if (p->ops->state && seen->state)
        p->ops->state(p, s, seen->state);
    if (p->ops->observe) {
        struct efs_predict_row row = {seen->experts, seen->scores, seen->count, scored_of(seen)};

        p->ops->observe(p, s, &row);
    }
    for (unsigned i = 0; i < seen->count; i++)
        q->wanted[(size_t)seen->layer * p->experts + seen->experts[i]]++;
    if (seen->layer == p->layers - 1)
        end_iteration(p, s);
    return 0;
}

int efs_predict_end(struct efs_predictor *p, uint64_t id)
{
    unsigned s = find_sequence(p, id);

    if (s == p->config.sequences)
        return -ENOENT;
    if (p->ops->end)
        p->ops->end(p, s);
    p->sequences[s].used = false;
    return 0;
}

/* ---- guesses --------------------------------------------------------------------------------------------------- */

static int score(struct efs_predictor *p, uint64_t id, unsigned distance, float *probability, unsigned *s,
                 unsigned *picked)
{
    *s = find_sequence(p, id);
    if (*s == p->config.sequences)
        return -ENOENT;
    if (distance < 1 || distance > p->distances)
        return -EINVAL;
    memset(probability, 0, p->experts * sizeof(*probability));
    *picked = 0;
    if (p->sequences[*s].now >= 0)
        *picked = p->ops->score(p, *s, p->sequences[*s].now + distance, probability);
    if (*picked == 0)
        *picked = p->chosen;
    return 0;
}

int efs_predict_all(struct efs_predictor *p, uint64_t id, unsigned distance, float *probability)
{
    unsigned s, picked;

    return score(p, id, distance, probability, &s, &picked);
}

/* Put an expert among the best so far, which are in order; count of them, at most room. */
static unsigned insert(const struct efs_predictor *p, unsigned expert, uint16_t *best, unsigned count, unsigned room)
{
    float worth = p->probability[expert];
    unsigned at = count;

    while (at > 0 && p->probability[best[at - 1]] < worth)
        at--;
    if (at == room)
        return count;
    if (count < room)
        count++;
    memmove(best + at + 1, best + at, (count - at - 1) * sizeof(*best));
    best[at] = (uint16_t)expert;
    return count;
}

int efs_predict(struct efs_predictor *p, uint64_t id, unsigned distance, struct efs_guess *guesses, unsigned room,
                unsigned *picked)
{
    unsigned s, count = 0, pick, layer;
    int64_t target;
    bool next;
    int rc = score(p, id, distance, p->probability, &s, &pick);

    if (rc < 0)
        return rc;
    room = room < p->experts ? room : p->experts;
    for (unsigned e = 0; room > 0 && e < p->experts; e++)
        if (p->probability[e] > 0)
            count = insert(p, e, p->best, count, room);
    if (picked)
        *picked = pick < count ? pick : count;
    target = p->sequences[s].now + distance;
    layer = efs_predict_layer(p, target);
    next = target / p->layers != p->sequences[s].now / p->layers;
    for (unsigned i = 0; i < count; i++) {
        float probability = p->probability[p->best[i]];

        guesses[i] = (struct efs_guess){.layer = (uint16_t)layer,
                                        .expert = p->best[i],
                                        .next = next,
                                        .probability = probability,
                                        .tokens = probability * (float)p->sequences[s].tokens,
                                        .priority = p->ops->priority ? p->ops->priority(p, probability, distance)
                                                                     : probability / (float)distance};
    }
    return (int)count;
}
