/* SPDX-License-Identifier: Apache-2.0 */
/* hub_quant.h - the GGUF file of a quantisation, by its name, in a folder that has several. */
#ifndef EXPERTCTL_HUB_QUANT_H
#define EXPERTCTL_HUB_QUANT_H

#include "expertfs.h"

/*
 * Replaces path, a folder, by the path of the GGUF model in it whose name, or whose folder's name, has the word quant,
 * as Q4_K_M, in any case; or whose whole name it is. Of a split model the first part, or its folder if it has one of
 * its own. Files that are no models, such as mmproj, do not count. given: for messages. -ENOENT: none; -E2BIG: several,
 * which err lists.
 */
errint_t ctl_hub_quant(char *path, size_t room, const char *quant, const char *given, struct efs_error *err);

#endif
