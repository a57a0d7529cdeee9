/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_thread_core.h - what the files of the plan thread share: plan_thread.c (its life, its thread), plan_inputs.c
 * (profile and history), plan_pools.c, plan_text.c (what it tells).
 */
#ifndef EFS_PLAN_THREAD_CORE_H
#define EFS_PLAN_THREAD_CORE_H

#include "expertfs-private.h"
#include "plan_thread.h"

#include "history.h"
#include "pools.h"

enum efs_profile_source { EFS_PROFILE_ASSUMED, EFS_PROFILE_SAVED, EFS_PROFILE_MEASURED };
enum efs_history_source { EFS_HISTORY_NONE, EFS_HISTORY_ROUTE, EFS_HISTORY_SAVED };

struct efs_plan_thread {
    struct efs *fs;
    unsigned long thread;
    bool started;
    pthread_cond_t wake, first; /* first: planned for the first time */
    /* guarded by efs.lock */
    bool stop, asked, planned;
    double product_ns[2];    /* of a full and of a coded expert, as clients ran them; 0: none did */
    struct efs_history seen; /* since the last plan */
    uint64_t saw;
    uint32_t *ranks; /* scratch of efs_plan_thread_saw() */
    /* the thread's own, changed with efs.lock held */
    enum efs_profile_source profile_source;
    struct efs_profile profile;
    enum efs_history_source history_source;
    char history_path[512];
    struct efs_history known;
    struct efs_skew skew;
    struct efs_pools plan;
    uint64_t saved_saw; /* what it had seen when that was saved */
    double drift;
    int64_t planned_at;
    errint_t plan_error;
    unsigned pools; /* that were allowed */
    enum efs_plan_goal goal;
    uint64_t plan_ns;
};

/* ---- plan_inputs.c: without lock ---- */
/* A machine of the middle: only ratios matter for a plan, and only until there is a profile. */
void efs_plan_thread_assume(const struct efs *fs, struct efs_profile *profile);
/* The profile that was saved on such a processor, or one that is measured now, if the budget has room for that. */
void efs_plan_thread_profile(struct efs_plan_thread *s);
/* From a trace (its path), else what earlier mounts counted. -errno of the trace, -ENOMEM, with err. */
errint_t efs_plan_thread_history(struct efs_plan_thread *s, const char *path, struct efs_error *err);
void efs_plan_thread_save(struct efs_plan_thread *s);

/* ---- plan_pools.c: without lock ---- */
void efs_plan_thread_plan(struct efs_plan_thread *s);

#endif
