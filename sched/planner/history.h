/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - the workload so far, for the planner: how often each expert was asked for, and how skewed that is.
 *
 *     efs_history   counts of requests (ZipMoE 3.4, rank-based workload modelling): by expert, and by the rank that the
 *                   expert had when it was asked for. The planner needs the counts by rank: they come from the ranking
 *                   by which experts will be cached.
 *     efs_skew      inclusion probabilities by rank, from counts by rank, else by expert, else assumed
 *
 * A daemon has two histories: one of all that it knows (earlier mounts, a trace), and one since its last plan, by which
 * drift is measured. When it plans again the second is added to the first and cleared.
 *
 * Pure; not thread-safe. A *pass* is one request of a layer.
 */
#ifndef EFS_HISTORY_H
#define EFS_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "rank.h"
#include "tables.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_HISTORY_MAX_EXPERTS EFS_RANK_MAX_EXPERTS
#define EFS_HISTORY_MAX_LAYERS EFS_RANK_MAX_LAYERS
#define EFS_HISTORY_MAX_PASSES (UINT64_C(1) << 30) /* of a layer; at this its numbers are halved */

struct efs_history {
    unsigned layers, experts; /* experts of the widest layer */
    uint32_t *counts;         /* [layers * experts] by expert: passes that asked for it; at most passes of its layer */
    uint32_t *at_rank;        /* [layers * experts] by rank: passes that asked for the expert at that rank */
    uint64_t *passes;         /* [layers] */
    uint64_t *ranked;         /* [layers] of these, those that came with ranks: the passes of at_rank */
    uint64_t sequences;       /* that were said to begin */
    struct efs_tables tables;
};

/* Nothing seen yet. -EINVAL: a size 0 or above the limits; -ENOMEM. To be freed by efs_history_free() also then. */
int efs_history_init(struct efs_history *history, unsigned layers, unsigned experts);
void efs_history_free(struct efs_history *history); /* a zeroed one is fine */
void efs_history_clear(struct efs_history *history);

/*
 * A layer asked for count experts, each once, which were at these ranks before (efs_policy_ranks()); ranks NULL: not
 * known, only counts grow. -EINVAL: a number out of range; then nothing has changed.
 */
int efs_history_request(struct efs_history *history, unsigned layer, const uint32_t *experts, const uint32_t *ranks,
                        unsigned count);

/* Add another of the same layers and experts (-EINVAL: it is not). */
int efs_history_add(struct efs_history *history, const struct efs_history *other);
/* Make to, which was initialised with the same sizes, the same as from (-EINVAL: other sizes). */
int efs_history_copy(struct efs_history *to, const struct efs_history *from);
/* Make old passes count less: scale each layer down to at most so many; its shares stay the same. */
void efs_history_fade(struct efs_history *history, uint64_t most_passes);

/* ---- what follows ------------------------------------------------------------------------------------------- */

enum efs_skew_source {
    EFS_SKEW_ASSUMED, /* nothing is known: Zipf, f_r ~ 1 / (r + 1) */
    EFS_SKEW_COUNTS,  /* counts by expert, sorted */
    EFS_SKEW_RANKS    /* ranks as observed */
};
#define EFS_SKEW_RANKED 64u
const char *efs_skew_source_name(enum efs_skew_source source); /* "assumed", "counts", "ranks" */

struct efs_skew {
    unsigned layers, experts;
    unsigned chosen;             /* experts of a request, the mean rounded: 1 to experts, at most EFS_PLAN_MAX_CHOSEN */
    double mean_chosen;          /* the same not rounded; as assumed when nothing is known */
    double *inclusion;           /* [layers * experts] by rank, most frequent first; each layer sums to chosen */
    double *mean;                /* [experts] mean of all layers */
    enum efs_skew_source source; /* of most layers */
    uint64_t passes;             /* that it rests on, of all layers; 0: assumed */
};

/*
 * Each layer from what there is of it: ranks (if they rest on EFS_SKEW_RANKED passes, or on an eighth of all), else
 * counts, else the mean of the layers that have either, else the assumed skew. Where there are so few passes of all
 * layers together that chance alone moves the shares as far as EFS_DRIFT_REPLAN, nothing is known: 112 of 4 of 32
 * experts, 239 of 8 of 128. No rank is impossible: half a pass is
 * added to each. Sorted counts look more skewed than the workload is, since noise is sorted, too; what chance alone
 * would spread them is taken out. history NULL: the assumed skew of these layers and experts, for requests of chosen
 * experts; else these three are only taken when it is empty. -EINVAL: sizes out of range; -ENOMEM. To be freed by
 * efs_skew_free() also then.
 */
int efs_skew_learn(struct efs_skew *skew, const struct efs_history *history, unsigned layers, unsigned experts,
                   double chosen);
void efs_skew_free(struct efs_skew *skew); /* a zeroed one is fine */

/*
 * How far what was seen is from what was planned, 0 to 1: half the sum of differences of the two lists of inclusion
 * by rank (total variation: at most this share of the hits is where the plan did not expect it), over all layers
 * together, less what chance gives after so few passes. Requests that are larger or smaller than planned drift too.
 * Only passes with ranks count; 0 when there are none.
 */
double efs_history_drift(const struct efs_skew *planned, const struct efs_history *seen);
#define EFS_DRIFT_REPLAN 0.1       /* from this drift on a new plan pays */
#define EFS_DRIFT_LEAST_PASSES 256 /* of a layer, on average; with fewer, drift is noise */
/* Is it time for a new plan, by both? */
bool efs_history_drifted(const struct efs_skew *planned, const struct efs_history *seen, double threshold);

#ifdef __cplusplus
}
#endif
#endif
