/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - what a checkpoint shall be: its family, its sizes and what follows from them.
 */
#ifndef MKMODEL_MODEL_H
#define MKMODEL_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum mk_format { MK_SAFETENSORS, MK_GGUF };
enum mk_dtype { MK_BF16, MK_F16, MK_F32, MK_FP8, MK_DTYPES };

struct mk_error {
    char text[512]; /* what went wrong, with names; one line */
};

struct mk_plan;
struct mk_model;

/* One family of models. The functions are given a model that mk_model_derive() has completed. */
struct mk_family {
    const char *name;
    bool gguf;           /* can be written as GGUF */
    bool fp8;            /* can be written in FP8 */
    uint32_t layer_step; /* the number of layers is a multiple of this */
    uint32_t layer_min;
    uint32_t head_divisor; /* query heads to one key/value head */
    void (*derive)(struct mk_model *model);
    void (*plan)(const struct mk_model *model, struct mk_plan *plan); /* add all tensors, in the model's own order */
    json_t *(*config)(const struct mk_model *model);                  /* config.json; NULL: no memory */
};

extern const struct mk_family mk_family_mixtral, mk_family_qwen3, mk_family_deepseek, mk_family_gpt_oss,
    mk_family_switch;

/* The family of that name, or NULL. */
const struct mk_family *mk_family_find(const char *name);

struct mk_model {
    /* chosen; 0 means a default */
    const struct mk_family *family;
    enum mk_format format;
    enum mk_dtype dtype;
    uint32_t layers, experts, experts_per_token, hidden, intermediate, vocab;
    uint64_t shard_bytes;  /* a file's tensors, at most (but one tensor at least) */
    bool split;            /* cut a GGUF at shard_bytes, too */
    uint64_t target_bytes; /* if set: choose layers so that all tensors come near this */
    uint64_t seed;
    /* derived */
    uint32_t heads, kv_heads, head_dim;
    uint32_t dense_intermediate;                  /* of layers without experts */
    uint32_t context;                             /* positions */
    uint32_t q_rank, kv_rank, rope_dim, nope_dim; /* MLA (DeepSeek-V2): low ranks, parts of a head */
};

/* Set what a preset ("demo", "replay", "tiny-FAMILY", ...) says; false if there is none of that name. Fields that are
 * set already stay. */
bool mk_model_preset(struct mk_model *model, const char *name);
/* Names of the presets for --help, one a line with a word on each. */
extern const char mk_preset_help[];

/* Fill in defaults, check, derive. 0 or -EINVAL with the reason. */
int mk_model_derive(struct mk_model *model, struct mk_error *error);

/* dtype.c: its name in safetensors and in config.json; bytes of an element. */
const char *mk_dtype_name(enum mk_dtype dtype);
const char *mk_dtype_torch(enum mk_dtype dtype);
uint32_t mk_dtype_bytes(enum mk_dtype dtype);

#endif
