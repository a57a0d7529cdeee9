/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.h - is it faster with or without? Measured by turns, while work goes on.
 *
 * Steps of the same kind of work are timed, some of them with, some without, in blocks that take turns: each block is
 * compared with the two next to it, so that what changes slowly (a disk's rate, what is cached) tells nothing. How much
 * work a step is differs, and would hide the difference: times are compared after dividing by what so much work takes,
 * a line fitted to the blocks of late.
 *
 * What is faster is kept on; now and then a block of the other says whether that still holds, more and more seldom, and
 * at once when blocks take longer than they did. Where neither is faster it is left. What trying has cost is a debt,
 * which a small part of all time pays off: beyond some of it nothing is tried, so that whatever is measured, and
 * however much that differs, trying costs no more than that part.
 *
 * Pure; no memory of its own.
 */
#ifndef EFS_TRIAL_H
#define EFS_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A block of steps. */
struct efs_trial_block {
    bool with;
    double ns, work;
};

/* The fields are the trial's. */
struct efs_trial {
    unsigned steps;       /* of a block */
    bool with;            /* the block under way */
    bool decided, better; /* better: with is */
    unsigned done;        /* steps of this block */
    struct efs_trial_block now;
    struct efs_trial_block last[2];              /* the older one first */
    unsigned known;                              /* of them */
    unsigned rest, rest_max;                     /* blocks of the better kind until the other is tried; at most, now */
    unsigned compared, against;                  /* against: in a row say that the other is better */
    double mean, variance;                       /* of log(with / without) */
    double blocks, work, ns, work_work, work_ns; /* of late: their number, and sums of products */
    double debt_ns;
};

/* A block has that many steps, 1 or more. It begins without. */
void efs_trial_init(struct efs_trial *trial, unsigned steps);
/* A step took that long, for so much work, in any unit: what would have been to be done without. After it trial->with
 * says how to do the next. */
void efs_trial_step(struct efs_trial *trial, uint64_t ns, uint64_t work);
/* Other work came between: the block under way and its neighbours are not compared. */
void efs_trial_break(struct efs_trial *trial);
/* It was slower, or trying has cost enough for now: nothing is done with, but for a block now and then. */
bool efs_trial_is_left(const struct efs_trial *trial);
/* Time with over time without, as far as it is known; 1 at first. */
double efs_trial_ratio(const struct efs_trial *trial);

#ifdef __cplusplus
}
#endif
#endif
