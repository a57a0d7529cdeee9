/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead.h - guesses that are read in the simulator: the queue and the governor of sched/prefetch, as a daemon uses
 * them, on the simulator's timeline.
 *
 * Of an expert the components are read that are missing, in pieces. What is read stands beside the cache
 * until it is asked for, in a part of the budget; then it is as if the cache had it.
 */
#ifndef MOE_REPLAY_AHEAD_H
#define MOE_REPLAY_AHEAD_H

#include "foresight.h"

/* Components of an expert. */
enum { REPLAY_SM = 1, REPLAY_E = 2 };

struct replay_ahead;

/* Memory that guesses may hold of a budget. */
uint64_t replay_ahead_held_bytes(const struct replay_setup *setup, uint64_t budget_bytes);

/* Guesses have that memory now: what is left gives it back. */
bool replay_ahead_has_share(const struct replay_ahead *ahead);

/* The timeline, and all else, are to live as long. NULL: no memory. */
struct replay_ahead *replay_ahead_new(const struct replay_setup *setup, const struct replay_workload *workload,
                                      const struct replay_foresight *foresight, uint64_t budget_bytes,
                                      const struct efs_trace_timeline *timeline);
void replay_ahead_free(struct replay_ahead *ahead); /* NULL is fine */

/* A pass begins; token is the first of it in the workload. */
void replay_ahead_pass(struct replay_ahead *ahead, uint64_t pass, uint64_t token);
/* The next layer of the pass asks for these experts, found in the cache as the placements say. */
int replay_ahead_asked(struct replay_ahead *ahead, uint32_t layer, const struct efs_placement *placements,
                       uint32_t count);
/*
 * What is left to be read, 0 to 1, of those components of a tensor of the expert at place i of that request that were
 * guessed to be missing; 0 components: nothing was read ahead. waits: some of it is just being read.
 */
double replay_ahead_left(const struct replay_ahead *ahead, uint32_t i, uint32_t tensor, unsigned *components,
                         bool *waits);
/* The cache has decided on the request: guess on. */
int replay_ahead_guess(struct replay_ahead *ahead, uint32_t layer, const struct efs_policy *policy);

/* For struct efs_trace_ahead. */
uint64_t replay_ahead_next(void *ahead, uint64_t now_ns);
void replay_ahead_done(void *ahead);

/* Fill in guesses and guesses_ratio. */
void replay_ahead_result(const struct replay_ahead *ahead, struct replay_result *result);

#endif
