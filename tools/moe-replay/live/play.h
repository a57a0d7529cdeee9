/* SPDX-License-Identifier: Apache-2.0 */
/* play.h - a workload played on real files by this process: one run. */
#ifndef MOE_REPLAY_PLAY_H
#define MOE_REPLAY_PLAY_H

#include "compute.h"
#include "reader.h"

/* Layer by layer wait layer_ns, request, compute what is ready, release. The result, compute and check of the record
 * are filled in, also when it was interrupted or failed: with the passes that ended. */
errint_t replay_play(struct replay_reader *reader, const struct replay_model *model,
                     const struct replay_workload *workload, enum replay_compute_kind kind, uint64_t layer_ns,
                     replay_progress_fn *progress, void *arg, struct replay_run_record *record, struct efs_error *err);

/* Fill in policy, pools and budget of a mount, from its .expertfs/config. */
errint_t replay_mount_describe(const char *mountpoint, struct replay_run_record *record, struct efs_error *err);
/* What the engine calls a policy's pools: values of plan and goal. false: it has no such pools, or no such policy. */
bool replay_engine_pools(const struct replay_policy *policy, const char **plan, const char **goal);

#endif
