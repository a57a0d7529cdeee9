/* SPDX-License-Identifier: Apache-2.0 */
/* hub.h - models in the local cache of the Hugging Face Hub. Downloads nothing. */
#ifndef EXPERTCTL_HUB_H
#define EXPERTCTL_HUB_H

#include "expertfs.h"

/*
 * The path of a model in the cache, by its name (hub_name.h): the snapshot of REVISION (default: main, else the newest
 * one), FILE in it, or the GGUF file of QUANT, of a split one the first part. The cache is $HF_HUB_CACHE, $HF_HOME/hub,
 * $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub. -ENOENT: it is not there, and err says how to get it;
 * -E2BIG: several files are of that QUANT; -ENAMETOOLONG.
 */
errint_t ctl_hub_find(const char *given, char *path, size_t room, struct efs_error *err);
/* ORG--NAME if path, without symbolic links, is a snapshot or the folder of a model in such a cache; and replaces the
 * folder of the model by its snapshot, as above. false: it is neither. */
bool ctl_hub_of_path(char *path, size_t room, char *name, size_t name_room);

#endif
