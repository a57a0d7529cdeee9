/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_begin.c - starts requests of a layer's experts (ZipMoE 3.3): as leases on full ones, or as references on
 * their chunks. All structs are allocated first: after the cache state has counted a request, starting it cannot fail.
 */
#include "fetch.h"

#include "cache.h"
#include "deadline.h"
#include "plan_thread.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

#define PRELOAD_SHARE 4 /* a preload loads experts full up to 1/4 of the budget, the rest coded */
#define LOOK_MOST 32    /* experts that are looked at for mappings before memory is refused: some 300 us */

static errint_t request_check(const struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_form form,
                              struct efs_error *err)
{
    if (form == EFS_FORM_FULL && !fs->options.full_pool)
        return efs_fail(err, -EINVAL, "full experts need the full pool, which is off");
    errint_t rc = efs_request_check(needs, count, efs_cache(fs)->width, err);
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        if (needs[i].expert >= fs->store->expert_count)
            return efs_fail(err, -EINVAL, "there is no expert %u", needs[i].expert);
        if (efs_cache(fs)->expert[needs[i].expert].layer != efs_cache(fs)->expert[needs[0].expert].layer)
            return efs_fail(err, -EINVAL, "experts %u and %u are of two layers", needs[0].expert, needs[i].expert);
    }
    return rc;
}

/* A request before it is started. All of its memory is allocated before the cache state counts the request. */
struct submission {
    const struct efs_request_how *how;
    uint32_t count, load_count; /* requested; to be loaded: not those that are being preloaded already */
    uint32_t *experts, *tokens; /* [count] */
    uint8_t *forms;
    bool *loads;
};

static bool submission_is_preload(const struct submission *s, uint32_t i)
{
    return s->how->preload || (s->how->arrived && !s->how->args[i]);
}

/* The kind of memory file that its full experts need. */
static enum efs_memfile_kind submission_memfile_kind(const struct submission *s)
{
    return !s->how->arrived ? EFS_MEMFILE_PRIVATE : s->how->opened ? EFS_MEMFILE_EXPORTED : EFS_MEMFILE_WINDOW;
}

/* Ends the preloads of a request that could not be started. */
static void submission_undo(struct efs *fs, struct submission *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->loads[i] && submission_is_preload(s, i))
            efs_preload_end(fs, s->experts[i], s->forms[i]);
}

/* Chooses the form of each expert. A preload is full up to 1/PRELOAD_SHARE of the budget, the rest is coded.
 * EFS_FORM_ANY is full if the expert is READY or FILLING. */
static void submission_choose_forms(struct efs *fs, struct submission *s)
{
    const struct efs_request_how *how = s->how;
    bool by_cache_state = how->preload || how->form == EFS_FORM_ANY;
    uint64_t bytes = 0;
    if (by_cache_state)
        efs_lock(fs);
    for (uint32_t i = 0; i < s->count; i++) {
        bool full = how->form == EFS_FORM_FULL;
        if (how->preload) {
            bytes += efs_memfile_bytes(fs, s->experts[i]);
            full = bytes <= fs->account.budget_bytes / PRELOAD_SHARE;
        } else if (by_cache_state) {
            full = efs_full_of(fs, s->experts[i])->state != EFS_FULL_NONE;
        }
        s->forms[i] = full && fs->options.full_pool ? EFS_FORM_FULL : EFS_FORM_CODED;
    }
    if (by_cache_state)
        efs_unlock(fs);
}

static bool submission_new(struct efs *fs, const struct efs_need *needs, uint32_t count,
                           const struct efs_request_how *how, struct submission *s)
{
    *s = (struct submission){.how = how, .count = count, .experts = efs_sys_calloc(count, 2 * sizeof(uint32_t) + 2)};
    if (!s->experts)
        return false;
    s->tokens = s->experts + count;
    s->forms = (uint8_t *)(s->tokens + count);
    s->loads = (bool *)(s->forms + count);
    for (uint32_t i = 0; i < count; i++) {
        s->experts[i] = needs[i].expert;
        s->tokens[i] = needs[i].tokens;
    }
    submission_choose_forms(fs, s);
    for (uint32_t i = 0; i < count; i++) {
        s->loads[i] = !submission_is_preload(s, i) || efs_preload_begin(fs, s->experts[i], s->forms[i]);
        s->load_count += s->loads[i];
    }
    return true;
}

static const struct efs_item_ops full_ops = {efs_item_start, efs_lease_filled, efs_item_answer},
                                 coded_ops = {efs_item_start, efs_item_coded_loaded, efs_item_answer};

