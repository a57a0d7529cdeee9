/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_sequence.c - the active sequences: stores the choices of their layers, and passes them to the predictor.
 */
#include "predict_internal.h"

#include <errno.h>
#include <math.h>

unsigned efs_predict_find(const struct efs_predictor *p, uint64_t id)
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

    if (efs_predict_find(p, id) < p->config.sequences)
        return -EEXIST;
    while (s < p->config.sequences && p->sequences[s].used)
        s++;
    if (s == p->config.sequences)
        return -ENOSPC;
    q = &p->sequences[s];
    q->used = true;
    q->id = id;
    q->now = EFS_PREDICT_NO_POSITION;
    q->passes = 0;
    memset(q->counts, 0, (size_t)4 * p->layers * sizeof(*q->counts));
    memset(q->wanted, 0, (size_t)p->layers * p->experts * sizeof(*q->wanted));
    if (p->ops->begin)
        p->ops->begin(p, s);
    return 0;
}

static size_t sequence_row(const struct efs_predictor *p, int64_t position)
{
    return (size_t)(position / p->layers % 2) * p->layers + efs_predict_layer(p, position);
}

struct efs_predict_row efs_predict_at(const struct efs_predictor *p, unsigned s, int64_t position)
{
    const struct efs_predict_sequence *q = &p->sequences[s];
    size_t row, at;

    /* Only the rows of two iterations are stored: that of q->now and the one before. */
    if (position < 0 || position > q->now || position / p->layers < q->now / p->layers - 1)
        return (struct efs_predict_row){NULL, NULL, 0, 0};
    row = sequence_row(p, position);
    at = row * p->width;
    return (struct efs_predict_row){q->ids + at, q->counts[2 * row + 1] && q->scores[at] >= 0 ? q->scores + at : NULL,
                                    q->counts[2 * row], q->counts[2 * row + 1]};
}

static void sequence_end_iteration(struct efs_predictor *p, unsigned s)
{
    if (p->ops->iteration)
        p->ops->iteration(p, s);
    p->sequences[s].passes++;
}

/* Advances to a position; skipped positions have no experts. */
static void sequence_advance(struct efs_predictor *p, unsigned s, int64_t position)
{
    struct efs_predict_sequence *q = &p->sequences[s];

    if (q->now >= 0 && q->now / p->layers != position / p->layers && efs_predict_layer(p, q->now) != p->layers - 1)
        sequence_end_iteration(p, s);
    for (int64_t skipped = q->now + 1; skipped <= position; skipped++)
        memset(q->counts + 2 * sequence_row(p, skipped), 0, 2 * sizeof(*q->counts));
    q->now = position;
}

static unsigned observation_scored(const struct efs_predict_observation *seen)
{
    return seen->scored ? seen->scored : seen->count;
}

static unsigned lesser(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static void sequence_record(struct efs_predictor *p, struct efs_predict_sequence *q,
                            const struct efs_predict_observation *seen)
{
    size_t row = sequence_row(p, q->now), at = row * p->width;
    unsigned scored = lesser(observation_scored(seen), p->width);

    q->counts[2 * row] = (uint16_t)lesser(seen->count, p->chosen);
    q->counts[2 * row + 1] = (uint16_t)scored;
    for (unsigned i = 0; i < scored; i++) {
        q->ids[at + i] = seen->experts[i];
        q->scores[at + i] = seen->scores ? seen->scores[i] : -1.0F;
    }
}

static bool observation_valid(struct efs_predictor *p, const struct efs_predict_observation *seen)
{
    unsigned marked = 0;
    bool good =
        seen->layer < p->layers && observation_scored(seen) <= p->experts && seen->count <= observation_scored(seen);

    while (good && marked < observation_scored(seen)) {
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

int efs_predict_observe(struct efs_predictor *p, uint64_t id, const struct efs_predict_observation *seen)
{
    unsigned s = efs_predict_find(p, id);
    struct efs_predict_sequence *q = p->sequences + s;
    int64_t iteration;

    if (s == p->config.sequences)
        return -ENOENT;
    if (!observation_valid(p, seen))
        return -EINVAL;
    iteration = q->now < 0 ? 0 : q->now / p->layers + (seen->layer <= efs_predict_layer(p, q->now));
    sequence_advance(p, s, iteration * p->layers + seen->layer);
    sequence_record(p, q, seen);
    if (p->ops->state && seen->state)
        p->ops->state(p, s, seen->state);
    if (p->ops->observe) {
        struct efs_predict_row row = {seen->experts, seen->scores, seen->count, observation_scored(seen)};

        p->ops->observe(p, s, &row);
    }
    for (unsigned i = 0; i < seen->count; i++)
        q->wanted[(size_t)seen->layer * p->experts + seen->experts[i]]++;
    if (seen->layer == p->layers - 1)
        sequence_end_iteration(p, s);
    return 0;
}

int efs_predict_end(struct efs_predictor *p, uint64_t id)
{
    unsigned s = efs_predict_find(p, id);

    if (s == p->config.sequences)
        return -ENOENT;
    if (p->ops->end)
        p->ops->end(p, s);
    p->sequences[s].used = false;
    return 0;
}
