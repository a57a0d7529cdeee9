/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_unfinished.h - detects a checkpoint that an unfinished `mkexpertfs --reclaim` has partly freed. */
#ifndef TOOLS_RECLAIM_UNFINISHED_H
#define TOOLS_RECLAIM_UNFINISHED_H

#include "expertfs.h"

/* Searches the folders of out (if not NULL) and src for the .reclaim folder of an unfinished --reclaim of src. 0: none;
 * -EBUSY: found, and err names the commands that continue it. */
errint_t tools_reclaim_unfinished(const char *src, const char *out, struct efs_error *err);

#endif
