/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - a Qwen3-MoE model in a store or a mount.
 *
 * runmoe/ is an example of a runtime: it runs a whole Qwen3-MoE model with experts from a store or a mount. Users and
 * tools/bench/ run it; no other program includes its headers. It never reads or decodes an expert itself, except to
 * compare one of each weight file: efs_client_ffn() does.
 *
 * A model has its configuration, its dense weights in memory, and the client for its experts.
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
    bool bf16_activations; /* round activations to BF16 before products with BF16 weights, as llama.cpp does */
    enum efs_form form;    /* in which experts are requested */
    struct efs_client *client;
    struct efs *fs;         /* of a store; NULL: a mount */
    const char *mountpoint; /* the path of model_open(), not owned */
    struct matrix embedding, head;
    const float *final_norm;
    struct layer *layers;
    void **weights; /* [weight_count]: memory of all matrices and vectors */
    size_t weight_count;
};

/* Opens a store or a mount and reads all weights except experts. `ignored` matches keys of config.json and tensors to
 * ignore (config.h). path must stay valid until model_close(). For a store, sets options->reserved_bytes. Blocks.
 * -EINVAL: not a Qwen3-MoE model, or one with keys or tensors that are not supported; -ESTALE: the experts are those of
 * other files. After an error *model needs no model_close(). */
errint_t model_open(const char *path, struct efs_client_options *options, const char *const *ignored,
                    struct model *model, struct efs_error *err);
void model_close(struct model *model);

#endif
