/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - the life of a request after it was started (request_begin.c): experts are loaded, reported and dropped.
 * base/request.h has what it shares with other kinds of requests.
 */
#include "fetch.h"

#include "cache.h"
#include "container.h"
#include "sys.h"

#include <stdlib.h>

#define DROPPED_AT_ONCE 64u /* in one critical section */

/* ---- programs ---- */

struct efs_holder *efs_holder_new(void)
{
    struct efs_holder *holder = efs_sys_calloc(1, sizeof(*holder));
    if (holder)
        holder->refs = 1;
    return holder;
}

void efs_holder_unref(struct efs_holder *holder)
{
    if (holder && atomic_fetch_sub(&holder->refs, 1) == 1)
        free(holder);
}

/* ---- the life of an item ---- */

void efs_request_unref(struct efs_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool last = --request->refs == 0;
    pthread_mutex_unlock(&request->lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < request->base.count; i++) {
        efs_item_free_load(&request->items[i]);
        efs_item_free_tensors(&request->items[i]);
    }
    efs_holder_unref(request->holder);
    pthread_cond_destroy(&request->changed);
    pthread_mutex_destroy(&request->lock);
    efs_client_request_free(&request->base);
}

bool efs_preload_begin(struct efs *fs, uint32_t expert, enum efs_form form)
{
    const uint8_t bit = (uint8_t)(1u << form);
    return !(atomic_fetch_or(&fs->leases->preloading[expert], bit) & bit);
}

void efs_preload_end(struct efs *fs, uint32_t expert, enum efs_form form)
{
    atomic_fetch_and(&fs->leases->preloading[expert], (uint8_t) ~(1u << form));
}

/* Releases an item that was READY or has just completed: its lease, or its references on extents. With efs.lock held.
 * *fd: see efs_full_release(). */
static void item_release_locked(struct efs_request_item *item, struct efs_lease *lease, int *fd)
{
    struct efs *fs = item->request->fs;
    efs_item_unhold(fs, item);
    if (lease)
        efs_full_release(fs, item->expert, fd);
    else
        efs_item_unpin(fs, item);
    efs_cache_release(fs, item->expert);
}

static void item_release(struct efs_request_item *item, struct efs_lease *lease)
{
    int fd = -1;
    efs_lock(item->request->fs);
    item_release_locked(item, lease, &fd);
    efs_unlock(item->request->fs);
    if (fd >= 0)
        efs_sys_close(fd);
    if (!lease)
        efs_item_free_load(item);
}

static void item_set(struct efs_request_item *item, enum efs_item_state state, errint_t error)
{
    pthread_mutex_lock(&item->request->lock);
    efs_client_item_set(&item->request->base, &item->base, state, error);
    pthread_mutex_unlock(&item->request->lock);
}

/* Reports an item of another process: READY, then held until efs_client_drop(), or FAILED. */
static void item_export(struct efs_request_item *item, errint_t error, struct efs_lease *lease)
{
    struct efs_request *request = item->request;
    item->lease = lease;
    item_set(item, error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY, error);
    request->arrived(item->arg, error, error < 0 ? NULL : &request->base, (uint32_t)(item - request->items));
    if (error < 0)
        efs_request_unref(request);
}

/* Completes an item: READY, or FAILED with this error; it then holds nothing. */
static void item_done(struct efs_request_item *item, errint_t error, struct efs_lease *lease)
{
    struct efs_request *request = item->request;
    if (error < 0 || lease)
        efs_item_free_load(item);
    if (request->arrived && !item->preload) {
        item_export(item, error, lease);
        return;
    }
    pthread_mutex_lock(&request->lock);
    bool loading = item->base.state == EFS_ITEM_LOADING, wanted = loading && !item->preload;
    item->lease = wanted ? lease : NULL;
    if (loading)
        efs_client_item_set(&request->base, &item->base,
                            error < 0 ? EFS_ITEM_FAILED
                            : wanted  ? EFS_ITEM_READY
                                      : EFS_ITEM_DROPPED,
                            error);
    pthread_mutex_unlock(&request->lock);
    if (error == 0 && !wanted)
        item_release(item, lease);
    if (item->preload)
        efs_preload_end(request->fs, item->expert, item->form);
    efs_request_unref(request);
}

