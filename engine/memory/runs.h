/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runs.h - finds runs of free granules in a bitmap, a word at a time. A set bit is an allocated granule. A bitmap has
 * `all` bits, a multiple of 64.
 */
#ifndef EFS_RUNS_H
#define EFS_RUNS_H

#include "expertfs.h"

/* The start of the first run of `need` (at least 1) free granules, searched from the low or the high end. If there
 * is none, returns `all` and sets *longest to the longest free run; otherwise *longest is unchanged. */
uint32_t efs_runs_find(const uint64_t *allocated, uint32_t all, uint32_t need, bool from_high, uint32_t *longest);
/* Length of the free run that contains the free granules [first, first + count). */
uint32_t efs_runs_around(const uint64_t *allocated, uint32_t all, uint32_t first, uint32_t count);
void efs_runs_mark(uint64_t *allocated, uint32_t first, uint32_t count, bool take);

#endif
