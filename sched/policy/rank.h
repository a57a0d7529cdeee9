/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.h - the runtime frequency list: the number of requests for each expert, and its rank in its layer.
 *
 * ZipMoE 3.4, rank-based workload modelling and pool dispatching. Counts age: every half_life requests of a layer its
 * counts are halved, which keeps the order. The inclusion list (f_r) of the planner is in history.h.
 *
 * Pure; not thread-safe. Counting is one binary search; a rank is one load.
 */
#ifndef EFS_RANK_H
#define EFS_RANK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_RANK_MAX_EXPERTS 4096u
#define EFS_RANK_MAX_LAYERS 1024u

struct efs_rank;

/* half_life in requests of a layer; 0: counts do not age. NULL: out of memory, or a size is 0 or above the limits. */
struct efs_rank *efs_rank_new(unsigned layers, unsigned experts, unsigned half_life);
void efs_rank_free(struct efs_rank *rank); /* NULL is allowed */

/*
 * A layer requests count distinct experts, each below experts. An expert that reaches a count ranks after those that
 * have it already; the first of the experts that it passes takes its old rank.
 */
void efs_rank_request(struct efs_rank *rank, unsigned layer, const uint32_t *expert, unsigned count);

/* Sets the counts of a layer, one for each expert, from a trace or an earlier mount. */
void efs_rank_seed(struct efs_rank *rank, unsigned layer, const uint32_t *counts);

/* 0: the most often requested expert of its layer. */
unsigned efs_rank_of(const struct efs_rank *rank, unsigned layer, unsigned expert);
uint32_t efs_rank_count(const struct efs_rank *rank, unsigned layer, unsigned expert);

#ifdef __cplusplus
}
#endif
#endif
