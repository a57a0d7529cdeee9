/* SPDX-License-Identifier: Apache-2.0 */
/* tune.c - efs_set(), efs_get(), efs_pin(): tune_text.c parses the values; budget, cache, plan thread and prefetch
 * apply them. */
#include "budget.h"
#include "cache.h"
#include "full.h"
#include "prefetcher.h"
#include "plan_thread.h"
#include "text.h"
#include "tune_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PLAN_WHOLE 1e-6 /* percent: rounding error of parts that sum to 100 */

struct setting {
    const char *name;
    /* over_bytes: see efs_set(), held_bytes; set by budget only */
    errint_t (*set)(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err);
    void (*get)(struct efs *fs, char *text, size_t room); /* lock held */
};

/* ---- budget ---- */

static errint_t tune_set_budget(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err)
{
    uint64_t bytes;
    errint_t rc = efs_tune_budget(value, &bytes, err);
    if (rc < 0)
        return rc;
    bool automatic = bytes == 0;
    if (automatic)
        bytes = efs_auto_budget();
    struct efs_memory memory;
    efs_memory(&memory);
    efs_lock(fs);
    uint64_t used = fs->account.used_bytes;
    if (automatic) /* the pools' memory counts as free; efs_auto_budget() takes half of free memory */
        bytes += (used - efs_account_fixed(&fs->account)) / 2;
    efs_unlock(fs);
    if (!automatic && (rc = efs_budget_check(fs, bytes, used, err)) < 0)
        return rc;
    efs_full_sample(fs, UINT32_MAX); /* what is not mapped any more is freed, too */
    efs_lock(fs);
    uint64_t floor = efs_account_fixed(&fs->account) + fs->arena.segment_bytes;
    if (automatic && bytes < floor && floor <= memory.limit_bytes)
        bytes = floor;
    if (bytes < floor) {
        efs_unlock(fs);
        unsigned long long least = (floor + (1u << 20) - 1) >> 20;
        return efs_fail(
            err, -ENOMEM,
            "budget=%.64s is below the minimum of %llu MiB\nhint: set at least %lluM, or mount with a small "
            "budget, which lowers the minimum",
            value, least, least);
    }
    fs->budget_auto = automatic;
    efs_budget_change(fs, bytes);
    efs_plan_thread_replan(fs);
    efs_unlock(fs);
    efs_grow(fs, false);
    uint64_t over = efs_budget_wait(fs);
    if (over_bytes)
        *over_bytes = over;
    return 0;
}

static void tune_get_budget(struct efs *fs, char *text, size_t room)
{
    efs_tune_print_budget(fs->budget_auto ? 0 : fs->options.budget_bytes, text, room);
}

/* ---- the plan ---- */

static errint_t tune_set_pools(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err)
{
    unsigned pools;
    errint_t rc = efs_tune_pools(value, &pools, err);
    (void)over_bytes;
    if (rc < 0)
        return rc;
    efs_lock(fs);
    struct efs_cache_tuning *t = efs_cache_tuning(fs);
    t->pools = pools;
    double sum = 0;
    for (unsigned p = 0; p < EFS_POOLS; p++) /* pools that are no longer allowed shrink now, not at the next plan */
        if (!t->fixed_plan)
            sum += t->ratio[p] = pools & EFS_PLAN_POOL(p) ? t->ratio[p] : 0;
    for (unsigned p = 0; p < EFS_POOLS && sum == 0 && !t->fixed_plan; p++)
        if (pools & EFS_PLAN_POOL(p))
            sum = t->ratio[p] = 1;
    efs_budget_cut(fs);
    efs_plan_thread_replan(fs);
    efs_unlock(fs);
    return 0;
}

static void tune_get_pools(struct efs *fs, char *text, size_t room)
{
    efs_tune_print_pools(efs_cache_tuning(fs)->pools, text, room);
}

static errint_t tune_set_plan(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err)
{
    struct efs_tune_plan plan;
    errint_t rc = efs_tune_plan(value, &plan, err);
    (void)over_bytes;
    if (rc < 0)
        return rc;
    efs_lock(fs);
    efs_cache_tuning(fs)->fixed_plan = !plan.automatic;
    if (!plan.automatic)
        memcpy(efs_cache_tuning(fs)->ratio, plan.ratio, sizeof(plan.ratio));
    efs_budget_cut(fs);
    efs_plan_thread_replan(fs);
    efs_unlock(fs);
    double sum = 0;
    for (unsigned p = 0; p < EFS_POOLS; p++)
        sum += 100 * plan.ratio[p];
    if (!plan.automatic && sum < 100 - PLAN_WHOLE)
        efs_fail(err, 0, "plan=%.64s: the parts sum to %.6g, the other %.6g %% of the pools' memory stay empty", value,
                 sum, 100 - sum);
    return 0;
}

static void tune_get_plan(struct efs *fs, char *text, size_t room)
{
    const struct efs_cache_tuning *t = efs_cache_tuning(fs);
    struct efs_tune_plan plan = {.automatic = !t->fixed_plan};
    memcpy(plan.ratio, t->ratio, sizeof(plan.ratio));
    efs_tune_print_plan(&plan, text, room);
}

