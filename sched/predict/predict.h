/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict.h - which experts the layers to come will ask for, guessed from those that layers have asked for.
 *
 * One table of functions, a predictor behind it. The life of a sequence (a request's tokens, one after the other):
 *
 *     efs_predict_begin    a sequence, by a number of the caller's
 *     efs_predict_observe  a layer has chosen its experts; the predictor learns from it, unless it is told not to
 *     efs_predict          the experts that the layer `distance` after the one observed last will choose
 *     efs_predict_end      it is over
 *
 * An *iteration* is one pass through all layers. Layers are observed in rising order; one that is not above the one
 * before begins the next iteration. Layers may be left out. A layer after the last is one of the next iteration, so
 * that the first layers of a token are guessed from the token before.
 *
 * The predictors:
 *
 *     deepspeed     what the last iteration chose (DeepSpeed Inference)
 *     brainstorm    counts of all that was seen (BrainStorm; popularity)
 *     request       counts of this sequence, those of all where it has few yet
 *     transition    how often an expert followed an expert so many layers before
 *     edgemoe       the same for pairs: given what two earlier layers chose (EdgeMoE)
 *     moe-infinity  the activation matrix of a request most alike, nearer layers first (MoE-Infinity)
 *     fmoe          the expert map of an iteration most alike (fMoE)
 *     mixed         nearest maps x transitions x rate x recency, exponents learned as it goes
 *
 * These need the experts that were chosen, and no more; fmoe uses the gate's scores where they are told. The others
 * need what the routers read, and the routers (predict_gate.c):
 *
 *     mixtral-offloading  the router of the layer to come, on this layer's state (Mixtral-Offloading)
 *     hybrimoe            the same three layers ahead; a moving average of scores else (HybriMoE)
 *     dali                the same on the state and the mean of what layers add to it (DALI)
 *     linear              a linear one, which begins as the first and learns
 *
 * Pure: no I/O, clock or thread; the same calls give the same answers. Memory only in efs_predictor_new, never more
 * than memory_bytes: tables that would be larger are made smaller, or it says -E2BIG. Not thread-safe. Layers and
 * experts are numbers from 0.
 */
#ifndef EFS_PREDICT_H
#define EFS_PREDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_PREDICT_MAX_LAYERS 1024u
#define EFS_PREDICT_MAX_EXPERTS 4096u
#define EFS_PREDICT_MAX_CHOSEN 64u
#define EFS_PREDICT_MAX_DISTANCE 8u
#define EFS_PREDICT_MAX_SEQUENCES 1024u
#define EFS_PREDICT_MAX_WIDTH 65536u

enum efs_predictor_kind {
    EFS_PREDICT_DEEPSPEED,
    EFS_PREDICT_BRAINSTORM,
    EFS_PREDICT_REQUEST,
    EFS_PREDICT_TRANSITION,
    EFS_PREDICT_EDGEMOE,
    EFS_PREDICT_INFINITY,
    EFS_PREDICT_FMOE,
    EFS_PREDICT_MIXED,
    EFS_PREDICT_OFFLOADING,
    EFS_PREDICT_HYBRIMOE,
    EFS_PREDICT_DALI,
    EFS_PREDICT_LINEAR,
    EFS_PREDICTORS
};
/* "deepspeed", ...; NULL for no kind. And back: EFS_PREDICTORS for no name. */
const char *efs_predictor_name(enum efs_predictor_kind kind);
enum efs_predictor_kind efs_predictor_by_name(const char *name);
/* It needs the config's gates, and states in what is observed. */
bool efs_predictor_needs_states(enum efs_predictor_kind kind);

/* By what fmoe finds a map: the layers of this iteration, the iteration before, or as published: the layers, and the
 * iteration before for the first layers. */
enum efs_predict_match { EFS_MATCH_BOTH, EFS_MATCH_TRAJECTORY, EFS_MATCH_SEMANTIC };

/* Zeroes are the defaults. */
struct efs_predict_tuning {
    unsigned maps;     /* fmoe, mixed: iterations that are kept, at most; 16384 */
    unsigned requests; /* moe-infinity: requests that are kept, at most; 512 */
    unsigned width;    /* fmoe: experts of a layer that a map has a score of; those that are chosen */
    enum efs_predict_match match;
    bool no_delta; /* fmoe: fetch as many as are chosen, whatever the similarity */
};

struct efs_predict_config {
    enum efs_predictor_kind kind;
    unsigned layers, experts, chosen; /* experts of the widest layer; chosen for a token */
    unsigned distances;               /* the farthest layer ahead that is asked for, at most layers */
    unsigned sequences;               /* that are under way at once, at most */
    uint64_t memory_bytes;            /* 0: EFS_PREDICT_MEMORY */
    unsigned state_width;             /* of the states that routers read, at most 65536; 0: they are not told */
    const float *gates; /* [layers][experts][state_width], of the routers; the caller's, for the predictor's life */
    struct efs_predict_tuning tuning;
};
#define EFS_PREDICT_MEMORY (UINT64_C(64) << 20)

/* What a layer has chosen. */
struct efs_predict_seen {
    unsigned layer;
    const uint16_t *experts; /* [count, or scored], each once; the gate's favourite first, if that is known */
    const float *scores;     /* the same number, of the gate, 0 or above; NULL: not known */
    unsigned count;          /* that are chosen: the first ones; at most the experts of a layer */
    unsigned scored;         /* 0: count; more where the gate's scores of others are known, too */
    const float *state;      /* [state_width]: what the router read, after the norm; NULL: not known */
};

struct efs_guess {
    uint16_t layer, expert;
    float probability; /* that the layer asks for it */
};

struct efs_predictor;

/* 0; -EINVAL: a number is out of range; -ENODATA: the kind needs gates; -E2BIG: memory_bytes is too little; -ENOMEM.
 * *predictor is the caller's. */
int efs_predictor_new(const struct efs_predict_config *config, struct efs_predictor **predictor);
void efs_predictor_free(struct efs_predictor *predictor); /* NULL is fine */

/* -EEXIST: it is under way already; -ENOSPC: as many as can be are. */
int efs_predict_begin(struct efs_predictor *predictor, uint64_t sequence);
/* -ENOENT: no such sequence; -EINVAL: a number out of range or an expert twice, and nothing has changed. */
int efs_predict_observe(struct efs_predictor *predictor, uint64_t sequence, const struct efs_predict_seen *seen);
/*
 * Guesses, the most probable first, equal ones by number; at most room. Experts of whom nothing speaks are not among
 * them. *picked (may be NULL): as many of the first as the predictor itself would fetch. Returns their number, 0 also
 * when nothing was observed yet; -ENOENT; -EINVAL: the distance is 0 or farther than the config's.
 */
int efs_predict(struct efs_predictor *predictor, uint64_t sequence, unsigned distance, struct efs_guess *guesses,
                unsigned room, unsigned *picked);
/* Probabilities of all experts of that layer, in [experts] of the caller's, instead. 0 or as above. */
int efs_predict_all(struct efs_predictor *predictor, uint64_t sequence, unsigned distance, float *probability);
/* -ENOENT. */
int efs_predict_end(struct efs_predictor *predictor, uint64_t sequence);

/* Off: what is learned over sequences stays as it is; a sequence still has its own counts. On at first. */
void efs_predict_learn(struct efs_predictor *predictor, bool on);

/* Memory that it holds. */
uint64_t efs_predict_bytes(const struct efs_predictor *predictor);

/*
 * What was learned, without the sequences, as bytes: little-endian, with a checksum. efs_predict_save returns their
 * number; they were written only if they fit into room. efs_predict_load takes them in a predictor of the same config
 * that has no sequence: 0; -EBUSY: it has one; -EINVAL: they are of another config; -EUCLEAN: they are damaged. After
 * an error the predictor has learned nothing.
 */
size_t efs_predict_save(const struct efs_predictor *predictor, void *bytes, size_t room);
int efs_predict_load(struct efs_predictor *predictor, const void *bytes, size_t size);
/* The same, table by table from a function: of the bytes those from at on, as many as size; 0, or an error that
 * efs_predict_load_from returns. */
typedef int efs_predict_read_fn(void *from, uint64_t at, void *bytes, size_t size);
int efs_predict_load_from(struct efs_predictor *predictor, efs_predict_read_fn *read, void *from, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif
