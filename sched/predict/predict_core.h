/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_core.h - inside the predictors: the table of functions, and what is kept of a sequence for all of them.
 *
 * A *position* is iteration * layers + layer: one step of a sequence. The experts of this iteration and the one before
 * are kept, so that any predictor may look back across the border between tokens.
 */
#ifndef EFS_PREDICT_CORE_H
#define EFS_PREDICT_CORE_H

#include "predict.h"
#include "tables.h"

#include <string.h>

#define EFS_PREDICT_LEARNED 16u
#define EFS_PREDICT_NOWHERE (-1)

/* What one position chose: at most the config's chosen, the rest of a prompt's experts count only. Where fmoe keeps
 * more scores than are chosen, those others follow. */
struct efs_predict_row {
    const uint16_t *experts;
    const float *scores; /* NULL: not known */
    unsigned count, scored;
};

struct efs_predict_sequence {
    bool used;
    uint64_t id;
    int64_t now;      /* position observed last; EFS_PREDICT_NOWHERE: none */
    uint64_t passes;  /* iterations that are complete */
    uint16_t *ids;    /* [2][layers][width] */
    float *scores;    /* [2][layers][width]; below 0: not known */
    uint16_t *counts; /* [2][layers][2]: chosen, and with a place in the row */
    uint32_t *wanted; /* [layers][experts] iterations of the sequence that chose it */
};

struct efs_predict_ops {
    const char *name;
    bool states; /* needs gates, and states */
    /* Tables, by efs_predict_table. 0, -ENOMEM, -E2BIG. */
    int (*open)(struct efs_predictor *p);
    void (*begin)(struct efs_predictor *p, unsigned sequence); /* each of these may be NULL */
    /* What the router of the position s->now read, [state_width]: before observe, where it is known. */
    void (*state)(struct efs_predictor *p, unsigned sequence, const float *state);
    /* The position s->now was observed. wanted and passes do not count it yet. learn as efs_predict_learn says. */
    void (*observe)(struct efs_predictor *p, unsigned sequence, const struct efs_predict_row *row);
    /* All layers of an iteration were observed, or will not be. */
    void (*iteration)(struct efs_predictor *p, unsigned sequence);
    void (*end)(struct efs_predictor *p, unsigned sequence);
    /* Probabilities of the experts of the position `target` = now + distance, 0 where nothing speaks for one; all 0 at
     * first. Returns how many of the best it would fetch, 0: as many as are chosen. */
    unsigned (*score)(struct efs_predictor *p, unsigned sequence, int64_t target, float *probability);
    /* After loading: are the tables such as it makes them? NULL: any are. */
    bool (*valid)(struct efs_predictor *p);
};

extern const struct efs_predict_ops efs_predict_deepspeed, efs_predict_brainstorm, efs_predict_request,
    efs_predict_transition, efs_predict_edgemoe, efs_predict_infinity, efs_predict_fmoe, efs_predict_mixed,
    efs_predict_offloading, efs_predict_hybrimoe, efs_predict_dali, efs_predict_linear;

struct efs_predictor {
    const struct efs_predict_ops *ops;
    struct efs_predict_config config;
    unsigned layers, experts, chosen, distances;
    unsigned width; /* experts of a row */
    bool learn;
    void *state; /* of the predictor: one of its tables */
    struct efs_predict_sequence *sequences;
    float *probability;  /* [experts] scratch of efs_predict */
    uint16_t *best;      /* [experts] */
    uint8_t *mark;       /* [experts] all 0 between calls */
    uint64_t bytes;      /* of all tables and this */
    uint64_t room_bytes; /* that may still be taken */
    bool too_big;        /* a table was refused for the bound */
    struct efs_tables tables;
    struct efs_predict_learned_table {
        void *at;
        size_t bytes;
    } learned[EFS_PREDICT_LEARNED];
    unsigned learned_count;
};

/* count zeroed things, freed with the predictor. NULL: more than memory_bytes, or no memory. */
void *efs_predict_table(struct efs_predictor *p, size_t count, size_t size);
/* The same of numbers that are learned over sequences: they are saved and loaded. */
void *efs_predict_learned(struct efs_predictor *p, size_t count, size_t size);
/* 0, or why one of these was NULL: -E2BIG or -ENOMEM. */
int efs_predict_table_error(const struct efs_predictor *p);

/*
 * Counts of what followed what: row r of together[rows][experts] was used seen[r] times, which stays below 65535, and
 * no count of it is larger. Count one use; are all rows like that?
 */
void efs_predict_count(const struct efs_predictor *p, uint16_t *seen, uint16_t *together, size_t row,
                       const struct efs_predict_row *chosen);
bool efs_predict_counts_valid(const struct efs_predictor *p, const uint16_t *seen, const uint16_t *together,
                              size_t rows);

/* The place of a sequence; config.sequences: there is none of that number. */
unsigned efs_predict_find(const struct efs_predictor *p, uint64_t id);
/* What a position chose; none when it was left out or is too long ago. Not beyond s->now. */
struct efs_predict_row efs_predict_at(const struct efs_predictor *p, unsigned sequence, int64_t position);

static inline unsigned efs_predict_layer(const struct efs_predictor *p, int64_t position)
{
    return (unsigned)(position % p->layers);
}

#endif
