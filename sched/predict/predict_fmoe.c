/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_fmoe.c - fMoE: predicts from the stored expert map of the iteration most similar to the current one.
 *
 * A map has the gate's distribution P_l for each layer; if only the scores of the chosen experts are known, only those.
 * By trajectory: the cosine between the layers of this iteration and the same layers of each map; the prediction is
 * P_{l+d} of the best map. The first layers have no trajectory yet: the paper compares the embedding of the input. This
 * code has no embeddings and uses the map of the iteration before as the key: the prediction is the map that followed
 * the best matches of the last iteration.
 *
 * Products are updated with each layer, O(C K) per layer for C maps. A sparse map has only as many experts as were
 * chosen; the experts of the next best maps follow with lower probabilities.
 *
 * A full store replaces the map that is most redundant with the new one (RDY).
 */
#include "predict_maps.h"

#include <math.h>

#define BEST 4u

struct fmoe_best {
    unsigned count;
    uint32_t map[BEST];
    float score[BEST]; /* cosine */
};

/* State of one sequence. */
struct fmoe_sequence {
    uint32_t *product;        /* [room] dot product of each map with this iteration, up to the current layer */
    uint32_t *square;         /* [room] of the map's same layers with themselves */
    float *semantic;          /* [room] cosine between the iterations before this one and before the map */
    uint32_t own;             /* square of this iteration, up to the current layer */
    uint32_t last;            /* index + 1 of the map of the iteration before; 0: none */
    struct fmoe_best nearest; /* by trajectory */
    struct fmoe_best follow;  /* by the iteration before */
};

struct fmoe {
    struct efs_maps maps;
    struct fmoe_sequence *sequences;
    uint32_t *weights; /* [experts] all 0 between calls */
    uint8_t *scores;   /* [width] */
};

static int fmoe_open(struct efs_predictor *p)
{
    struct fmoe *f = p->state = efs_predict_table(p, 1, sizeof(*f));
    size_t sequences = p->config.sequences;
    uint32_t *products, *squares;
    float *semantics;
    int rc;

    if (!f)
        return efs_predict_table_error(p);
    f->sequences = efs_predict_table(p, sequences, sizeof(*f->sequences));
    f->weights = efs_predict_table(p, p->experts, sizeof(*f->weights));
    f->scores = efs_predict_table(p, p->width, sizeof(*f->scores));
    rc = efs_maps_open(&f->maps, p, sequences * (2 * sizeof(*products) + sizeof(*semantics)));
    if (rc < 0)
        return rc;
    products = efs_predict_table(p, sequences * f->maps.room, sizeof(*products));
    squares = efs_predict_table(p, sequences * f->maps.room, sizeof(*squares));
    semantics = efs_predict_table(p, sequences * f->maps.room, sizeof(*semantics));
    rc = efs_predict_table_error(p);
    if (rc < 0)
        return rc;
    for (size_t s = 0; s < sequences; s++) {
        f->sequences[s].product = products + s * f->maps.room;
        f->sequences[s].square = squares + s * f->maps.room;
        f->sequences[s].semantic = semantics + s * f->maps.room;
    }
    return 0;
}

/* ---- similarity -------------------------------------------------------------------------------------------------- */

static void fmoe_restart(struct fmoe_sequence *q, unsigned room)
{
    memset(q->product, 0, room * sizeof(*q->product));
    memset(q->square, 0, room * sizeof(*q->square));
    q->own = 0;
    q->nearest.count = 0;
}

static void fmoe_begin(struct efs_predictor *p, unsigned s)
{
    struct fmoe *f = p->state;
    struct fmoe_sequence *q = &f->sequences[s];

    fmoe_restart(q, f->maps.room);
    memset(q->semantic, 0, f->maps.room * sizeof(*q->semantic));
    q->last = 0;
    q->follow.count = 0;
}

/* Always inlined, so that the compiler unrolls the inner loop for a constant width. */
static inline __attribute__((always_inline)) void fmoe_multiply(const uint16_t *experts, const uint8_t *scores,
                                                                const uint32_t *weights, uint32_t *product,
                                                                uint32_t *square, unsigned count, unsigned width)
{
    for (unsigned m = 0; m < count; m++, experts += width, scores += width) {
        uint32_t sum = 0, own = 0;

        for (unsigned i = 0; i < width; i++) {
            sum += weights[experts[i]] * scores[i];
            own += (uint32_t)scores[i] * scores[i];
        }
        product[m] += sum;
        square[m] += own;
    }
}