static struct efs_request *request_new(struct efs *fs, const struct submission *s)
{
    struct efs_request *request = efs_sys_calloc(1, sizeof(*request) + s->load_count * sizeof(request->items[0]));
    if (!request)
        return NULL;
    efs_client_request_init(&request->base, &efs_request_ops, &request->lock, &request->changed, s->load_count,
                            offsetof(struct efs_request, items), sizeof(request->items[0]));
    request->base.owner = &fs->owner;
    request->fs = fs;
    request->arrived = s->how->arrived;
    request->oversize_fn = s->how->oversize;
    request->holder = s->how->holder;
    if (request->holder)
        atomic_fetch_add(&request->holder->refs, 1);
    request->together = !s->how->preload && !s->how->opened;
    request->use = submission_memfile_kind(s);
    efs_cond_init(&request->changed);
    pthread_mutex_init(&request->lock, NULL);
    struct efs_request_item *item = request->items;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->loads[i])
            *item++ = (struct efs_request_item){.request = request,
                                                .expert = s->experts[i],
                                                .arg = s->how->arrived ? s->how->args[i] : NULL,
                                                .preload = submission_is_preload(s, i),
                                                .form = s->forms[i],
                                                .ops = s->forms[i] == EFS_FORM_FULL ? &full_ops : &coded_ops,
                                                .bytes = efs_expert_coded_bytes(fs, s->experts[i])};
    request->refs = request->base.count + 1;
    return request;
}

/* Looks which mapped experts were unmapped: those that are requested for a window, and others if memory is short.
 * Without lock. */
static void submission_look(struct efs *fs, const struct submission *s)
{
    uint64_t need = 0;
    if (!atomic_load_explicit(&efs_full_pool(fs)->mapped_count, memory_order_relaxed))
        return;
    efs_lock(fs);
    for (uint32_t i = 0; i < s->count; i++) {
        if (submission_memfile_kind(s) == EFS_MEMFILE_WINDOW && s->forms[i] == EFS_FORM_FULL)
            efs_full_look(fs, s->experts[i]);
        need += s->forms[i] == EFS_FORM_FULL ? efs_full_missing_bytes(fs, s->experts[i]) : 0;
    }
    bool is_short = efs_full_is_short(fs, need);
    efs_unlock(fs);
    if (is_short)
        efs_full_sample(fs, LOOK_MOST);
}

static void request_begin(struct efs *fs, struct efs_request *request, const struct submission *s)
{
    efs_lock(fs);
    efs_use_experts(fs, s->experts, s->tokens, s->count,
                    s->how->preload  ? EFS_USE_AHEAD
                    : s->how->opened ? EFS_USE_OPENED
                                     : EFS_USE_NAMED);
    for (uint32_t i = 0; i < s->count; i++)
        if (!s->loads[i])
            efs_cache_release(fs, s->experts[i]);
    for (uint32_t i = 0; i < request->base.count; i++) {
        bool full = request->items[i].form == EFS_FORM_FULL;
        efs_count(&fs->stats, leases, full);
        efs_count(&fs->stats, coded, !full);
        if (full && request->arrived)
            fs->leases->last_use = request->use;
        efs_in_flight_begin(fs);
    }
    efs_admission_enqueue(fs, request);
    bool full_waits = false;
    for (uint32_t i = 0; i < request->base.count; i++) {
        const struct efs_request_item *item = &request->items[i];
        efs_count(&fs->stats, lease_waits, item->waiting && item->form == EFS_FORM_FULL);
        efs_count(&fs->stats, coded_waits, item->waiting && item->form == EFS_FORM_CODED);
        full_waits |= item->waiting && item->form == EFS_FORM_FULL;
    }
    if (full_waits)
        efs_plan_thread_kick(fs);
    efs_unlock(fs);
}

errint_t efs_request_submit(struct efs *fs, const struct efs_need *needs, uint32_t count,
                            const struct efs_request_how *how, struct efs_client_request **out, struct efs_error *err)
{
    struct submission s;
    *out = NULL;
    errint_t rc = request_check(fs, needs, count, how->preload ? EFS_FORM_CODED : how->form, err);
    if (rc < 0)
        return rc;
    struct efs_request *request = NULL;
    bool started = submission_new(fs, needs, count, how, &s);
    if (started)
        request = request_new(fs, &s);
    if (!request || (request->base.count && !efs_load_new(fs, request->items, request->base.count))) {
        if (started)
            submission_undo(fs, &s);
        free(s.experts);
        if (request) {
            request->refs = 1;
            efs_request_unref(request);
        }
        return efs_fail(err, -ENOMEM, "no memory for a request");
    }
    submission_look(fs, &s);
    request_begin(fs, request, &s);
    free(s.experts);
    if (how->preload || how->arrived)
        efs_request_unref(request);
    else
        *out = &request->base;
    return 0;
}
