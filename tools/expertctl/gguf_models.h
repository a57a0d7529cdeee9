/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_models.h - the GGUF models below a folder. */
#ifndef EXPERTCTL_GGUF_MODELS_H
#define EXPERTCTL_GGUF_MODELS_H

#include "expertfs.h"
#include "paths.h"

/* Whether a file counts, by its path below the folder. */
typedef bool ctl_gguf_fits_fn(const char *path, const char *word);
/*
 * Lists the GGUF models, sorted, of a split one the first part, in a checkpoint or a mount, whose experts/ and
 * .expertfs/ do not count; fits: NULL, or which. If there are several files, those that are no models by their metadata
 * (an image encoder, an importance matrix, an adapter, a vocabulary) do not count. Blocks. The caller frees the list,
 * also after an error.
 */
errint_t ctl_gguf_models(const char *folder, ctl_gguf_fits_fn *fits, const char *word, struct ctl_paths *models,
                         struct efs_error *err);
/* Whether the name is that of a GGUF file which llama.cpp can be given: not a later part of a split model. */
bool ctl_gguf_is_first(const char *path);
/* The number in the name of a part of a split model, NAME-00002-of-00003.gguf; NULL: the name has none. */
const char *ctl_gguf_part(const char *path);
/* Changes the path of a part of a split model to that of its first part, which llama.cpp is given, if there is one. */
void ctl_gguf_first_part(char *path);

#endif
