/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placed_pool.h - a placement in a pool of Ceph: the thread efs-cluster looks at it once a second, and writes this
 * server's counts there. Calls of librados block, so that the plan thread cannot make them.
 */
#ifndef EFS_PLACED_POOL_H
#define EFS_PLACED_POOL_H

#include "efs.h"

struct efs_placed_pool;
/* Starts the thread. It calls take() with each placement, and refuse() where there is none or no answer, once for each
 * reason; both without lock. Connects in the background. 0 or -errno. */
errint_t efs_placed_pool_start(struct efs *fs, const char *address, const char *server,
                               void (*take)(struct efs *fs, const char *text, size_t bytes),
                               void (*refuse)(struct efs *fs, const char *why), struct efs_placed_pool **pool);
/* Has these counts written in place of what is still to be written; frees data later. */
void efs_placed_pool_count(struct efs_placed_pool *pool, void *data, size_t bytes);
/* Writes the last counts, and ends: after at most the timeouts of librados. */
void efs_placed_pool_stop(struct efs_placed_pool *pool);

#endif
