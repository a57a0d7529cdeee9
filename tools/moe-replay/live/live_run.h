/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_run.h - one run on real files, in this process.
 *
 * live/ plays a workload on real files: a mount, a store, or a checkpoint that is not packed. Only the main program of
 * moe-replay calls it. It never calls sim/, a policy or a planner.
 */
#ifndef MOE_REPLAY_LIVE_RUN_H
#define MOE_REPLAY_LIVE_RUN_H

#include "compute.h"
#include "reader.h"

/* For each layer: sleeps layer_ns, requests its experts, computes with each as it becomes ready, releases them. Sets
 * result, compute and check of the record; after an error or an interrupt they cover the passes that completed. An
 * interrupt returns 0. */
errint_t replay_run_live(struct replay_reader *reader, const struct replay_model *model,
                         const struct replay_workload *workload, enum replay_compute_kind kind, uint64_t layer_ns,
                         replay_progress_fn *progress, void *arg, struct replay_run_record *record,
                         struct efs_error *err);

/* Sets policy, pools and budget of the record from the mount's .expertfs/config. */
errint_t replay_mount_describe(const char *mountpoint, struct replay_run_record *record, struct efs_error *err);
/* The engine's options plan and goal for the pools of a policy. false: the engine does not have the pools or the
 * policy. */
bool replay_engine_pools(const struct replay_policy *policy, const char **plan, const char **goal);

#endif
