/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_left.h - a checkpoint of which `mkexpertfs --reclaim` has taken parts and not ended. */
#ifndef TOOLS_RECLAIM_LEFT_H
#define TOOLS_RECLAIM_LEFT_H

#include "expertfs.h"

/* -EBUSY: an unfinished --reclaim has taken parts of src; its folder is next to out (if not NULL) or to src. err has
 * the commands that continue. */
errint_t tools_reclaim_left(const char *src, const char *out, struct efs_error *err);

#endif
