/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict.h - one set of functions for all predictors.
 *
 * predict/ predicts the experts of the next layers from those that earlier layers chose. prefetch/ of the engine and
 * predict/ and sim/ of moe-replay call it. It never does I/O or reads a clock, and never decides whether a prediction
 * is read.
 *
 * The life of a sequence (a request's tokens, one after the other):
 *
 *     efs_predict_begin    starts a sequence; the caller chooses its id
 *     efs_predict_observe  a layer has chosen its experts; the predictor learns from it, unless learning is off
 *     efs_predict          the experts that the layer `distance` after the last observed one will choose
 *     efs_predict_end      ends the sequence
 *
 * An *iteration* is one pass through all layers. Layers are observed in rising order; a layer that is not above the one
 * before starts the next iteration. Layers may be skipped. A layer past the last belongs to the next iteration, so the
 * first layers of a token are predicted from the token before.
 *
 * The predictors:
 *
 *     deepspeed     the experts of the last iteration (DeepSpeed Inference)
 *     brainstorm    counts over all sequences (BrainStorm; popularity)
 *     request       counts of this sequence, with those of all sequences as prior
 *     transition    how often one expert followed another, by number of layers between them
 *     edgemoe       the same for pairs: given the choices of two earlier layers (EdgeMoE)
 *     moe-infinity  the counts of the most similar earlier sequence (MoE-Infinity)
 *     fmoe          the expert map of the most similar iteration (fMoE)
 *     mixed         the odds as a product of four features: nearest maps, transitions, rate in this sequence, recency;
 *                   the exponents are learned online
 *
 * These need only the chosen experts; fmoe uses the gate's scores if the caller provides them. The other predictors
 * need the inputs of the routers, and all but promoe the routers (predict_gate.c):
 *
 *     mixtral-offloading  the router of the later layer, on this layer's state (Mixtral-Offloading)
 *     hybrimoe            the same up to three layers ahead; a moving average of scores otherwise (HybriMoE)
 *     dali                the same on the state plus the mean increments of the layers between (DALI)
 *     linear              a linear function, which starts as the first one and learns
 *     promoe              a network with one hidden layer, trained ahead by efs_predict_train (ProMoE)
 *
 * Pure: no I/O, clock or threads; the same calls give the same results. Only efs_predictor_new allocates, at most
 * memory_bytes: larger tables are reduced, or it fails with -E2BIG. Not thread-safe. Layers and experts are numbered
 * from 0.
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
    EFS_PREDICT_PROMOE,
    EFS_PREDICTORS
};
/* "deepspeed", ...; NULL for an invalid kind. efs_predictor_by_name() returns EFS_PREDICTORS for an unknown name. */
const char *efs_predictor_name(enum efs_predictor_kind kind);
enum efs_predictor_kind efs_predictor_by_name(const char *name);
/* Whether the kind needs states in its observations; the config's gates. */
bool efs_predictor_needs_states(enum efs_predictor_kind kind);
bool efs_predictor_needs_gates(enum efs_predictor_kind kind);

/* How fmoe finds a map. TRAJECTORY: by the layers of this iteration; SEMANTIC: by the iteration before; BOTH, as
 * published: by the layers, and for the first layers by the iteration before. */
enum efs_predict_match { EFS_MATCH_BOTH, EFS_MATCH_TRAJECTORY, EFS_MATCH_SEMANTIC };

/* Fields that are 0 mean the defaults. */
struct efs_predict_tuning {
    unsigned maps;     /* fmoe, mixed: limit of stored iterations; default 16384 */
    unsigned requests; /* moe-infinity: limit of stored sequences; default 512 */
    unsigned width;    /* fmoe: experts per layer with a score in a map; default chosen */
    enum efs_predict_match match;
    bool no_delta; /* fmoe: pick exactly `chosen` experts, at any similarity */
};

struct efs_predict_config {
    enum efs_predictor_kind kind;
    unsigned layers, experts, chosen; /* experts of the widest layer; chosen per token */
    unsigned distances;    /* maximum distance in efs_predict: at most layers, and EFS_PREDICT_MAX_DISTANCE */
    unsigned sequences;    /* limit of concurrent sequences */
    uint64_t memory_bytes; /* 0: EFS_PREDICT_MEMORY */
    unsigned state_width;  /* of the routers' inputs, at most EFS_PREDICT_MAX_WIDTH; 0: no states */
    const float *gates;    /* [layers][experts][state_width]; the caller's, until efs_predictor_free() */
    struct efs_predict_tuning tuning;
};
#define EFS_PREDICT_MEMORY (UINT64_C(64) << 20)

