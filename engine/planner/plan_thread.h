/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_thread.h - the thread that plans: it loads or measures the profile, knows the history, plans the pools, watches
 * for drift, and saves the counts (ZipMoE 3.4). It never holds efs.lock while it plans, reads or writes.
 */
#ifndef EFS_PLAN_THREAD_H
#define EFS_PLAN_THREAD_H

#include "cache.h"
#include "rates.h"

/* Start it. 0; -errno with err. */
errint_t efs_plan_thread_start(struct efs *fs, struct efs_error *err);
/* Saves the counts and ends the thread. What is under way may still wake it. No plan thread is fine. No lock. */
void efs_plan_thread_stop(struct efs *fs);
/* When nothing is under way any more. */
void efs_plan_thread_free(struct efs *fs);

/* Blocks until there is a first plan, or none is to come. Without lock. */
void efs_plan_thread_wait(struct efs *fs);

/* ---- with efs.lock held ---- */
/* Has the machine been measured, and the pools been planned? */
bool efs_plan_thread_planned(const struct efs *fs);
/* A layer asks for these (numbers in the policy's layer); before the policy hears of it. */
void efs_plan_thread_saw(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count);
/* What a plan depends on has changed: plan again soon. */
void efs_plan_thread_wake(struct efs *fs);
/* A lease waits for room: look after it. */
void efs_plan_thread_kick(struct efs *fs);

/* A client has run experts of a layer in this form: what it took, with all its threads. Plans for C count it instead of
 * decoding. Without lock. */
void efs_plan_thread_product(struct efs *fs, enum efs_form form, uint32_t experts, uint64_t ns);

/* Without lock: "plan", "profile" or "memory" for people. As efs_describe(). */
errint_t efs_plan_thread_describe(struct efs *fs, const char *what, char **text, size_t *bytes);

#endif
