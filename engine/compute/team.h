/* SPDX-License-Identifier: Apache-2.0 */
/* team.h - threads that do one thing together, the caller's among them. */
#ifndef EFS_TEAM_H
#define EFS_TEAM_H

#include "expertfs-compute.h"

/* -ECHILD: its threads are in the process from which this one was forked. */
errint_t efs_team_check(const struct efs_team *team, struct efs_error *err);
unsigned efs_team_threads(const struct efs_team *team);
/* Call work(arg, thread) on all threads at once, thread counting from 0 (the caller's); returns when all have. One
 * caller at a time: others wait. */
void efs_team_run(struct efs_team *team, void (*work)(void *arg, unsigned thread), void *arg);
/* Wait a moment, about as long as waking a thread takes, for a number to change; not at all where there are more
 * threads than cores. */
void efs_team_spin(const struct efs_team *team, const _Atomic unsigned *number, unsigned seen);
/* Memory of a thread for its own use in a run, aligned to 64 bytes, at least that large; contents are not kept. NULL:
 * no memory. Called by that thread, or by the caller of a run before it. */
void *efs_team_scratch(struct efs_team *team, unsigned thread, size_t bytes);

#endif
