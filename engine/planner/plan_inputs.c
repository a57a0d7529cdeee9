/* SPDX-License-Identifier: Apache-2.0 */
/* plan_inputs.c - see plan_thread_core.h: what is known of the machine and of the workload. */
#include "plan_thread_core.h"

#include "budget.h"

#include "counts.h"
#include "estimator.h"
#include "kernels.h"
#include "route.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MEASURE_SECONDS 0.4
#define MEASURE_BYTES (112u << 20) /* that efs_profile_measure() takes */
#define MEASURE_SHARE 4            /* of what is free at most that part: readers come first */

/* ---- the profile ---- */

void efs_plan_thread_assume(const struct efs *fs, struct efs_profile *p)
{
    *p = (struct efs_profile){.content_hash = fs->store->sb.content_hash,
                              .layers = efs_cache_layers(fs),
                              .experts = efs_cache_width(fs),
                              .tensors = 3,
                              .shards = 4,
                              .workers = fs->options.workers,
                              .disk_bytes_per_second = 1.5e9,
                              .read_latency_ns = 1e5,
                              .decode_bytes_per_second = 5e9,
                              .copy_bytes_per_second = 7e9,
                              .recode_bytes_per_second = 1e9};
    double sums[EFS_POOLS] = {0};
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        for (unsigned i = 0; i < EFS_POOLS; i++)
            sums[i] += (double)efs_cache_expert_bytes(fs, e)[i];
    double n = fs->store->expert_count;
    p->full_bytes = sums[EFS_POOL_F] / n;
    p->coded_bytes = sums[EFS_POOL_C] / n;
    p->sm_bytes = sums[EFS_POOL_S] / n;
    p->e_bytes = sums[EFS_POOL_E] / n;
}

/* Measuring takes memory for a moment: only where the budget has it to spare. */
static bool reserve_for_measuring(struct efs *fs)
{
    efs_lock(fs);
    bool room =
        efs_budget_used(fs) + MEASURE_SHARE * (uint64_t)MEASURE_BYTES <= fs->account.budget_bytes && !fs->closing;
    if (room) {
        fs->account.fixed_bytes += MEASURE_BYTES;
        fs->account.measuring_bytes += MEASURE_BYTES;
    }
    efs_unlock(fs);
    return room;
}

/* false: no room in the budget, or measuring failed, which is logged. */
static bool profile_measure(struct efs_plan_thread *s, struct efs_profile *profile)
{
    struct efs *fs = s->fs;
    struct efs_error err = {""};
    if (!reserve_for_measuring(fs))
        return false;
    errint_t rc = efs_profile_measure(fs->store, fs->options.workers, MEASURE_SECONDS, profile, &err);
    efs_lock(fs);
    fs->account.fixed_bytes -= MEASURE_BYTES;
    fs->account.measuring_bytes -= MEASURE_BYTES;
    efs_unlock(fs);
    if (rc < 0)
        efs_log(fs, EFS_LOG_WARNING, "the machine was not measured: %s", err.text);
    return rc == 0;
}

static void profile_save(struct efs *fs, const struct efs_profile *profile)
{
    struct efs_error err = {""};
    if (efs_profile_save(profile, &err) < 0)
        efs_log(fs, EFS_LOG_WARNING, "the profile is not saved: %s", err.text);
}

static void profile_take(struct efs_plan_thread *s, const struct efs_profile *profile, enum efs_profile_source source)
{
    efs_lock(s->fs);
    s->profile = *profile;
    s->profile_source = source;
    efs_estimator_profile(s->fs->estimator, profile);
    efs_unlock(s->fs);
}

void efs_plan_thread_profile(struct efs_plan_thread *s)
{
    struct efs *fs = s->fs;
    struct efs_profile profile;
    struct efs_error err = {""};
    char path[4096];
    if (fs->options.no_state)
        return;
    if (efs_profile_path(fs->store->sb.content_hash, path, sizeof(path), &err) == 0) {
        errint_t rc = efs_profile_load(path, &profile, &err);
        if (rc == 0) {
            profile_take(s, &profile, EFS_PROFILE_SAVED);
            if (strcmp(profile.cpu_path, efs_cpu_name()) == 0)
                return;
            efs_log(fs, EFS_LOG_INFO, "%s: measured on another processor; it is measured again", path);
        } else if (rc != -ENOENT) {
            efs_log(fs, EFS_LOG_WARNING, "%s; it is measured again", err.text);
        }
    }
    if (profile_measure(s, &profile)) {
        profile_save(fs, &profile);
        profile_take(s, &profile, EFS_PROFILE_MEASURED);
    }
}

/* ---- the history ---- */

static errint_t history_of_route(struct efs_plan_thread *s, const char *path, struct efs_error *err)
{
    struct efs_route route = {0};
    errint_t rc = efs_route_read(path, &route, err);
    if (rc < 0)
        return rc;
    rc = efs_counts_from_route(&route, efs_cache_layers(s->fs), efs_cache_width(s->fs), NULL, &s->known);
    efs_route_free(&route);
    if (rc < 0)
        return efs_fail(err, rc, "%s: cannot plan from it: %s", path, strerror(-rc));
    s->history_source = EFS_HISTORY_ROUTE;
    snprintf(s->history_path, sizeof(s->history_path), "%s", path);
    return 0;
}

errint_t efs_plan_thread_history(struct efs_plan_thread *s, const char *path, struct efs_error *err)
{
    struct efs *fs = s->fs;
    const uint32_t layers = efs_cache_layers(fs), width = efs_cache_width(fs);
    errint_t rc;
    if (path)
        return history_of_route(s, path, err);
    if (!fs->options.no_state) {
        struct efs_error why = {""};
        rc = efs_counts_load(fs->store->sb.content_hash, layers, width, &s->known, &why);
        if (rc == 0) {
            s->history_source = EFS_HISTORY_SAVED;
            return 0;
        }
        efs_history_free(&s->known);
        if (rc != -ENOENT)
            efs_log(fs, EFS_LOG_WARNING, "%s; the counts of earlier mounts are not used", why.text);
    }
    rc = efs_history_init(&s->known, layers, width);
    return rc < 0 ? efs_fail(err, rc, "no memory for the history") : 0;
}

void efs_plan_thread_save(struct efs_plan_thread *s)
{
    struct efs *fs = s->fs;
    struct efs_history all = {0};
    struct efs_error err = {""};
    if (fs->options.no_state || s->history_source == EFS_HISTORY_ROUTE ||
        efs_history_init(&all, s->known.layers, s->known.experts) < 0) {
        efs_history_free(&all);
        return;
    }
    efs_lock(fs);
    efs_history_copy(&all, &s->known);
    efs_history_add(&all, &s->seen);
    uint64_t saw = s->saw;
    efs_unlock(fs);
    errint_t rc = saw != s->saved_saw ? efs_counts_save(fs->store->sb.content_hash, &all, &err) : 0;
    if (rc == 0)
        s->saved_saw = saw;
    else
        efs_log(fs, EFS_LOG_WARNING, "the counts are not saved: %s", err.text);
    efs_history_free(&all);
}