/* The choice of a layer. */
struct efs_predict_observation {
    unsigned layer;
    const uint16_t *experts; /* [count, or scored], distinct; the gate's best first, if the order is known */
    const float *scores;     /* the gate's scores of these, 0 to 1e6; NULL: unknown */
    unsigned count;          /* chosen experts, the first in the list; at most the layer's experts */
    unsigned scored;         /* length of the list, if it has further experts with scores; 0: count */
    const float *state;      /* [state_width]: the input of the router, after the norm; NULL: unknown */
};

struct efs_prediction {
    uint16_t layer, expert;
    float probability; /* that the layer requests the expert */
};

struct efs_predictor;

/* 0; -EINVAL: a number is out of range; -ENODATA: the kind needs a state_width, or gates; -E2BIG: memory_bytes is too
 * small; -ENOMEM. The caller owns *predictor. */
int efs_predictor_new(const struct efs_predict_config *config, struct efs_predictor **predictor);
void efs_predictor_free(struct efs_predictor *predictor); /* NULL is allowed */

/* -EEXIST: the sequence exists; -ENOSPC: config.sequences exist. */
int efs_predict_begin(struct efs_predictor *predictor, uint64_t sequence);
/* -ENOENT: no such sequence; -EINVAL: a number out of range or a duplicate expert; then nothing has changed. */
int efs_predict_observe(struct efs_predictor *predictor, uint64_t sequence, const struct efs_predict_observation *seen);
/*
 * Predictions, the most probable first, ties by expert; at most room. Experts without any evidence are omitted. *picked
 * (may be NULL): how many of the first ones the predictor itself would fetch. Returns the number of predictions, 0 if
 * nothing was observed yet; -ENOENT; -EINVAL: the distance is 0 or above config.distances.
 */
int efs_predict(struct efs_predictor *predictor, uint64_t sequence, unsigned distance, struct efs_prediction *guesses,
                unsigned room, unsigned *picked);
/* Writes the probabilities of all experts of that layer to probability[experts]. 0 or an error as above. */
int efs_predict_all(struct efs_predictor *predictor, uint64_t sequence, unsigned distance, float *probability);
/* 0 or -ENOENT. */
int efs_predict_end(struct efs_predictor *predictor, uint64_t sequence);

/* Off: freezes data learned over sequences; a sequence still has its own counts. Initially on. */
void efs_predict_learn(struct efs_predictor *predictor, bool on);

/* A trace with states. read copies the experts [chosen], distinct, and the state [state_width], at most 1e6 in
 * magnitude, of a token and layer. stop (may be NULL) returns true to cancel. */
struct efs_predict_samples {
    void *from;
    uint64_t tokens; /* 1 or more */
    void (*read)(void *from, uint64_t token, unsigned layer, uint16_t *experts, float *state);
    bool (*stop)(void *from);
};
/* Trains a predictor that does not learn from observations (promoe), and replaces an earlier training. Takes some 10
 * microseconds per token, network and epoch (12). 0; -EOPNOTSUPP: the kind learns from observations; -EINVAL: no
 * tokens; -ECANCELED: stopped, and the predictor is not trained. */
int efs_predict_train(struct efs_predictor *predictor, const struct efs_predict_samples *samples);

/* Allocated bytes. */
uint64_t efs_predict_bytes(const struct efs_predictor *predictor);

/*
 * Saves and restores the learned data, without the sequences, in little-endian bytes with a checksum. efs_predict_save
 * returns their number, and writes them only if they fit into room. efs_predict_load needs a predictor with the same
 * config and without sequences. 0; -EBUSY: it has a sequence, and nothing has changed; -EINVAL: bytes of another
 * config; -EUCLEAN: damaged bytes. After the last two, the predictor has no learned data.
 */
size_t efs_predict_save(const struct efs_predictor *predictor, void *bytes, size_t room);
int efs_predict_load(struct efs_predictor *predictor, const void *bytes, size_t size);
/* The same from a function, which efs_predict_load_from calls for each table: it reads size bytes from offset `at`, and
 * returns 0 or an error, which efs_predict_load_from returns. */
typedef int efs_predict_read_fn(void *from, uint64_t at, void *bytes, size_t size);
int efs_predict_load_from(struct efs_predictor *predictor, efs_predict_read_fn *read, void *from, uint64_t size);
#define EFS_PREDICT_HEADER_BYTES 72u /* of the saved bytes, before the tables */

#ifdef __cplusplus
}
#endif
#endif
