/* SPDX-License-Identifier: Apache-2.0 */
/* mount.h - the daemon's side of a live run: its options, or the attributes of a mount that is there. */
#ifndef MOE_REPLAY_MOUNT_H
#define MOE_REPLAY_MOUNT_H

#include "live.h"

/* Can policies be chosen, of a daemon or of the mount that is there? Which? */
bool replay_mount_has_policies(const struct replay_live *live);
bool replay_mount_has(const struct replay_policy *policy);
/* What the daemon and the library call a policy's pools: values of plan and goal. NULL: they have no such pools. */
const char *replay_mount_plan(const struct replay_policy *policy);
const char *replay_mount_goal(const struct replay_policy *policy);
/* Is the predictor one of those that it serves by? */
bool replay_mount_predicts(const char *predictor);
/* Part of the budget that it leaves to guesses, at most. */
#define REPLAY_MOUNT_SHARE_MOST 0.5
/* Its option prefetch, into text of at least 64 bytes. */
void replay_mount_print_prefetch(const struct efs_governor_config *governor, char *text, size_t room);

/* Start a daemon on the stage with the record's policy, pools and budget. -EOPNOTSUPP: it knows no such thing. */
errint_t replay_mount_start(struct replay_live *live, struct replay_run_record *record, struct efs_error *err);
/* Set them by the attributes of a mount that is there; what cannot be set is told in the record's note. */
errint_t replay_mount_tune(struct replay_live *live, struct replay_run_record *record, struct efs_error *err);
/* Give a mount that was there its attributes back, as far as it takes them. */
void replay_mount_restore(struct replay_live *live);
/* Note how it serves, and with what budget. */
void replay_mount_look(const char *mountpoint, struct replay_run_record *record);
/* The number behind "name: " in a file of .expertfs; 0: there is none. */
double replay_mount_number(const char *mountpoint, const char *file, const char *name);
/* The store that a mount serves, from its config. -EINVAL: it is no mount of ours. */
errint_t replay_mount_store(const char *mountpoint, char *store, size_t room, struct efs_error *err);

#endif
