/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.h - is it faster with or without? Measured by turns, while work goes on.
 *
 * Steps of the same kind of work are timed, some of them with, some without, in blocks that take turns: each block is
 * compared with the two next to it, so that what changes slowly (a disk's rate, what is cached) tells nothing. What is
 * faster is kept on; now and then a block of the other says whether that still holds, more and more seldom.
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

/* The fields are the trial's. */
struct efs_trial {
    unsigned steps;       /* of a block */
    bool with;            /* the block under way */
    bool decided, better; /* better: with is */
    unsigned done;        /* steps of this block */
    double block_ns;
    double log_ns[2]; /* of the last blocks, the older one first, of the other kind and of this one in turn */
    bool kinds[2];
    unsigned known;             /* of them */
    unsigned rest, rest_max;    /* blocks of the better kind until the other is tried; at most, now */
    unsigned compared, against; /* against: in a row say that the other is better */
    double mean, variance;      /* of log(with / without) */
};

/* A block has that many steps, 1 or more. It begins with. */
void efs_trial_init(struct efs_trial *trial, unsigned steps);
/* A step took that long. After it trial->with says how to do the next. */
void efs_trial_step(struct efs_trial *trial, uint64_t ns);
/* Other work came between: the block under way and its neighbours are not compared. */
void efs_trial_break(struct efs_trial *trial);
/* Time with over time without, as far as it is known; 1 at first. */
double efs_trial_ratio(const struct efs_trial *trial);

#ifdef __cplusplus
}
#endif
#endif
