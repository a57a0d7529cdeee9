/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - from a plan to the files of a checkpoint. */
#ifndef MKMODEL_CHECKPOINT_H
#define MKMODEL_CHECKPOINT_H

#include "files.h"
#include "tokenizer.h"

/* Add config.json, generation_config.json and the tokenizer's files. 0 or -ENOMEM. */
int mk_config_files(const struct mk_model *model, const struct mk_tokenizer *tokenizer, struct mk_files *files);

/* Add the tensors as safetensors files of at most model->shard_bytes, and their index if there are several. */
int mk_safetensors_files(const struct mk_model *model, const struct mk_plan *plan, struct mk_files *files);

/*
 * Add the tensors as one GGUF file (several if model->split), with the tokenizer in it. gguf is an empty plan that
 * takes the tensors under their GGUF names, the experts of a layer stacked; it must live until the files are written.
 */
int mk_gguf_files(const struct mk_model *model, const struct mk_plan *plan, const struct mk_tokenizer *tokenizer,
                  struct mk_plan *gguf, struct mk_files *files);

#endif