/* Eight 16-bit lanes: two maps with four experts per layer. */
#define LANES 8u
typedef uint16_t fmoe_lanes __attribute__((vector_size(16)));
typedef uint32_t fmoe_pairs __attribute__((vector_size(16)));
typedef uint64_t fmoe_fours __attribute__((vector_size(16)));
typedef uint8_t fmoe_bytes __attribute__((vector_size(8)));

/* Sums of four lanes each. */
static inline fmoe_fours fmoe_sum_fours(fmoe_lanes lanes)
{
    fmoe_pairs pairs = (fmoe_pairs)lanes;
    fmoe_fours fours = (fmoe_fours)((pairs & 0xFFFF) + (pairs >> 16));

    return (fours & 0xFFFFFFFF) + (fours >> 32);
}

/*
 * The same for four experts per layer: compares the experts with those of the row instead of a table look-up. An expert
 * occurs once in a row, so a product fits in 16 bits. Returns the number of maps processed; one may be left.
 */
static unsigned fmoe_multiply_fours(const uint16_t *experts, const uint8_t *scores, const struct efs_predict_row *row,
                                    const uint8_t *row_scores, uint32_t *product, uint32_t *square, unsigned count)
{
    fmoe_lanes wanted[4], weights[4] = {{0}};
    unsigned m = 0;

    for (unsigned i = 0; i < 4; i++) {
        bool there = i < row->scored;

        wanted[i] = (fmoe_lanes){0} + (uint16_t)(there ? row->experts[i] : UINT16_MAX);
        weights[i] += (uint16_t)(there ? row_scores[i] : 0);
    }
    for (; m + 2 <= count; m += 2, experts += LANES, scores += LANES) {
        fmoe_lanes of, weight, score;
        fmoe_bytes bytes;
        fmoe_fours sum, own;

        memcpy(&of, experts, sizeof(of));
        memcpy(&bytes, scores, sizeof(bytes));
        score = __builtin_convertvector(bytes, fmoe_lanes);
        weight = ((fmoe_lanes)(of == wanted[0]) & weights[0]) | ((fmoe_lanes)(of == wanted[1]) & weights[1]) |
                 ((fmoe_lanes)(of == wanted[2]) & weights[2]) | ((fmoe_lanes)(of == wanted[3]) & weights[3]);
        sum = fmoe_sum_fours(weight * score);
        own = fmoe_sum_fours(score * score);
        product[m] += (uint32_t)sum[0];
        product[m + 1] += (uint32_t)sum[1];
        square[m] += (uint32_t)own[0];
        square[m + 1] += (uint32_t)own[1];
    }
    return m;
}

/* Adds the products of maps [from, to) in a layer with the row whose scores are in f->scores, and by expert in
 * f->weights. */
static void fmoe_multiply_layer(struct fmoe *f, struct fmoe_sequence *q, const struct efs_predict_row *row,
                                unsigned layer, unsigned from, unsigned to)
{
    size_t at = efs_maps_at(&f->maps, layer, from);
    const uint16_t *experts = f->maps.experts_of + at;
    const uint8_t *scores = f->maps.scores + at;
    uint32_t *product = q->product + from, *square = q->square + from;
    unsigned width = f->maps.width, done = 0;

    if (width == 8) {
        fmoe_multiply(experts, scores, f->weights, product, square, to - from, 8);
        return;
    }
    if (width == 4)
        done = fmoe_multiply_fours(experts, scores, row, f->scores, product, square, to - from);
    fmoe_multiply(experts + (size_t)done * width, scores + (size_t)done * width, f->weights, product + done,
                  square + done, to - from - done, width);
}

/* Adds the products of maps [from, to) with a row. Returns the row's square. */
static uint32_t fmoe_add(struct fmoe *f, struct fmoe_sequence *q, const struct efs_predict_row *row, unsigned layer,
                         unsigned from, unsigned to)
{
    unsigned count = row->scored < f->maps.width ? row->scored : f->maps.width;
    uint32_t own = 0;

    efs_maps_quantise(row, f->maps.width, f->scores);
    for (unsigned i = 0; i < count; i++) {
        f->weights[row->experts[i]] = f->scores[i];
        own += (uint32_t)f->scores[i] * f->scores[i];
    }
    fmoe_multiply_layer(f, q, row, layer, from, to);
    for (unsigned i = 0; i < count; i++)
        f->weights[row->experts[i]] = 0;
    return own;
}

static float fmoe_cosine(const struct fmoe_sequence *q, unsigned m)
{
    float square = (float)q->square[m] * (float)q->own;

    return square > 0 ? (float)q->product[m] / sqrtf(square) : 0;
}

