/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_models.h - the GGUF models below a folder. */
#ifndef EXPERTCTL_GGUF_MODELS_H
#define EXPERTCTL_GGUF_MODELS_H

#include "expertfs.h"

struct ctl_gguf_models {
    char **path; /* sorted; of a split model the first part */
    size_t count;
};

/* Whether a file counts, by its path below the folder. */
typedef bool ctl_gguf_fits_fn(const char *path, const char *word);
/*
 * Lists them, in a checkpoint or a mount, whose experts/ and .expertfs/ do not count; fits: NULL, or which. If there
 * are several files, those that are no models by their metadata (an image encoder, an importance matrix, an adapter, a
 * vocabulary) do not count. Blocks. The caller frees the list, also after an error.
 */
errint_t ctl_gguf_models(const char *folder, ctl_gguf_fits_fn *fits, const char *word, struct ctl_gguf_models *models,
                         struct efs_error *err);
void ctl_gguf_models_free(struct ctl_gguf_models *models);
/* Whether the name is that of a GGUF file which llama.cpp can be given: not a later part of a split model. */
bool ctl_gguf_is_first(const char *path);
/* Whether the name is that of a part of a split model. */
bool ctl_gguf_is_split(const char *path);
/* Changes the path of a part of a split model to that of its first part, which llama.cpp is given, if there is one. */
void ctl_gguf_first_part(char *path);

#endif
