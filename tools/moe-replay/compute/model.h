/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - layers and experts of the model in a store or checkpoint, and the view of an expert in memory. */
#ifndef MOE_REPLAY_MODEL_H
#define MOE_REPLAY_MODEL_H

#include "expertfs.h"

struct replay_model {
    uint32_t layers, experts; /* layers with experts; experts of each of them */
    uint64_t expert_bytes;    /* decoded size of the largest expert */
    uint32_t hidden;          /* columns of gate; 0: no matrices that replay_ffn_find() knows */
    struct replay_layer {
        char stack[64]; /* "": the model has one stack */
        uint32_t number;
    } * layer;
};

/* Reads the model of a store opened with full_pool; path is for messages. -EOPNOTSUPP: the layers have different
 * numbers of experts; -ENOENT: no experts. */
errint_t replay_model_of_store(struct efs *fs, const char *path, struct replay_model *model, struct efs_error *err);
/* Builds a model from single experts, added in ascending order of layer and number; replay_model_check() at the end
 * compares with the total number. Errors as above. */
errint_t replay_model_add(struct replay_model *model, const char *stack, uint32_t layer, uint32_t expert,
                          const char *path, struct efs_error *err);
errint_t replay_model_check(const struct replay_model *model, uint64_t experts, const char *path,
                            struct efs_error *err);
void replay_model_free(struct replay_model *model); /* a zeroed struct is allowed */

/* An expert in memory. */
struct replay_view {
    uint32_t expert, tokens; /* number in its layer; number of tokens that chose it */
    const struct efs_tensor *tensors;
    uint32_t count;
};

/* The matrices of a SwiGLU in BF16: gate and up [inner][hidden], down [hidden][inner]. false: other tensors. */
struct replay_ffn_matrices {
    const struct efs_tensor *gate, *up, *down;
};
bool replay_ffn_find(const struct efs_tensor *tensors, uint32_t count, struct replay_ffn_matrices *matrices);

#endif
