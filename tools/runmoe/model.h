/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a Qwen3-MoE model in a store or a mount of one: its sizes, its dense weights in memory, its experts in the
 * library.
 */
#ifndef RUNMOE_MODEL_H
#define RUNMOE_MODEL_H

#include "config.h"
#include "expertfs.h"
#include "matrix.h"

struct layer {
    const float *attention_norm, *q_norm, *k_norm, *ffn_norm;
    struct matrix q, k, v, o, router;
};

struct model {
    struct config config;
    bool bf16_activations; /* what is multiplied with BF16 weights is rounded to BF16 before, as llama.cpp does */
    enum efs_form form;    /* how its experts are asked for */
    struct efs_client *client;
    struct efs *fs;         /* of a store; NULL: it is a mount, */
    const char *mountpoint; /* and here */
    struct matrix embedding, head;
    const float *final_norm;
    struct layer *layers;
    void **weights; /* all memory that the matrices and vectors are in */
    size_t weight_count;
};

/* Open the store, or the mount, which outlives the model's name for it, and read what is not an expert, without the
 * keys of config.json and the tensors that `ignored` matches (config.h). options->reserved_bytes is set here. Blocks.
 * -EINVAL: not such a model, or one with keys or tensors that have no use here. On failure nothing is left; else
 * model_close(). */
errint_t model_open(const char *path, struct efs_client_options *options, const char *const *ignored,
                    struct model *model, struct efs_error *err);
void model_close(struct model *model);

#endif
