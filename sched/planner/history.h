/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - the observed workload, for the planner: number of requests for each expert, and the skew of the layers.
 *
 *     efs_history   counts of requests (ZipMoE 3.4, rank-based workload modelling): by expert, and by the rank of the
 *                   expert at the time of the request. The planner needs the counts by rank, because that ranking
 *                   decides which experts are cached.
 *     efs_skew      inclusion probabilities by rank, from counts by rank, else from counts by expert, else assumed
 *
 * A daemon has two histories: one of all known requests (earlier mounts, a trace), and one since its last plan, from
 * which it measures drift. When it makes a new plan it adds the second to the first and clears it.
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
#define EFS_HISTORY_MAX_PASSES (UINT64_C(1) << 30) /* limit for a layer, at which its numbers are halved */

struct efs_history {
    unsigned layers, experts; /* experts of the widest layer */
    uint32_t *counts;         /* [layers * experts] by expert: passes that requested it; at most the layer's passes */
    uint32_t *at_rank;        /* [layers * experts] by rank: passes that requested the expert at that rank */
    uint64_t *passes;         /* [layers] */
    uint64_t *ranked;         /* [layers] passes with known ranks: those counted in at_rank */
    uint64_t sequences;       /* sequences that have started; the caller counts them */
    struct efs_tables tables;
};

/* An empty history. -EINVAL: a size is 0 or above the limits; -ENOMEM; after an error nothing is allocated. */
int efs_history_init(struct efs_history *history, unsigned layers, unsigned experts);
void efs_history_free(struct efs_history *history); /* a zeroed one is allowed */
void efs_history_clear(struct efs_history *history);

/*
 * A layer requested count distinct experts, which had these ranks before (efs_policy_ranks()); ranks NULL: unknown,
 * only counts grow. -EINVAL: a number out of range; then nothing has changed.
 */
int efs_history_request(struct efs_history *history, unsigned layer, const uint32_t *experts, const uint32_t *ranks,
                        unsigned count);

/* Adds a history with the same numbers of layers and experts (-EINVAL: other sizes). */
int efs_history_add(struct efs_history *history, const struct efs_history *other);
/* Copies from to to, which must be initialised with the same sizes (-EINVAL: other sizes). */
int efs_history_copy(struct efs_history *to, const struct efs_history *from);
/* Scales each layer with more passes down to most_passes, and keeps its proportions, so that old passes count less. */
void efs_history_fade(struct efs_history *history, uint64_t most_passes);

/* ---- skew and drift ---------------------------------------------------------------------------------------------- */

enum efs_skew_source {
    EFS_SKEW_ASSUMED, /* no data: Zipf, f_r ~ 1 / (r + 1) */
    EFS_SKEW_COUNTS,  /* counts by expert, sorted */
    EFS_SKEW_RANKS    /* counts by rank */
};
#define EFS_SKEW_RANKED 64u
const char *efs_skew_source_name(enum efs_skew_source source); /* "assumed", "counts", "ranks" */

struct efs_skew {
    unsigned layers, experts;
    unsigned chosen;             /* experts of a request, the mean rounded: 1 to experts, at most EFS_PLAN_MAX_CHOSEN */
    double mean_chosen;          /* the mean; without data the caller's `chosen` */
    double *inclusion;           /* [layers * experts] by rank, most frequent first; each layer sums to chosen */
    double *mean;                /* [experts] mean over all layers */
    enum efs_skew_source source; /* of most layers */
    uint64_t passes;             /* of data used, over all layers; 0: assumed */
};

/*
 * Each layer from its own data: ranks (with at least EFS_SKEW_RANKED passes, or an eighth of its passes), else counts;
 * else from the mean of the layers with data, else the assumed skew. The data is ignored if all layers together have so
 * few passes that chance alone moves the shares by EFS_DRIFT_REPLAN: fewer than 112 passes for 4 of 32 experts, 239 for
 * 8 of 128. No rank is impossible: half a pass is added to each. Sorted counts look more skewed than the workload,
 * because the noise is sorted, too; the spread expected by chance is subtracted. history NULL: the assumed skew of
 * these layers and experts, for requests of chosen experts; otherwise layers and experts are those of the history, and
 * chosen is used only if it has no counts. -EINVAL: sizes out of range; -ENOMEM; after an error nothing is allocated.
 * The caller frees *skew with efs_skew_free().
 */
int efs_skew_learn(struct efs_skew *skew, const struct efs_history *history, unsigned layers, unsigned experts,
                   double chosen);
void efs_skew_free(struct efs_skew *skew); /* a zeroed one is allowed */

/*
 * Distance between the observed and the planned workload, 0 to 1: half the sum of differences of the two lists of
 * inclusion by rank (total variation: at most this share of the hits is where the plan did not expect it), over all
 * layers together, less the difference expected by chance after that number of passes. Requests that are larger or
 * smaller than planned are drift, too. Uses only passes with ranks; 0 without any; 1 if the sizes differ.
 */
double efs_history_drift(const struct efs_skew *planned, const struct efs_history *seen);
#define EFS_DRIFT_REPLAN 0.1       /* a new plan pays from this drift on */
#define EFS_DRIFT_LEAST_PASSES 256 /* per layer, on average; with fewer, drift is noise */
/* Whether to plan again: enough passes, and a drift of at least threshold. */
bool efs_history_drifted(const struct efs_skew *planned, const struct efs_history *seen, double threshold);

#ifdef __cplusplus
}
#endif
#endif
