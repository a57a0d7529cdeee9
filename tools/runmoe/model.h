/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a Qwen3-MoE model in a store or a mount of one: its sizes, its dense weights in memory, its experts in the
 * library.
 */
#ifndef RUNMOE_MODEL_H
#define RUNMOE_MODEL_H

#include "expertfs.h"
#include "matrix.h"

struct config {
    uint32_t layers, experts, chosen; /* chosen: experts that a token uses */
    uint32_t hidden, inner;           /* inner: width of an expert */
    uint32_t heads, kv_heads, head_dim, vocab;
    bool renormalise; /* the weights of the chosen experts are made to add up to 1 */
    float epsilon, rope_base;
};

struct layer {
    float *attention_norm, *q_norm, *k_norm, *ffn_norm;
    struct matrix q, k, v, o, router;
};

struct model {
    struct config config;
    bool bf16_activations; /* what is multiplied with BF16 weights is rounded to BF16 before, as llama.cpp does */
    enum efs_form form;    /* how its experts are asked for */
    struct efs_client *client;
    struct efs *fs;         /* of a store; NULL: it is a mount, */
    const char *mountpoint; /* and here */
    void *dense;            /* the file with all weights but the experts', which the matrices point into */
    uint64_t dense_bytes;
    struct matrix embedding, head;
    float *final_norm;
    struct layer *layers;
};

/* Open the store, or the mount, which outlives the model's name for it, and read what is not an expert.
 * options->reserved_bytes is set here. Blocks. -EINVAL: not such a model. On failure nothing is left; else
 * model_close(). */
errint_t model_open(const char *path, struct efs_options *options, struct model *model, struct efs_error *err);
void model_close(struct model *model);

#endif
