/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_internal.h - internals of the predictors: their operations, and the state of a sequence for all of them.
 *
 * A *position* is iteration * layers + layer: one step of a sequence. The experts of this iteration and the one before
 * are stored, so that every predictor can look back across the border between tokens.
 */
#ifndef EFS_PREDICT_INTERNAL_H
#define EFS_PREDICT_INTERNAL_H

#include "predict.h"
#include "tables.h"

#include <string.h>

#define EFS_PREDICT_LEARNED 16u
#define EFS_PREDICT_NO_POSITION (-1)

/* The choice of a position: at most config.chosen experts; further experts of a prompt are only counted. Where fmoe
 * stores more scores than chosen, the experts not chosen follow. */
struct efs_predict_row {
    const uint16_t *experts;
    const float *scores; /* NULL: unknown */
    unsigned count, scored;
};

struct efs_predict_sequence {
    bool used;
    uint64_t id;
    int64_t now;      /* last observed position; EFS_PREDICT_NO_POSITION: none */
    uint64_t passes;  /* completed iterations */
    uint16_t *ids;    /* [2][layers][width] */
    float *scores;    /* [2][layers][width]; below 0: unknown */
    uint16_t *counts; /* [2][layers][2]: number of chosen experts, and of stored ones */
    uint32_t *wanted; /* [layers][experts] iterations of the sequence that chose it */
};

struct efs_predict_ops {
    const char *name;
    bool states; /* needs states */
    bool gates;  /* needs gates, too */
    /* Allocates tables with efs_predict_table. 0, -ENOMEM, -E2BIG. */
    int (*open)(struct efs_predictor *p);
    void (*begin)(struct efs_predictor *p, unsigned sequence); /* this and all below may be NULL, except score */
    /* The input of the router at position s->now, [state_width]. Called before observe, if it is known. */
    void (*state)(struct efs_predictor *p, unsigned sequence, const float *state);
    /* Position s->now was observed. wanted and passes do not include it yet. Must respect p->learn. */
    void (*observe)(struct efs_predictor *p, unsigned sequence, const struct efs_predict_row *row);
    /* An iteration has ended: its last layer was observed, or a layer of the next one. */
    void (*iteration)(struct efs_predictor *p, unsigned sequence);
    void (*end)(struct efs_predictor *p, unsigned sequence);
    /* Fills in the probabilities of the experts at position `target` = now + distance; all are 0 before the call, and
     * stay 0 without evidence. Returns how many of the best ones the predictor would fetch; 0: config.chosen. */
    unsigned (*score)(struct efs_predictor *p, unsigned sequence, int64_t target, float *probability);
    /* efs_predict_train(); samples->tokens is 1 or more. NULL: the kind learns from observations. */
    int (*train)(struct efs_predictor *p, const struct efs_predict_samples *samples);
    /* Called after a load: whether the tables satisfy the predictor's invariants. NULL: always. */
    bool (*valid)(struct efs_predictor *p);
};

extern const struct efs_predict_ops efs_predict_deepspeed, efs_predict_brainstorm, efs_predict_request,
    efs_predict_transition, efs_predict_edgemoe, efs_predict_infinity, efs_predict_fmoe, efs_predict_mixed,
    efs_predict_offloading, efs_predict_hybrimoe, efs_predict_dali, efs_predict_linear, efs_predict_promoe;

struct efs_predictor {
    const struct efs_predict_ops *ops;
    struct efs_predict_config config;
    unsigned layers, experts, chosen, distances;
    unsigned width; /* stored experts per position */
    bool learn;
    void *state; /* private to the predictor: one of its tables */
    struct efs_predict_sequence *sequences;
    float *probability;  /* [experts] scratch of efs_predict */
    uint16_t *best;      /* [experts] */
    uint8_t *mark;       /* [experts] all 0 between calls */
    uint64_t bytes;      /* of all tables and this struct */
    uint64_t room_bytes; /* bytes that may still be allocated */
    bool too_big;        /* a table exceeded room_bytes */
    struct efs_tables tables;
    struct efs_predict_learned_table {
        void *at;
        size_t bytes;
    } learned[EFS_PREDICT_LEARNED];
    unsigned learned_count;
};

/* count zeroed elements, freed with the predictor. NULL: it exceeds memory_bytes, or out of memory. */
void *efs_predict_table(struct efs_predictor *p, size_t count, size_t size);
/* The same for data learned over sequences, which is saved and loaded. */
void *efs_predict_learned(struct efs_predictor *p, size_t count, size_t size);
/* 0, or the error of a failed allocation: -E2BIG or -ENOMEM. */
int efs_predict_table_error(const struct efs_predictor *p);

/*
 * Co-occurrence counts: row r of together[rows][experts] was used seen[r] times, which stays below 65535, and bounds
 * its counts. efs_predict_count() adds one use; efs_predict_counts_valid() checks all rows.
 */
void efs_predict_count(const struct efs_predictor *p, uint16_t *seen, uint16_t *together, size_t row,
                       const struct efs_predict_row *chosen);
bool efs_predict_counts_valid(const struct efs_predictor *p, const uint16_t *seen, const uint16_t *together,
                              size_t rows);

/* The index of a sequence; config.sequences if it does not exist. */
unsigned efs_predict_find(const struct efs_predictor *p, uint64_t id);
/* The choice of a position; empty if it was skipped, is above s->now, or is older than the iteration before. */
struct efs_predict_row efs_predict_at(const struct efs_predictor *p, unsigned sequence, int64_t position);

float efs_predict_dot(const float *a, const float *b, unsigned count);

static inline unsigned efs_predict_layer(const struct efs_predictor *p, int64_t position)
{
    return (unsigned)(position % p->layers);
}

#endif
