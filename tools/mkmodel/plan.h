/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - the tensors of a checkpoint: names, shapes, and what fills them.
 */
#ifndef MKMODEL_PLAN_H
#define MKMODEL_PLAN_H

#include "model.h"
#include "samples.h"

/* What a tensor is for; the GGUF names follow from it. */
enum mk_role {
    MK_OTHER,
    MK_EMBED,
    MK_FINAL_NORM,
    MK_HEAD,
    MK_ATTENTION_NORM,
    MK_Q,
    MK_K,
    MK_V,
    MK_O,
    MK_Q_NORM,
    MK_K_NORM,
    MK_FFN_NORM,
    MK_ROUTER,
    MK_EXPERT_GATE,
    MK_EXPERT_UP,
    MK_EXPERT_DOWN,
    MK_ROLES
};

enum mk_fill {
    MK_FILL_WEIGHT, /* as enum mk_weights says */
    MK_FILL_NORM,   /* near 1 */
    MK_FILL_BIAS,   /* near 0 */
    MK_FILL_SCALE   /* the block scales of an FP8 tensor */
};

/* A tensor: parts of rows x columns elements, each part with a key of its own. Owned by its plan. */
struct mk_tensor {
    char *name;
    enum mk_role role;
    uint32_t layer, expert;
    enum mk_dtype dtype;
    enum mk_dtype precision; /* values are rounded to this before they are stored as dtype */
    enum mk_fill fill;
    enum mk_kind kind;
    uint32_t dims;
    uint64_t shape[4]; /* slowest first */
    uint64_t bytes;
    uint64_t rows, columns; /* of a part; of the tensor that it scales for MK_FILL_SCALE */
    uint32_t parts;
    uint64_t *keys;     /* of the parts */
    float scale;        /* standard deviation wanted */
    uint32_t rope_rows; /* > 0: rows of a head are interleaved as llama.cpp's converter does for q and k */
};

struct mk_plan {
    const struct mk_model *model;
    struct mk_tensor *tensors;
    uint32_t count, room;
    bool failed; /* out of memory; nothing was added since */
};

#define MK_PRINTF(a, b) __attribute__((format(printf, a, b)))

/* Begin an empty plan. The model must outlive it. */
void mk_plan_init(struct mk_plan *plan, const struct mk_model *model);
void mk_plan_free(struct mk_plan *plan);
uint64_t mk_plan_bytes(const struct mk_plan *plan);
/* The end of the shard of at most limit bytes (but one tensor at least) that begins with tensor first. */
uint32_t mk_plan_shard_end(const struct mk_plan *plan, uint32_t first, uint64_t limit);
/* How many shards of at most limit bytes there are. */
uint32_t mk_plan_shards(const struct mk_plan *plan, uint64_t limit);

/* A matrix of a linear layer, rows x columns, in the model's dtype; in FP8 its block scales follow as a tensor. */
void mk_plan_linear(struct mk_plan *plan, enum mk_role role, uint32_t layer, uint32_t expert, uint64_t rows,
                    uint64_t columns, const char *format, ...) MK_PRINTF(7, 8);
/* A matrix that FP8 checkpoints keep in BF16: embeddings, routers. scale: standard deviation. */
void mk_plan_matrix(struct mk_plan *plan, enum mk_role role, uint32_t layer, uint64_t rows, uint64_t columns,
                    float scale, const char *format, ...) MK_PRINTF(7, 8);
/* A vector, or with parts > 0 parts vectors as one matrix. */
void mk_plan_vector(struct mk_plan *plan, enum mk_role role, enum mk_fill fill, uint32_t layer, uint32_t parts,
                    uint64_t columns, const char *format, ...) MK_PRINTF(7, 8);
/* A fused tensor [parts, rows, columns]; fan_in is what a row sums over. */
void mk_plan_fused(struct mk_plan *plan, uint32_t layer, uint32_t parts, uint64_t rows, uint64_t columns,
                   uint64_t fan_in, const char *format, ...) MK_PRINTF(7, 8);

/* What most families have under the same names: the embedding before the layers; queries, keys, values and output of
 * grouped attention; a layer's two norms; the norm and the head after the layers. */
void mk_plan_begin(struct mk_plan *plan);
void mk_plan_attention(struct mk_plan *plan, uint32_t layer);
void mk_plan_layer_norms(struct mk_plan *plan, uint32_t layer);
void mk_plan_end(struct mk_plan *plan);

/* Add a tensor with room for parts keys; dims, shape, rows, columns and fills are the caller's. NULL: out of memory. */
struct mk_tensor *mk_plan_new(struct mk_plan *plan, const char *name, uint32_t parts);

#endif