static errint_t tune_set_goal(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err)
{
    enum efs_plan_goal goal;
    errint_t rc = efs_tune_goal(value, &goal, err);
    (void)over_bytes;
    if (rc < 0)
        return rc;
    efs_lock(fs);
    efs_cache_tuning(fs)->goal = goal;
    efs_plan_thread_replan(fs);
    efs_unlock(fs);
    return 0;
}

static void tune_get_goal(struct efs *fs, char *text, size_t room)
{
    snprintf(text, room, "%s", efs_tune_goal_name(efs_cache_tuning(fs)->goal));
}

/* ---- the policy ---- */

static errint_t tune_set_policy(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err)
{
    enum efs_policy_kind kind;
    errint_t rc = efs_tune_policy(value, &kind, err);
    (void)over_bytes;
    if (rc < 0)
        return rc;
    rc = efs_cache_set_policy(fs, kind);
    efs_lock(fs);
    efs_budget_cut(fs);
    efs_plan_thread_replan(fs);
    efs_unlock(fs);
    return rc < 0 ? efs_fail(err, rc, "no memory for another policy") : 0;
}

static void tune_get_policy(struct efs *fs, char *text, size_t room)
{
    snprintf(text, room, "%s", efs_policy_name(efs_cache_tuning(fs)->policy));
}

/* ---- prefetch ---- */

static errint_t tune_set_prefetch(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err)
{
    efs_lock(fs);
    struct efs_governor_config tuning = efs_prefetcher_tuning(fs);
    efs_unlock(fs);
    errint_t rc = efs_tune_prefetch(value, &tuning.mode, err);
    (void)over_bytes;
    return rc < 0 ? rc : efs_prefetcher_tune(fs, &tuning, err);
}

static void tune_get_prefetch(struct efs *fs, char *text, size_t room)
{
    snprintf(text, room, "%s", efs_governor_mode_name(efs_prefetcher_tuning(fs).mode));
}

/* ---- warm ---- */

static errint_t tune_set_warm(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err)
{
    (void)over_bytes;
    return efs_prefetcher_set_warm(fs, value, err);
}

static void tune_get_warm(struct efs *fs, char *text, size_t room)
{
    snprintf(text, room, "%s", efs_prefetcher_warm(fs));
}

/* ---- by name ---- */

static const struct setting settings[] = {
    {"budget", tune_set_budget, tune_get_budget}, {"pools", tune_set_pools, tune_get_pools},
    {"plan", tune_set_plan, tune_get_plan},       {"goal", tune_set_goal, tune_get_goal},
    {"policy", tune_set_policy, tune_get_policy}, {"prefetch", tune_set_prefetch, tune_get_prefetch},
    {"warm", tune_set_warm, tune_get_warm},
};

static const struct setting *setting_find(const char *name)
{
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    return NULL;
}

errint_t efs_set(struct efs *fs, const char *name, const char *value, uint64_t *held_bytes, struct efs_error *err)
{
    EFS_C_LOCALE;
    const struct setting *s = setting_find(name);
    if (held_bytes)
        *held_bytes = 0;
    errint_t rc = efs_check_process(fs, err);
    return rc < 0 ? rc
           : s    ? s->set(fs, value, held_bytes, err)
                  : efs_fail(err, -ENODATA,
                             "%s: unknown setting\nhint: there are budget, pools, plan, policy, goal, prefetch, warm",
                             name);
}

errint_t efs_get(struct efs *fs, const char *name, char *value, size_t room)
{
    EFS_C_LOCALE;
    char text[EFS_TUNE_TEXT];
    const struct setting *s = setting_find(name);
    if (!s)
        return -ENODATA;
    if (!efs_is_this_process(fs))
        return -ECHILD;
    efs_lock(fs);
    s->get(fs, text, sizeof(text));
    efs_unlock(fs);
    if (strlen(text) >= room)
        return -ERANGE;
    memcpy(value, text, strlen(text) + 1);
    return 0;
}

errint_t efs_pin(struct efs *fs, struct efs_expert_id id, bool whole_layer, char pool, struct efs_error *err)
{
    uint32_t expert = id.number;
    enum efs_pool to = pool == 'F' ? EFS_POOL_F : pool == 'C' ? EFS_POOL_C : EFS_POOL_M;
    errint_t rc = efs_check_process(fs, err);
    if (rc < 0)
        return rc;
    if (to == EFS_POOL_M && pool != '-')
        return efs_fail(err, -EINVAL, "a pin is F, C or - (none)");
    if (expert >= fs->store->expert_count)
        return efs_fail(err, -ENOENT, "there is no expert %u", expert);
    if (to == EFS_POOL_F && !fs->options.full_pool)
        return efs_fail(err, -EINVAL, "this mount has no full pool\nhint: pin C or - (none)");
    uint32_t layer = efs_cache(fs)->expert[expert].layer;
    uint32_t first = whole_layer ? efs_cache(fs)->layer_first[layer] : expert;
    uint32_t end = whole_layer ? efs_cache(fs)->layer_first[layer + 1] : expert + 1;
    efs_lock(fs);
    for (uint32_t e = first; e < end; e++)
        efs_cache_user_pin(fs, e, to);
    efs_unlock(fs);
    return 0;
}
