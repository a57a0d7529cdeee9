/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_config.h - of what a model says of itself, in config.json or in the metadata of a GGUF file, the numbers that
 * memory and tokens are reckoned from.
 */
#ifndef TOOLS_MODEL_CONFIG_H
#define TOOLS_MODEL_CONFIG_H

#include "expertfs.h"

#include <stdbool.h>

/* 0: not told. */
struct tools_model_config {
    uint64_t chosen; /* experts that a layer chooses for a token */
    uint64_t layers; /* all, also those without experts */
    uint64_t hidden, vocab;
    uint64_t context;         /* tokens that it was trained for */
    uint64_t kv_elements;     /* of keys and values that a token leaves behind, in layers that look at all tokens */
    uint64_t window_elements; /* in layers that look at the last tokens alone, */
    uint64_t window;          /* so many of them */
};

/* The text of a config.json. -EUCLEAN: no JSON, or a number that no model has. What is missing stays 0. */
errint_t tools_model_config_json(const char *text, size_t bytes, struct tools_model_config *config,
                                 struct efs_error *err);

/* Reads bytes at offset; -errno when these are not all there. */
typedef errint_t tools_read_at_fn(void *arg, uint64_t offset, void *to, size_t bytes);
/* The metadata of a GGUF file of so many bytes; nothing behind them is read. -EUCLEAN: it is none, damaged, or
 * has a number that no model has. */
errint_t tools_model_config_gguf(tools_read_at_fn *read_at, void *arg, uint64_t file_bytes,
                                 struct tools_model_config *config, struct efs_error *err);

/*
 * Whether a file is a GGUF file of a model, of several parts the first: its magic and its metadata say so, as
 * general.type
 * ("mmproj", "adapter" and "imatrix" are no models) and split.no. The path counts only where these are missing: files
 * of before were called mmproj, and parts have numbers. A damaged GGUF file may be one of a model.
 */
bool tools_gguf_is_model(tools_read_at_fn *read_at, void *arg, uint64_t file_bytes, const char *path);
/* The same of a file of the system; false: it cannot be read. */
bool tools_gguf_file_is_model(const char *path);

#endif