/* Inserts a map by falling cosine; of equal ones, the first inserted stays first. */
static void fmoe_insert(struct fmoe_best *best, uint32_t map, float score)
{
    unsigned at = best->count;

    while (at > 0 && best->score[at - 1] < score)
        at--;
    if (at == BEST)
        return;
    if (best->count < BEST)
        best->count++;
    for (unsigned i = best->count - 1; i > at; i--) {
        best->map[i] = best->map[i - 1];
        best->score[i] = best->score[i - 1];
    }
    best->map[at] = map;
    best->score[at] = score;
}

typedef int32_t fmoe_ints __attribute__((vector_size(16)));
typedef float fmoe_floats __attribute__((vector_size(16)));
#define AT_ONCE 4u

/* Whether any of AT_ONCE maps from m on has a squared cosine above product * product / square. Values are below 2^31:
 * at most 255 * 255 per layer. */
static bool fmoe_any_beats(const struct fmoe_sequence *q, unsigned m, float product, float square)
{
    fmoe_ints products, squares, beats;
    fmoe_floats mine, own;

    memcpy(&products, q->product + m, sizeof(products));
    memcpy(&squares, q->square + m, sizeof(squares));
    mine = __builtin_convertvector(products, fmoe_floats);
    own = __builtin_convertvector(squares, fmoe_floats);
    beats = mine * mine * square > product * product * own;
    return beats[0] | beats[1] | beats[2] | beats[3];
}

/* Finds the best of all maps, or, with followed, of those with a successor. Compares squared cosines without division,
 * and computes the cosine only for maps that beat the last of the best. */
static void fmoe_find(const struct fmoe *f, const struct fmoe_sequence *q, bool followed, struct fmoe_best *best)
{
    float product = 0, square = 1;

    best->count = 0;
    for (unsigned m = 0; m < *f->maps.count; m++) {
        float mine;

        while (best->count == BEST && m + AT_ONCE <= *f->maps.count && !fmoe_any_beats(q, m, product, square))
            m += AT_ONCE;
        if (m == *f->maps.count)
            break;
        mine = (float)q->product[m];
        if (mine * mine * square <= product * product * (float)q->square[m] || (followed && !f->maps.after[m]))
            continue;
        fmoe_insert(best, m, fmoe_cosine(q, m));
        if (best->count == BEST) {
            product = (float)q->product[best->map[BEST - 1]];
            square = (float)q->square[best->map[BEST - 1]];
        }
    }
}

static void fmoe_observe(struct efs_predictor *p, unsigned s, const struct efs_predict_row *row)
{
    struct fmoe *f = p->state;
    struct fmoe_sequence *q = &f->sequences[s];
    unsigned layer = efs_predict_layer(p, p->sequences[s].now);

    q->own += fmoe_add(f, q, row, layer, 0, *f->maps.count);
    fmoe_find(f, q, false, &q->nearest);
}

/* ---- storage ----------------------------------------------------------------------------------------------------- */

/* The index for the new map: a free one, or that of the most redundant map. */
static unsigned fmoe_place(const struct efs_predictor *p, const struct fmoe *f, const struct fmoe_sequence *q)
{
    unsigned place = 0;
    float most = -1, part = (float)p->distances / (float)p->layers;

    if (*f->maps.count < f->maps.room)
        return *f->maps.count;
    for (unsigned m = 0; m < *f->maps.count; m++) {
        float redundancy = part * q->semantic[m] + (1 - part) * fmoe_cosine(q, m);

        if (redundancy > most) {
            most = redundancy;
            place = m;
        }
    }
    return place;
}

static void fmoe_forget_map(struct fmoe_best *best, uint32_t map)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < best->count; i++)
        if (best->map[i] != map) {
            best->map[kept] = best->map[i];
            best->score[kept++] = best->score[i];
        }
    best->count = kept;
}

/* Updates a sequence, possibly within an iteration, after map m was replaced. */
static void fmoe_recount(struct efs_predictor *p, unsigned s, unsigned m)
{
    struct fmoe *f = p->state;
    struct fmoe_sequence *q = &f->sequences[s];
    int64_t now = p->sequences[s].now, first = now < 0 ? 0 : now - now % p->layers;

    q->product[m] = q->square[m] = 0;
    q->semantic[m] = 0;
    if (q->last == m + 1)
        q->last = 0;
    fmoe_forget_map(&q->nearest, m);
    fmoe_forget_map(&q->follow, m);
    if (q->own == 0) /* no layer of this iteration observed yet */
        return;
    for (int64_t position = first; position <= now; position++) {
        struct efs_predict_row row = efs_predict_at(p, s, position);

        fmoe_add(f, q, &row, efs_predict_layer(p, position), m, m + 1);
    }
}

