/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - the experts of a store, as files of a mount have them and as the raw checkpoint has them: what a
 * live replay maps, reads and computes on.
 */
#ifndef MOE_REPLAY_MODEL_H
#define MOE_REPLAY_MODEL_H

#include "expertfs.h"

#define REPLAY_TENSORS_MAX 64u    /* of an expert: those with more are not shown as files */
#define REPLAY_NOWHERE UINT32_MAX /* raw_file of a tensor that was not looked for */

struct replay_tensor {
    char *name;
    uint64_t at, bytes;     /* in the expert's file, its header counted */
    uint64_t rows, columns; /* of a BF16 matrix; else 0 */
    uint32_t raw_file;      /* number in raw_paths, and where in it */
    uint64_t raw_at;
};

struct replay_expert {
    char path[128];             /* "experts/L03/E017.safetensors" */
    uint32_t number, id;        /* its number in the layer, and in the store: as efs_expert_info() has it */
    uint64_t file_bytes, bytes; /* header and tensors; tensors alone */
    uint32_t count;
    struct replay_tensor *tensors;
};

struct replay_layer { /* as efs_client_begin() has it */
    char stack[32];   /* "" for models with one */
    uint32_t number;
};

struct replay_model {
    uint32_t layers, experts;   /* every layer has that many experts */
    struct replay_layer *layer; /* [layers] */
    struct replay_expert *all;  /* [layers][experts] */
    uint64_t most_bytes;        /* tensors of the largest expert */
    char **raw_paths;           /* replay_model_find_raw() */
    uint32_t raw_count;
};

/* The experts of a store, from the headers of their files. Nothing but its index is read. -ENOENT: it has none;
 * -EOPNOTSUPP: they are not shown as files, or the layers differ in number of experts. */
errint_t replay_model_load(const char *store, struct replay_model *model, struct efs_error *err);
/* Find all of it in the safetensors files of a checkpoint (raw.c). -ENOENT: a tensor is missing, -EUCLEAN: a
 * header is damaged or a tensor has another size. */
errint_t replay_model_find_raw(struct replay_model *model, const char *directory, struct efs_error *err);
void replay_model_free(struct replay_model *model); /* a zeroed one is fine */

static inline const struct replay_expert *replay_model_expert(const struct replay_model *model, uint32_t layer,
                                                              uint32_t expert)
{
    return &model->all[(uint64_t)layer * model->experts + expert];
}

#endif
