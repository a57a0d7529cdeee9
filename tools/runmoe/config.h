/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - config.json of a Qwen3-MoE model, interpreted as in transformers: each key is applied, has no effect on
 * the result, or is refused.
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
    bool renormalise;                   /* scale the weights of the chosen experts to a sum of 1 */
    bool tied;                          /* the output head is the embedding matrix */
    double epsilon;                     /* of RMS norms */
    double rope_step[HEAD_DIM_MAX / 2]; /* rotation of pair i of a head, radians per position */
    double rope_scale;                  /* factor of the sines and cosines: YaRN's attention factor; 1 without YaRN */
};

/* Whether one of the fnmatch(3) patterns matches the name. ignored ends with NULL. */
bool is_ignored(const char *const *ignored, const char *name);

/* Parses the text of config.json as if the ignored keys were absent; a key of a nested object is named
 * rope_scaling.KEY. -EINVAL: not a Qwen3-MoE model, an invalid value, or a key that may change the result. */
errint_t config_parse(const char *text, uint64_t bytes, const char *const *ignored, struct config *config,
                      struct efs_error *err);

#endif
