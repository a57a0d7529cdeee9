/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runs.h - runs of free granules in a bitmap (a set bit is taken), a word at a time. A bitmap has all bits, all a
 * multiple of 64.
 */
#ifndef EFS_RUNS_H
#define EFS_RUNS_H

#include "expertfs.h"

/* The first place for need (at least 1) free granules from the low or the high end of the bitmap. When there is none:
 * all, and *longest is the longest free run; otherwise *longest is left alone. */
uint32_t efs_runs_find(const uint64_t *taken, uint32_t all, uint32_t need, bool from_high, uint32_t *longest);
/* The length of the free run around the granules from first on, which are free. */
uint32_t efs_runs_around(const uint64_t *taken, uint32_t all, uint32_t first, uint32_t count);
void efs_runs_mark(uint64_t *taken, uint32_t first, uint32_t count, bool take);

#endif
