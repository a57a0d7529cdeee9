/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.h - the runtime frequency list: how often each expert was asked for, and its rank in its layer.
 *
 * ZipMoE 3.4, rank-based workload modelling and pool dispatching. Counts age: after each half_life requests of a layer
 * its counts are halved, which keeps the order. The list also sees at which rank the experts were that were asked for;
 * that is the rank-based inclusion list (f_r) which the planner wants, taken from the ranking that dispatching will
 * use, and it tells when the workload has drifted from the plan.
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
 * A layer asks for count experts (numbers below experts, each once): they are counted, and what they were ranked before
 * is noted for the profile. Equal counts keep the order in which they were reached.
 */
void efs_rank_request(struct efs_rank *rank, unsigned layer, const uint32_t *expert, unsigned count);

/* Counts of a layer from elsewhere (a trace, an earlier mount), one for each expert; the profile stays as it is. */
void efs_rank_seed(struct efs_rank *rank, unsigned layer, const uint32_t *counts);

/* 0: the expert asked for most often in its layer. */
unsigned efs_rank_of(const struct efs_rank *rank, unsigned layer, unsigned expert);
uint32_t efs_rank_count(const struct efs_rank *rank, unsigned layer, unsigned expert);
/* The expert of a rank. */
unsigned efs_rank_at(const struct efs_rank *rank, unsigned layer, unsigned place);

/*
 * The inclusion list seen since the profile was last cleared: inclusion[r] (experts values) is how often, per request
 * of the layer, the expert of rank r was asked for, smoothed by half a request at each rank and scaled to sum to chosen
 * (which must be below experts), none above 1. layer EFS_RANK_ALL: of all layers together. Returns the requests that it
 * rests on; 0: none, and inclusion is flat.
 */
#define EFS_RANK_ALL UINT32_MAX
uint64_t efs_rank_profile(const struct efs_rank *rank, unsigned layer, unsigned chosen, double *inclusion);
void efs_rank_profile_clear(struct efs_rank *rank);

/* How far two inclusion lists of the same sum are apart: half the sum of differences over their sum, 0 to 1. */
double efs_rank_drift(const double *planned, const double *seen, unsigned experts);

#ifdef __cplusplus
}
#endif
#endif
