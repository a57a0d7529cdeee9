/* SPDX-License-Identifier: Apache-2.0 */
/* team.h - threads that run one function in parallel, the caller's among them. */
#ifndef EFS_TEAM_H
#define EFS_TEAM_H

#include "expertfs-compute.h"

/* -ECHILD: this process was forked from the one that has the threads. */
errint_t efs_team_check(const struct efs_team *team, struct efs_error *err);
unsigned efs_team_threads(const struct efs_team *team);
/* Calls work(arg, thread) on all threads in parallel, thread counting from 0 (the caller's), and returns when all calls
 * have returned. Concurrent callers run one after the other. */
void efs_team_run(struct efs_team *team, void (*work)(void *arg, unsigned thread), void *arg);
/* Spins until *number differs from seen, for at most the time that it takes to wake a thread (50 us). Returns at once
 * if the team has more threads than the machine has cores. */
void efs_team_spin(const struct efs_team *team, const _Atomic unsigned *number, unsigned seen);
/* Scratch memory of a thread during a run, at least bytes, aligned to 64 bytes. The next call for the thread may move
 * it; contents are not kept. NULL: no memory. Called by that thread, or before the run by its caller. */
void *efs_team_scratch(struct efs_team *team, unsigned thread, size_t bytes);

#endif
