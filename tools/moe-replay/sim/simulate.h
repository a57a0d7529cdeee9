/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulate.h - runs a workload in the simulator.
 *
 * sim/ runs a workload in the simulator, with the cache policies of papers and prefetch on its timeline. Only the main
 * program of moe-replay calls it. It never opens a file and never sleeps.
 */
#ifndef MOE_REPLAY_SIMULATE_H
#define MOE_REPLAY_SIMULATE_H

#include "replay.h"

struct replay_predictions;
/* predicted NULL: no prefetch; otherwise the plan is for budget_bytes less replay_prefetch_cap_bytes(). 0, -ENOMEM or
 * -errno of sched/. */
int replay_simulate(const struct replay_setup *setup, const struct replay_workload *workload,
                    const struct replay_policy *policy, const struct replay_history *history,
                    const struct replay_plan *plan, const struct replay_predictions *predicted, uint64_t budget_bytes,
                    replay_progress_fn *progress, void *arg, struct replay_result *result);

#endif
