/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.h - is work faster with or without an option? Measured by alternation while the work goes on.
 *
 * The caller times steps of the same kind of work. Blocks of steps run with the option and without it, alternately. The
 * trial compares each block with its two neighbours, so that slow changes (the disk's rate, the contents of the cache)
 * cancel out. The amount of work differs between blocks and would hide the difference, so each time is first divided by
 * the time for that work on a line fitted to the recent blocks.
 *
 * The faster kind stays in use; single blocks of the other kind check the decision, after 7 to 15 blocks, and at once
 * when blocks take longer than the line predicts. If neither is faster, the option stays off. The time lost by trying
 * is a debt, which a small fraction of all time (0.5 %) pays off; above a limit no block tries the option. So trials
 * cost at most about that fraction of the time.
 *
 * Pure; allocates nothing.
 */
#ifndef EFS_TRIAL_H
#define EFS_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Consecutive steps of the same kind. */
struct efs_trial_block {
    bool with;
    double ns, work;
};

/* All fields are private, except `with` for reading. */
struct efs_trial {
    unsigned steps;       /* in a block */
    bool with;            /* kind of the current block */
    bool decided, better; /* better: the option is faster */
    unsigned done;        /* in the current block */
    struct efs_trial_block now;
    struct efs_trial_block last[2];              /* the two blocks before, the older one first */
    unsigned known;                              /* how many of them are valid */
    unsigned blocks_to_check, check_interval;    /* blocks until the other kind runs; initial value of that */
    unsigned compared, against;                  /* against: consecutive comparisons that contradict the decision */
    double mean, variance;                       /* of log(with / without) */
    double blocks, work, ns, work_work, work_ns; /* of recent blocks: decayed number, sums and sums of products */
    double debt_ns;
};

/* steps: length of a block, 1 or more. The first block is without. */
void efs_trial_init(struct efs_trial *trial, unsigned steps);
/* Records that a step took ns for `work`: the work that the step would have had without the option, in any unit. Sets
 * trial->with to the kind of the next step. */
void efs_trial_step(struct efs_trial *trial, uint64_t ns, uint64_t work);
/* Other work intervened: discards the current block, and does not compare its neighbours. */
void efs_trial_discard_block(struct efs_trial *trial);
/* The option is off, except for single blocks: it was not faster, or the debt of trials is at its limit. */
bool efs_trial_is_off(const struct efs_trial *trial);
/* exp of the mean log(with / without); 1 at first. */
double efs_trial_ratio(const struct efs_trial *trial);

#ifdef __cplusplus
}
#endif
#endif
