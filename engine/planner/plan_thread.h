/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_thread.h - the plan thread.
 *
 * planner/ measures the machine, counts requests and divides the budget among the pools (ZipMoE 3.4). prefetch/,
 * fetch/, control/, serve/ and compute/ call it; expertctl and moe-replay use its profiles and counts. It never holds
 * efs.lock while it measures, computes a plan, or reads or writes a file.
 *
 * The thread loads or measures the profile, keeps the request history, plans the pools, plans again on drift, and saves
 * the counts, if the store has experts. For every store it samples the memory that other processes leave.
 */
#ifndef EFS_PLAN_THREAD_H
#define EFS_PLAN_THREAD_H

#include "cache.h"
#include "rates.h"

/* Starts the plan thread. 0; -errno with err. */
errint_t efs_plan_thread_start(struct efs *fs, struct efs_error *err);
/* Ends the plan thread, which saves the counts. Operations in flight may still wake it. Does nothing without a plan
 * thread. Without lock. */
void efs_plan_thread_stop(struct efs *fs);
/* Frees its memory, after all operations have completed. */
void efs_plan_thread_free(struct efs *fs);

/* Blocks until the first plan is made; returns at once if the thread was not started. Without lock. */
void efs_plan_thread_wait(struct efs *fs);

void efs_plan_thread_close_in_child(struct efs *fs); /* closes its descriptors in a forked process */

/* ---- with efs.lock held ---- */
/* Whether the thread has planned once, with a loaded, measured or assumed profile. */
bool efs_plan_thread_planned(const struct efs *fs);
/* Whether warm reads may run: the machine was idle at the last sample (machine.h). watch: it is sampled twice a second
 * from now on, until a call without. */
bool efs_plan_thread_machine_idle(struct efs *fs, bool watch);
struct efs_machine;
const struct efs_machine *efs_plan_thread_machine(const struct efs *fs); /* NULL: none */
/* Records a request of a layer (numbers in the policy's layer) in the history, before the policy counts it. */
void efs_plan_thread_record(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count);
/* An input of the plan has changed: requests a new plan. efs_plan_thread_look() does that if one of these has: the
 * effective budget, the peak of leased bytes, whether anything was leased yet (from then on plans have pool F). */
void efs_plan_thread_replan(struct efs *fs);
void efs_plan_thread_look(struct efs *fs);
/* A lease waits for room: wakes the thread, which then retries such leases every 50 ms. */
void efs_plan_thread_kick(struct efs *fs);

/* The texts "plan", "profile", "memory" and "placement" of efs_describe(), with its errors. Without lock. */
errint_t efs_plan_thread_describe(struct efs *fs, const char *what, char **text, size_t *bytes);

#endif
