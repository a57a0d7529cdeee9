/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - requests of a layer's experts (ZipMoE 3.3): as leases on full ones, or as references on their chunks. A
 * request is allocated as a whole before the cache state counts it: from then on, beginning it cannot fail. Also its
 * calls in expertfs.h; base/request.h has what it shares with other kinds of requests.
 */
#include "fetch.h"
#include "stats.h"

#include "cache.h"
#include "deadline.h"
#include "plan_thread.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>

#define DROPPED_AT_ONCE 64u /* in one critical section */
#define LOOK_MOST 32        /* experts that are looked at for mappings before memory is refused: some 300 us */

/* ---- the calls of expertfs.h ---- */

static errint_t request_tensors(struct efs_client_request *of, uint32_t index, const struct efs_tensor **tensors,
                                uint32_t *count)
{
    struct efs_request_item *item = &efs_request_of(of)->items[index];
    errint_t rc = item->tensors ? 0 : efs_item_tensors(item);
    *tensors = item->tensors;
    *count = item->tensor_count;
    return rc;
}

/* Marks the items that are being loaded as dropped: they are released when they complete. Those that wait for memory
 * are cancelled, before other items free memory for them. */
static void request_drop_loading(struct efs_request *request, uint32_t first, uint32_t end)
{
    bool loading = false;
    pthread_mutex_lock(&request->lock);
    for (uint32_t i = first; i < end; i++) {
        struct efs_request_item *item = &request->items[i];
        if (item->base.state != EFS_ITEM_LOADING)
            continue;
        loading = item->was_loading = true;
        efs_client_item_set(&request->base, &item->base, EFS_ITEM_DROPPED, 0);
    }
    pthread_mutex_unlock(&request->lock);
    if (!loading)
        return;
    efs_lock(request->fs);
    efs_admission_cancel(request->fs, request, NULL, -ECANCELED);
    efs_unlock(request->fs);
}

/* Drops at most DROPPED_AT_ONCE items. */
static void request_drop_some(struct efs_request *request, uint32_t first, uint32_t end)
{
    struct efs *fs = request->fs;
    int fd[DROPPED_AT_ONCE];
    bool was_ready[DROPPED_AT_ONCE];
    pthread_mutex_lock(&request->lock);
    for (uint32_t i = first; i < end; i++) {
        struct efs_request_item *item = &request->items[i];
        was_ready[i - first] = item->base.state == EFS_ITEM_READY;
        efs_client_item_set(&request->base, &item->base, EFS_ITEM_DROPPED, 0);
    }
    pthread_mutex_unlock(&request->lock);
    efs_lock(fs);
    for (uint32_t i = first; i < end; i++) {
        fd[i - first] = -1;
        efs_item_set_held(fs, &request->items[i], false);
        if (was_ready[i - first])
            efs_item_release(&request->items[i], &fd[i - first]);
    }
    efs_unlock(fs);
    for (uint32_t i = first; i < end; i++) {
        if (fd[i - first] >= 0)
            efs_sys_close(fd[i - first]);
        if (was_ready[i - first] && request->arrived)
            efs_request_unref(request);
    }
}

static void request_drop(struct efs_client_request *of, uint32_t first, uint32_t end)
{
    request_drop_loading(efs_request_of(of), first, end);
    for (; first < end; first += DROPPED_AT_ONCE)
        request_drop_some(efs_request_of(of), first, end - first < DROPPED_AT_ONCE ? end : first + DROPPED_AT_ONCE);
}

static void request_free(struct efs_client_request *of)
{
    efs_request_unref(efs_request_of(of));
}

/* One that waited for memory may be the last to close a circle. */
static bool request_blocks(struct efs_client_request *of)
{
    struct efs_request *request = efs_request_of(of);
    if (!atomic_load_explicit(&request->waited, memory_order_relaxed))
        return false;
    pthread_mutex_unlock(of->lock);
    efs_lock(request->fs);
    efs_admission_blocked(request->fs);
    efs_unlock(request->fs);
    pthread_mutex_lock(of->lock);
    return true;
}

static const struct efs_request_ops request_ops = {
    .blocks = request_blocks, .tensors = request_tensors, .drop = request_drop, .free = request_free};

void efs_request_detach(struct efs_client_request *request, uint32_t index)
{
    efs_item_set(&efs_request_of(request)->items[index], EFS_ITEM_DROPPED, 0);
    request_free(request);
}

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

/* ---- the beginning ---- */

