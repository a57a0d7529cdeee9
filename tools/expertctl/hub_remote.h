/* SPDX-License-Identifier: Apache-2.0 */
/* hub_remote.h - models on the Hugging Face Hub itself, or on a server with its protocol that HF_ENDPOINT names. */
#ifndef EXPERTCTL_HUB_REMOTE_H
#define EXPERTCTL_HUB_REMOTE_H

#include "expertfs.h"

/*
 * The address of a model by its name (hub_name.h), with the commit that its revision (default: main) has now: that of
 * FILE, of the GGUF file of QUANT, or of the only model there, as a GGUF file, the first part of a split one, an index
 * of safetensors files or model.safetensors. Reads the list of files by one request, or one for each slash in the
 * revision; blocks. -ENOENT: no such model, revision or file; -E2BIG: several models, which err lists; -EACCES,
 * -EUCLEAN; errors of efs_remote_text().
 */
errint_t ctl_hub_address(const char *given, char *address, size_t room, struct efs_error *err);

#endif
