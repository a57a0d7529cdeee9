/* SPDX-License-Identifier: Apache-2.0 */
/* hub.h - models in the local cache of the Hugging Face Hub, by their names. Downloads nothing. */
#ifndef EXPERTCTL_HUB_H
#define EXPERTCTL_HUB_H

#include "expertfs.h"

/* A name on the Hub without what its web pages and other programs put before it: https://huggingface.co/, hf.co/, ...
 */
const char *ctl_hub_text(const char *given);
/* Whether given has the form of a name on the Hub, ORG/NAME[@REVISION][/FILE]; copies ORG--NAME to name, or "" if not.
 */
bool ctl_hub_name(const char *given, char *name, size_t room);
/* Bytes of ORG/NAME in such a name. */
size_t ctl_hub_repository_bytes(const char *given);
/*
 * The path of that model in the cache: the snapshot of REVISION (default: main, else the newest one), or FILE in it.
 * The cache is $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub. -ENOENT: it is
 * not there, or path is too small.
 */
errint_t ctl_hub_find(const char *given, char *path, size_t room);

#endif