/* NULL: no memory. */
static struct efs_request *request_new(struct efs *fs, const struct efs_need *needs, uint32_t count,
                                       const struct efs_request_how *how)
{
    size_t bytes = sizeof(struct efs_request) + count * sizeof(struct efs_request_item);
    for (uint32_t i = 0; i < count; i++)
        bytes += efs_expert_load_bytes(fs, needs[i].expert);
    struct efs_request *request = efs_sys_calloc(1, bytes);
    if (!request)
        return NULL;
    efs_client_request_init(&request->base, &request_ops, &request->lock, &request->changed, count,
                            offsetof(struct efs_request, items), sizeof(request->items[0]));
    request->base.owner = &fs->owner;
    request->base.thread = how->arrived ? 0 : efs_thread_number();
    request->fs = fs;
    request->arrived = how->arrived;
    request->oversize_fn = how->oversize;
    request->holder = how->holder;
    if (request->holder)
        atomic_fetch_add(&request->holder->refs, 1);
    request->together = !how->opened;
    request->use = !how->arrived ? EFS_MEMFILE_PRIVATE : how->opened ? EFS_MEMFILE_EXPORTED : EFS_MEMFILE_WINDOW;
    request->refs = count + 1;
    efs_cond_init(&request->changed);
    pthread_mutex_init(&request->lock, NULL);
    for (uint32_t i = 0; i < count; i++) {
        request->items[i].request = request;
        request->items[i].expert = needs[i].expert;
        request->items[i].arg = how->arrived ? how->args[i] : NULL;
    }
    efs_request_add_parts(request);
    return request;
}

/* Lock held. Chooses the form of each item. EFS_FORM_ANY is full if the expert is READY or FILLING. */
static void request_choose_forms(const struct efs *fs, struct efs_request *request, const struct efs_request_how *how)
{
    for (uint32_t i = 0; i < request->base.count; i++) {
        struct efs_request_item *item = &request->items[i];
        bool full = how->form == EFS_FORM_ANY ? efs_full_of(fs, item->expert)->state != EFS_FULL_NONE
                                              : how->form == EFS_FORM_FULL;
        item->form = full && fs->options.full_pool ? EFS_FORM_FULL : EFS_FORM_CODED;
    }
}

/* Lock held, and released meanwhile. Looks which mapped experts were unmapped: those that are requested for a window,
 * and others if memory is short. */
static void request_look(struct efs *fs, const struct efs_request *request)
{
    uint64_t need = 0;
    for (uint32_t i = 0; efs_full_pool(fs)->mapped_count && i < request->base.count; i++) {
        const struct efs_request_item *item = &request->items[i];
        if (item->form != EFS_FORM_FULL)
            continue;
        if (request->use == EFS_MEMFILE_WINDOW)
            efs_full_look(fs, item->expert);
        need += efs_full_missing_bytes(fs, item->expert);
    }
    if (!efs_full_is_short(fs, need))
        return;
    efs_unlock(fs);
    efs_full_sample(fs, LOOK_MOST);
    efs_lock(fs);
}

/* Lock held. */
static void item_begin(struct efs *fs, const struct efs_request_item *item)
{
    bool full = item->form == EFS_FORM_FULL;
    efs_count(fs->stats, leases, full);
    efs_count(fs->stats, coded, !full);
    if (full && item->request->arrived)
        fs->leases->last_use = item->request->use;
    efs_in_flight_begin(fs);
}

errint_t efs_request_submit(struct efs *fs, const struct efs_need *needs, uint32_t count,
                            const struct efs_request_how *how, struct efs_client_request **out, struct efs_error *err)
{
    const enum efs_use_kind kind = how->opened ? EFS_USE_OPENED : how->counted ? EFS_USE_COUNTED : EFS_USE_NAMED;
    bool full_waits = false;
    *out = NULL;
    errint_t rc = request_check(fs, needs, count, how->form, err);
    if (rc < 0)
        return rc;
    struct efs_request *request = request_new(fs, needs, count, how);
    if (!request)
        return efs_fail(err, -ENOMEM, "no memory for a request");
    efs_lock(fs);
    request_choose_forms(fs, request, how); /* of the state before the policy places the experts */
    request_look(fs, request);
    efs_use_experts(fs, needs, count, kind);
    for (uint32_t i = 0; i < count; i++)
        item_begin(fs, &request->items[i]);
    efs_admission_enqueue(fs, request);
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_request_item *item = &request->items[i];
        efs_count(fs->stats, lease_waits, item->waiting && item->form == EFS_FORM_FULL);
        efs_count(fs->stats, coded_waits, item->waiting && item->form == EFS_FORM_CODED);
        full_waits |= item->waiting && item->form == EFS_FORM_FULL;
    }
    if (full_waits)
        efs_plan_thread_kick(fs);
    efs_unlock(fs);
    if (how->arrived)
        efs_request_unref(request);
    else
        *out = &request->base;
    return 0;
}

errint_t efs_experts_want(struct efs *fs, const struct efs_need *needs, uint32_t count, struct efs_error *err)
{
    errint_t rc = request_check(fs, needs, count, EFS_FORM_CODED, err);
    if (rc < 0)
        return rc;
    efs_lock(fs);
    efs_use_experts(fs, needs, count, EFS_USE_AHEAD);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t expert = needs[i].expert;
        if (efs_full_of(fs, expert)->state != EFS_FULL_NONE)
            continue;
        efs_expert_read_ahead(fs, expert);
        if (efs_extents_missing(fs, expert)) /* for want of memory */
            efs_cache_lost(fs, expert);
    }
    efs_unlock(fs);
    return 0;
}