static void fmoe_store(struct efs_predictor *p, unsigned s)
{
    struct fmoe *f = p->state;
    struct fmoe_sequence *q = &f->sequences[s];
    unsigned place = fmoe_place(p, f, q);
    uint32_t before = q->last == place + 1 ? 0 : q->last;

    efs_maps_add(&f->maps, p, s, p->sequences[s].now, place, before);
    q->product[place] = q->square[place] = 0; /* so that the map does not match itself */
    for (unsigned other = 0; other < p->config.sequences; other++)
        if (p->sequences[other].used && other != s)
            fmoe_recount(p, other, place);
    q->last = place + 1;
}

static void fmoe_iteration(struct efs_predictor *p, unsigned s)
{
    struct fmoe *f = p->state;
    struct fmoe_sequence *q = &f->sequences[s];

    if (p->learn)
        fmoe_store(p, s);
    else
        q->last = 0;
    fmoe_find(f, q, true, &q->follow);
    for (unsigned i = 0; i < q->follow.count; i++)
        q->follow.map[i] = f->maps.after[q->follow.map[i]] - 1;
    for (unsigned m = 0; m < *f->maps.count; m++)
        q->semantic[m] = f->maps.before[m] ? fmoe_cosine(q, f->maps.before[m] - 1) : 0;
    fmoe_restart(q, f->maps.room);
}

/* ---- predictions ------------------------------------------------------------------------------------------------- */

/* The maps that predict a position, the best first. */
static struct fmoe_best fmoe_maps_for(const struct efs_predictor *p, unsigned s, int64_t target)
{
    const struct fmoe *f = p->state;
    const struct fmoe_sequence *q = &f->sequences[s];
    int64_t now = p->sequences[s].now;
    bool over = q->own == 0, same = target / p->layers == now / p->layers;
    struct fmoe_best best = {0};

    if (over || (same && p->config.tuning.match == EFS_MATCH_SEMANTIC))
        return over && p->config.tuning.match == EFS_MATCH_TRAJECTORY ? best : q->follow;
    if (same)
        return q->nearest;
    /* The target is in the next iteration: use the successors of the maps nearest to this one. */
    for (unsigned i = 0; i < q->nearest.count && p->config.tuning.match != EFS_MATCH_TRAJECTORY; i++)
        if (f->maps.after[q->nearest.map[i]])
            fmoe_insert(&best, f->maps.after[q->nearest.map[i]] - 1, q->nearest.score[i]);
    return best;
}

/* Number of a map's experts to fetch, at least config.chosen: by falling p until the sum reaches delta = 1 - score, so
 * more for a less similar map. */
static unsigned fmoe_picked(const struct efs_predictor *p, const uint8_t *scores, unsigned width, float score)
{
    float delta = 1 - score, sum = 0;
    unsigned picked = 0;

    while (picked < width && scores[picked] && (picked < p->chosen || sum < delta))
        sum += (float)scores[picked++] / EFS_MAPS_ONE;
    return p->config.tuning.no_delta ? p->chosen : picked;
}

static unsigned fmoe_score(struct efs_predictor *p, unsigned s, int64_t target, float *probability)
{
    const struct fmoe *f = p->state;
    struct fmoe_best best = fmoe_maps_for(p, s, target);
    unsigned layer = efs_predict_layer(p, target), picked = 0;
    float least = 1;

    for (unsigned b = 0; b < best.count; b++) {
        size_t at = efs_maps_at(&f->maps, layer, best.map[b]);
        float scale = b ? 0.5F * least : 1; /* below all probabilities of better maps */

        if (b == 0)
            picked = fmoe_picked(p, f->maps.scores + at, f->maps.width, best.score[0]);
        for (unsigned i = 0; i < f->maps.width && f->maps.scores[at + i]; i++) {
            float score = (float)f->maps.scores[at + i] / EFS_MAPS_ONE;
            /* that at least one of `chosen` draws selects the expert */
            float probable = scale * (1 - powf(score < 1 ? 1 - score : 0, (float)p->chosen));
            unsigned expert = f->maps.experts_of[at + i];

            if (probability[expert] > 0)
                continue;
            probability[expert] = probable;
            least = probable < least ? probable : least;
        }
    }
    return picked;
}

static bool fmoe_valid(struct efs_predictor *p)
{
    const struct fmoe *f = p->state;

    return efs_maps_valid(&f->maps);
}

const struct efs_predict_ops efs_predict_fmoe = {.name = "fmoe",
                                                 .open = fmoe_open,
                                                 .begin = fmoe_begin,
                                                 .observe = fmoe_observe,
                                                 .iteration = fmoe_iteration,
                                                 .score = fmoe_score,
                                                 .valid = fmoe_valid};
