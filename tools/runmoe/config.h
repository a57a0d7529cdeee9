/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - config.json of a Qwen3-MoE model, as transformers reads it: every key is obeyed, without effect here, or
 * refused.
 */
#ifndef RUNMOE_CONFIG_H
#define RUNMOE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "expertfs.h"

#define HEAD_DIM_MAX 1024

struct config {
    uint32_t layers, experts, chosen; /* chosen: experts that a token uses */
    uint32_t hidden, inner;           /* inner: width of an expert */
    uint32_t heads, kv_heads, head_dim, vocab;
    uint32_t trained_positions;         /* max_position_embeddings; 0: not given */
    bool renormalise;                   /* the weights of the chosen experts are made to add up to 1 */
    bool tied;                          /* the embedding is the output head, too */
    double epsilon;                     /* of RMS norms */
    double rope_step[HEAD_DIM_MAX / 2]; /* radians that pair i of a head turns by, per position */
    double rope_scale;                  /* factor of the sines and cosines: YaRN's attention factor */
};

/* Does a pattern of fnmatch(3) match the name? ignored ends with NULL. */
bool is_ignored(const char *const *ignored, const char *name);

/* Reads the text of config.json as if the ignored keys were absent; a key of an object is rope_scaling.KEY. -EINVAL:
 * not such a model, or a key that would change the result. */
errint_t config_parse(const char *text, uint64_t bytes, const char *const *ignored, struct config *config,
                      struct efs_error *err);

#endif
