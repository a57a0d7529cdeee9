/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.h - the runtime frequency list: how often each expert was asked for, and its rank in its layer.
 *
 * ZipMoE 3.4, rank-based workload modelling and pool dispatching. Counts age: after each half_life requests of a layer
 * its counts are halved, which keeps the order. The inclusion list (f_r) that the planner wants is of history.h.
 *
 * Pure; not thread-safe. A count costs a binary search, a look-up of a rank one load.
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

/* half_life in requests of a layer; 0: counts do not age. NULL: no memory, or sizes 0 or above the limits. */
struct efs_rank *efs_rank_new(unsigned layers, unsigned experts, unsigned half_life);
void efs_rank_free(struct efs_rank *rank); /* NULL is fine */

/*
 * A layer asks for count experts (numbers below experts, each once). Equal counts keep the order in which they were
 * reached.
 */
void efs_rank_request(struct efs_rank *rank, unsigned layer, const uint32_t *expert, unsigned count);

/* Counts of a layer from elsewhere (a trace, an earlier mount), one for each expert. */
void efs_rank_seed(struct efs_rank *rank, unsigned layer, const uint32_t *counts);

/* 0: the expert asked for most often in its layer. */
unsigned efs_rank_of(const struct efs_rank *rank, unsigned layer, unsigned expert);
uint32_t efs_rank_count(const struct efs_rank *rank, unsigned layer, unsigned expert);

#ifdef __cplusplus
}
#endif
#endif
