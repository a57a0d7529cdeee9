/* SPDX-License-Identifier: Apache-2.0 */
/* tune.c - efs_set(), efs_get(), efs_pin(): tune_text.c parses the values; budget, cache, plan thread and prefetch
 * apply them. */
#include "budget.h"
#include "cache.h"
#include "full.h"
#include "local.h"
#include "placed.h"
#include "prefetcher.h"
#include "plan_thread.h"
#include "text.h"
#include "tune_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PLAN_WHOLE 1e-6 /* percent: rounding error of parts that sum to 100 */

/* ---- budget ---- */

static errint_t tune_set_budget(struct efs *fs, const char *value, uint64_t *over_bytes, struct efs_error *err)
{
    uint64_t bytes;
    errint_t rc = efs_parse_budget(value, &bytes, err);
    if (rc < 0)
        return rc;
    bool automatic = bytes == 0;
    struct efs_memory memory;
    efs_memory(&memory);
    efs_lock(fs);
    uint64_t used = fs->account.used_bytes;
    efs_unlock(fs);
    if (!automatic && (rc = efs_budget_check(fs, bytes, used, err)) < 0)
        return rc;
    efs_full_sample(fs, UINT32_MAX); /* what is not mapped any more is freed, too */
    efs_lock(fs);
    uint64_t floor = efs_account_fixed(&fs->account) + fs->arena.segment_bytes;
    if (automatic ? floor > memory.limit_bytes : bytes < floor) {
        efs_unlock(fs);
        unsigned long long least = (floor + (1u << 20) - 1) >> 20;
        return efs_fail(
            err, -ENOMEM,
            "budget=%.64s is below the minimum of %llu MiB\nhint: set at least %lluM, or mount with a small "
            "budget, which lowers the minimum",
            value, least, least);
    }
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
    efs_tune_print_budget(efs_budget_is_auto(fs) ? 0 : fs->options.budget_bytes, text, room);
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

static errint_t tune_choose_goal(struct efs *fs, unsigned goal, struct efs_error *err)
{
    (void)err;
    efs_lock(fs);
    efs_cache_tuning(fs)->goal = goal;
    efs_plan_thread_replan(fs);
    efs_unlock(fs);
    return 0;
}

static unsigned tune_goal(struct efs *fs)
{
    return efs_cache_tuning(fs)->goal;
}

/* ---- policy, prefetch, warm ---- */

static errint_t tune_choose_policy(struct efs *fs, unsigned kind, struct efs_error *err)
{
    errint_t rc = efs_cache_set_policy(fs, kind);
    efs_lock(fs);
    efs_budget_cut(fs);
    efs_plan_thread_replan(fs);
    efs_unlock(fs);
    return rc < 0 ? efs_fail(err, rc, "no memory for another policy") : 0;
}

static unsigned tune_policy(struct efs *fs)
{
    return efs_cache_tuning(fs)->policy;
}

static errint_t tune_choose_prefetch(struct efs *fs, unsigned on, struct efs_error *err)
{
    return efs_prefetcher_switch(fs, on, err);
}

static unsigned tune_prefetch(struct efs *fs)
{
    return efs_prefetcher_is_on(fs);
}

static errint_t tune_choose_warm(struct efs *fs, unsigned warm, struct efs_error *err)
{
    (void)err;
    efs_prefetcher_set_warm(fs, warm);
    return 0;
}

static unsigned tune_warm(struct efs *fs)
{
    return efs_prefetcher_warm(fs);
}

/* ---- the local copy ---- */

static errint_t tune_choose_local_fill(struct efs *fs, unsigned on, struct efs_error *err)
{
    if (on && !fs->options.local)
        return efs_fail(err, -EINVAL, "local_fill=on needs a local copy\nhint: mount with local=DIR,local-size=SIZE");
    if (on && fs->local_error.text[0])
        return efs_fail(err, -EINVAL, "local_fill=on needs a local copy: %s", fs->local_error.text);
    fs->fill_local = on;
    if (fs->local)
        efs_local_fill(fs->local, on ? EFS_LOCAL_FILL_ALL : EFS_LOCAL_FILL_OFF);
    return 0;
}

static unsigned tune_local_fill(struct efs *fs)
{
    return fs->local ? efs_local_filling(fs->local) == EFS_LOCAL_FILL_ALL : fs->fill_local;
}

/* ---- by name ---- */

#define CHOICE(KIND, name) "|" #name

/* Choices are in the order of their enum. */
const struct efs_tunable efs_tunables[EFS_TUNABLES] = {
    [EFS_TUNE_budget] = {"budget", "all memory of the daemon", "SIZE|auto", "auto", .set = tune_set_budget,
                         .get = tune_get_budget},
    [EFS_TUNE_pools] = {"pools", "pools that plans may use", "FCSE", "FCSE", .set = tune_set_pools,
                        .get = tune_get_pools},
    [EFS_TUNE_plan] = {"plan", "their sizes, in percent", "auto|F=10:C=70:...", "auto", .set = tune_set_plan,
                       .get = tune_get_plan},
    [EFS_TUNE_policy] = {"policy", "what is kept", &(EFS_POLICIES(CHOICE))[1], "zipmoe", tune_choose_policy,
                         tune_policy},
    [EFS_TUNE_goal] = {"goal", "what plans minimise", "makespan|io", "io", tune_choose_goal, tune_goal},
    [EFS_TUNE_prefetch] = {"prefetch", "read experts before they are requested", "off|on", "off", tune_choose_prefetch,
                           tune_prefetch},
    [EFS_TUNE_warm] = {"warm", "read experts while disk and machine are idle", "off|auto|always", "auto",
                       tune_choose_warm, tune_warm},
    [EFS_TUNE_local_fill] = {"local_fill", "read what the local copy lacks, while idle", "off|on", "off",
                             tune_choose_local_fill, tune_local_fill},
};

const struct efs_tunable *efs_tunable_find(const char *name)
{
    for (size_t i = 0; i < EFS_TUNABLES; i++)
        if (strcmp(efs_tunables[i].name, name) == 0)
            return &efs_tunables[i];
    return NULL;
}

errint_t efs_tunable_check(const struct efs_tunable *tunable, const char *value, struct efs_error *err)
{
    struct efs_tune_plan plan;
    uint64_t bytes;
    unsigned bits;
    switch (tunable - efs_tunables) {
    case EFS_TUNE_budget:
        return efs_parse_budget(value, &bytes, err);
    case EFS_TUNE_pools:
        return efs_tune_pools(value, &bits, err);
    case EFS_TUNE_plan:
        return efs_tune_plan(value, &plan, err);
    default:
        return efs_choice_parse(tunable->name, tunable->values, value, &bits, err);
    }
}

errint_t efs_set(struct efs *fs, const char *name, const char *value, uint64_t *held_bytes, struct efs_error *err)
{
    EFS_C_LOCALE;
    const struct efs_tunable *t = efs_tunable_find(name);
    unsigned choice;
    if (held_bytes)
        *held_bytes = 0;
    errint_t rc = efs_check_process(fs, err);
    if (rc < 0)
        return rc;
    if (!t)
        return efs_fail(err, -ENODATA, "%s: unknown setting\nhint: expertfs-proc(5) lists them", name);
    if (!t->choose)
        return t->set(fs, value, held_bytes, err);
    rc = efs_choice_parse(name, t->values, value, &choice, err);
    return rc < 0 ? rc : t->choose(fs, choice, err);
}

errint_t efs_get(struct efs *fs, const char *name, char *value, size_t room)
{
    EFS_C_LOCALE;
    char text[EFS_TUNE_TEXT];
    const struct efs_tunable *t = efs_tunable_find(name);
    if (!t)
        return -ENODATA;
    if (!efs_is_this_process(fs))
        return -ECHILD;
    efs_lock(fs);
    if (t->choose)
        efs_choice_name(t->values, t->chosen(fs), text, sizeof(text));
    else
        t->get(fs, text, sizeof(text));
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
    for (uint32_t e = first; e < end; e++) {
        efs_cache_user_pin(fs, e, to);
        efs_placed_user_pins(fs, e);
    }
    efs_unlock(fs);
    return 0;
}
