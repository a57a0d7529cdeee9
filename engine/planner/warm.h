/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warm.h - memory that is empty is filled while the disk rests (option warm): what the history expects most comes
 * first, so that a cold start meets less that has to be waited for. The like for a single layer is the prefetching of
 * MoE-Infinity (section 5) and fMoE; this one has no layer in view and takes nothing from anybody: extents that come so
 * are evictable, nothing goes for them, and none begins while a read that somebody waits for is under way.
 *
 * With efs.lock held unless said otherwise.
 */
#ifndef EFS_WARM_H
#define EFS_WARM_H

#include "efs.h"

struct efs_history;

/* Without lock, before there are threads and after. Off without the option; then nothing below does anything. -ENOMEM.
 */
errint_t efs_warm_build(struct efs *fs);
void efs_warm_destroy(struct efs *fs);
/* Bytes of its table, for the budget. */
uint64_t efs_warm_bytes(const struct efs_options *options, const struct efs_store *store);
/* Without lock: the store is open. */
void efs_warm_begin(struct efs *fs);
/* Without lock: there is a plan now, or another one: begin anew with what this history expects most. */
void efs_warm_plan(struct efs *fs, const struct efs_history *history);
/* EFS_AGAIN_REST: a load has ended, an extent or a segment is free: begin the next, if the disk rests and memory is
 * empty. */
void efs_warm_go_on(struct efs *fs);
/* One of its own has ended. What came goes first when memory is needed, the least expected of it before the rest; after
 * an error, which the log tells, there are no more before the next plan. */
void efs_warm_ended(struct efs *fs, uint32_t extent, errint_t error);

#endif
