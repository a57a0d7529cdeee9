/* SPDX-License-Identifier: Apache-2.0 */
/* hub_quant.h - the GGUF file of a quantisation, by its name, in a folder that has several. */
#ifndef EXPERTCTL_HUB_QUANT_H
#define EXPERTCTL_HUB_QUANT_H

#include "expertfs.h"

/* Whether the word quant is in the path, or it is the file's whole name: not a part of a longer word, as Q4_K in
 * Q4_K_M. In any case. */
bool ctl_hub_has_quant(const char *path, const char *quant);
/*
 * Replaces path, a folder, by the path of the GGUF model in it that has the quant. Of a split model the first part, or
 * its folder if it has one of its own. Files that are no models, such as mmproj, do not count. given: for messages.
 * -ENOENT: none; -E2BIG: several, which err lists.
 */
errint_t ctl_hub_quant(char *path, size_t room, const char *quant, const char *given, struct efs_error *err);

#endif