void efs_item_answer(struct efs *fs, struct efs_task *task)
{
    struct efs_request_item *item = EFS_CONTAINER(task, struct efs_request_item, task);
    bool full = item->form == EFS_FORM_FULL;
    errint_t error = item->load_error;
    efs_count(&fs->stats, lease_errors, full && error < 0);
    efs_count(&fs->stats, coded_errors, !full && error < 0);
    item_done(item, error, full && error == 0 ? &fs->leases->handles[item->expert] : NULL);
    efs_in_flight_end(fs);
}

void efs_item_coded_loaded(struct efs_request_item *item)
{
    struct efs *fs = item->request->fs;
    errint_t error = item->load_error;
    efs_count(&fs->stats, coded_errors, error < 0);
    efs_count(&fs->stats, coded_m, error == 0 && item->from_disk);
    efs_count(&fs->stats, coded_c, error == 0 && !item->from_disk);
    if (error < 0)
        item_release(item, NULL);
    item_done(item, error, NULL);
    efs_in_flight_end(fs);
}

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

static bool item_was_loading(const struct efs_request_item *item, const void *request)
{
    return item->request == request && item->was_loading;
}

/* Drops at most DROPPED_AT_ONCE items; those that are being loaded are released when they complete. */
static void request_drop_some(struct efs_request *request, uint32_t first, uint32_t end)
{
    struct efs *fs = request->fs;
    int fd[DROPPED_AT_ONCE];
    bool was_ready[DROPPED_AT_ONCE], loading = false;
    pthread_mutex_lock(&request->lock);
    for (uint32_t i = first; i < end; i++) {
        struct efs_request_item *item = &request->items[i];
        was_ready[i - first] = item->base.state == EFS_ITEM_READY;
        item->was_loading |= item->base.state == EFS_ITEM_LOADING;
        loading |= item->base.state == EFS_ITEM_LOADING;
        efs_client_item_set(&request->base, &item->base, EFS_ITEM_DROPPED, 0);
    }
    pthread_mutex_unlock(&request->lock);
    efs_lock(fs);
    if (loading)
        efs_admission_cancel(fs, item_was_loading, request);
    for (uint32_t i = first; i < end; i++) {
        fd[i - first] = -1;
        efs_item_unhold(fs, &request->items[i]);
        if (was_ready[i - first])
            item_release_locked(&request->items[i], request->items[i].lease, &fd[i - first]);
    }
    efs_unlock(fs);
    for (uint32_t i = first; i < end; i++) {
        if (fd[i - first] >= 0)
            efs_sys_close(fd[i - first]);
        if (!was_ready[i - first])
            continue;
        efs_item_free_load(&request->items[i]);
        request->items[i].lease = NULL;
        if (request->arrived)
            efs_request_unref(request);
    }
}

static void request_drop(struct efs_client_request *of, uint32_t first, uint32_t end)
{
    for (; first < end; first += DROPPED_AT_ONCE)
        request_drop_some(efs_request_of(of), first, end - first < DROPPED_AT_ONCE ? end : first + DROPPED_AT_ONCE);
}

static void request_free(struct efs_client_request *of)
{
    efs_request_unref(efs_request_of(of));
}

const struct efs_request_ops efs_request_ops = {.tensors = request_tensors, .drop = request_drop, .free = request_free};

struct cancelled_args {
    efs_cancelled_fn *cancelled;
};

static bool item_arg_is_cancelled(const struct efs_request_item *item, const void *arg)
{
    const struct cancelled_args *by = arg;
    return item->request->arrived && item->request->use != EFS_MEMFILE_EXPORTED && item->arg &&
           by->cancelled(item->arg);
}

void efs_requests_cancel(struct efs *fs, efs_cancelled_fn *cancelled)
{
    const struct cancelled_args by = {cancelled};
    efs_lock(fs);
    efs_admission_cancel(fs, item_arg_is_cancelled, &by);
    efs_unlock(fs);
}

void efs_request_detach(struct efs_client_request *request, uint32_t index)
{
    struct efs_request_item *item = &efs_request_of(request)->items[index];
    efs_item_free_load(item);
    item->lease = NULL;
    item_set(item, EFS_ITEM_DROPPED, 0);
    request_free(request);
}
