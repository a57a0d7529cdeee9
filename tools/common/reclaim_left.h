/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_left.h - a checkpoint of which `mkexpertfs --reclaim` has taken parts and not ended. */
#ifndef TOOLS_RECLAIM_LEFT_H
#define TOOLS_RECLAIM_LEFT_H

#include "expertfs-pack.h"

/* -EBUSY: src was given to an --reclaim that did not end; looked for beside out (NULL: nowhere) and beside src. err:
 * how to go on. */
errint_t tools_reclaim_left(const char *src, const char *out, struct efs_error *err);

#endif
