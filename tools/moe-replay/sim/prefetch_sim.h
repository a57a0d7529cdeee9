/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch_sim.h - prefetch in the simulator: the queue and the governor of sched/prefetch on the simulator's timeline.
 *
 * A prefetch reads the missing components of an expert, in pieces of REPLAY_PIECE_BYTES. They are held outside the
 * cache, in a part of the budget, until the expert is requested; then they count as cached.
 */
#ifndef MOE_REPLAY_PREFETCH_SIM_H
#define MOE_REPLAY_PREFETCH_SIM_H

#include "prediction_list.h"

/* Components of an expert. */
enum { REPLAY_SM = 1, REPLAY_E = 2 };

struct replay_prefetch;

/* The part of a budget that prefetched components may take. */
uint64_t replay_prefetch_cap_bytes(const struct replay_setup *setup, uint64_t budget_bytes);

/* Keeps pointers to all arguments. NULL: no memory. */
struct replay_prefetch *replay_prefetch_new(const struct replay_setup *setup, const struct replay_workload *workload,
                                            const struct replay_predictions *predicted, uint64_t budget_bytes,
                                            const struct efs_trace_timeline *timeline);
void replay_prefetch_free(struct replay_prefetch *prefetch); /* NULL is allowed */

/* Starts a pass. token: index in the workload of its first token. */
void replay_prefetch_begin_pass(struct replay_prefetch *prefetch, uint64_t pass, uint64_t token);
/* A request of the pass: the placements are its experts and where the cache has them. 0 or -errno of sched/prefetch. */
int replay_prefetch_requested(struct replay_prefetch *prefetch, uint32_t layer, const struct efs_placement *placements,
                              uint32_t count);
/*
 * Returns the part still to be read, 0 to 1, of the prefetched components of a tensor, for expert i of the last
 * request. *components: those components; 0: nothing was prefetched. *waits: a piece in flight contains bytes of the
 * tensor.
 */
double replay_prefetch_unread(const struct replay_prefetch *prefetch, uint32_t i, uint32_t tensor, unsigned *components,
                              bool *waits);
/* Submits predictions for the next layers, after the policy has processed the request. 0 or -errno of sched/prefetch.
 */
int replay_prefetch_offer(struct replay_prefetch *prefetch, uint32_t layer, const struct efs_policy *policy);

/* Callbacks of struct efs_trace_prefetch. */
uint64_t replay_prefetch_next(void *prefetch, uint64_t now_ns);
void replay_prefetch_done(void *prefetch);

/* Sets the counters of prefetch in result. */
void replay_prefetch_result(const struct replay_prefetch *prefetch, struct replay_result *result);

#endif
