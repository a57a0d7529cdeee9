/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - the life of a request after it was started (request_begin.c): experts are loaded, reported, waited for
 * and dropped.
 */
#include "fetch.h"

#include "cache.h"
#include "container.h"
#include "deadline.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

#define DROPPED_AT_ONCE 64u /* in one critical section */

/* ---- reported items ---- */

static bool request_any_loading(const struct efs_request *request)
{
    for (uint32_t i = 0; i < request->count; i++)
        if (request->items[i].state == EFS_ITEM_LOADING)
            return true;
    return false;
}

/* Lock held: an item that is READY or FAILED and was not reported yet; NULL: none. */
static struct efs_request_item *request_next_unreported(struct efs_request *request)
{
    for (uint32_t i = 0; i < request->count; i++) {
        struct efs_request_item *item = &request->items[i];
        if (!item->reported && (item->state == EFS_ITEM_READY || item->state == EFS_ITEM_FAILED))
            return item;
    }
    return NULL;
}

/* Lock held: the event is readable when a wait would return at once. */
static void request_update_event(struct efs_request *request)
{
    if (request->event.fd >= 0)
        efs_event_set(&request->event, request_next_unreported(request) || !request_any_loading(request));
}

/* ---- the life of an item ---- */

void efs_request_unref(struct efs_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool last = --request->refs == 0;
    pthread_mutex_unlock(&request->lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < request->count; i++) {
        efs_item_free_load(&request->items[i]);
        efs_item_free_tensors(&request->items[i]);
    }
    efs_event_close(&request->event);
    pthread_cond_destroy(&request->changed);
    pthread_mutex_destroy(&request->lock);
    free(request);
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
 * *fd: see efs_full_unlease(). */
static void item_release_locked(struct efs_request_item *item, struct efs_lease *lease, int *fd)
{
    struct efs *fs = item->request->fs;
    if (lease)
        efs_lease_put(fs, item->expert, fd);
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

/* Reports an item of another process: READY, then held until efs_request_drop(), or FAILED. */
static void item_export(struct efs_request_item *item, errint_t error, struct efs_lease *lease)
{
    struct efs_request *request = item->request;
    item->lease = lease;
    item->state = error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY;
    request->arrived(item->arg, error, error < 0 ? NULL : request, (uint32_t)(item - request->items));
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
    bool wanted = !item->preload && !request->released && item->state == EFS_ITEM_LOADING;
    item->lease = wanted ? lease : NULL;
    item->error = error;
    if (item->state == EFS_ITEM_LOADING)
        item->state = error < 0 ? EFS_ITEM_FAILED : wanted ? EFS_ITEM_READY : EFS_ITEM_DROPPED;
    pthread_cond_broadcast(&request->changed);
    request_update_event(request);
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
    efs_count(&fs->stats, lease_errors, full && item->error < 0);
    efs_count(&fs->stats, coded_errors, !full && item->error < 0);
    item_done(item, item->error, full && item->error == 0 ? &fs->leases->handles[item->expert] : NULL);
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

/* ---- waiting, dropping ---- */

int efs_request_wait_any(struct efs_request *request, int timeout_ms, uint32_t *index, errint_t *status)
{
    struct timespec time;
    const struct timespec *until = efs_deadline(timeout_ms, &time);
    struct efs_request_item *item;
    int rc = 0;
    pthread_mutex_lock(&request->lock);
    while (!(item = request_next_unreported(request)) && request_any_loading(request) && rc == 0)
        rc = efs_cond_wait_until(&request->changed, &request->lock, until);
    if (item) {
        item->reported = true;
        *index = (uint32_t)(item - request->items);
        *status = item->state == EFS_ITEM_READY ? 0 : item->error;
        rc = 1;
        request_update_event(request);
    }
    pthread_mutex_unlock(&request->lock);
    return rc;
}

int efs_request_event(struct efs_request *request)
{
    pthread_mutex_lock(&request->lock);
    int fd = request->event.fd >= 0 ? request->event.fd : efs_event_open(&request->event);
    if (fd >= 0)
        request_update_event(request);
    pthread_mutex_unlock(&request->lock);
    return fd;
}

errint_t efs_request_wait(struct efs_request *request)
{
    errint_t rc = 0;
    pthread_mutex_lock(&request->lock);
    while (request_any_loading(request) && !request->oversize)
        pthread_cond_wait(&request->changed, &request->lock);
    for (uint32_t i = 0; i < request->count && rc == 0; i++)
        rc = request->items[i].state == EFS_ITEM_FAILED ? request->items[i].error : 0;
    if (request_any_loading(request))
        rc = -EDEADLK;
    pthread_mutex_unlock(&request->lock);
    return rc;
}

errint_t efs_request_tensors(struct efs_request *request, uint32_t index, const struct efs_tensor **tensors,
                             uint32_t *count)
{
    if (index >= request->count)
        return -EINVAL;
    struct efs_request_item *item = &request->items[index];
    pthread_mutex_lock(&request->lock);
    errint_t rc = item->state == EFS_ITEM_LOADING   ? -EAGAIN
                  : item->state == EFS_ITEM_READY   ? 0
                  : item->state == EFS_ITEM_DROPPED ? -EINVAL
                                                    : item->error;
    if (rc == 0 && !item->tensors)
        rc = efs_item_tensors(item);
    pthread_mutex_unlock(&request->lock);
    if (rc < 0)
        return rc;
    *tensors = item->tensors;
    *count = item->tensor_count;
    return 0;
}

static bool item_was_loading(const struct efs_request_item *item, const void *request)
{
    return item->request == request && item->was_loading;
}

/* Drops items that the caller holds; those that are being loaded are released when they complete. */
static void request_drop(struct efs_request *request, uint32_t first, uint32_t end)
{
    struct efs *fs = request->fs;
    int fd[DROPPED_AT_ONCE];
    bool loading = false;
    pthread_mutex_lock(&request->lock);
    for (uint32_t i = first; i < end; i++) {
        struct efs_request_item *item = &request->items[i];
        item->was_ready = item->state == EFS_ITEM_READY;
        item->was_loading |= item->state == EFS_ITEM_LOADING;
        loading |= item->state == EFS_ITEM_LOADING;
        item->state = EFS_ITEM_DROPPED;
    }
    pthread_cond_broadcast(&request->changed);
    request_update_event(request);
    pthread_mutex_unlock(&request->lock);
    efs_lock(fs);
    if (loading)
        efs_admission_cancel(fs, item_was_loading, request);
    for (uint32_t i = first; i < end; i++) {
        fd[i - first] = -1;
        if (request->items[i].was_ready)
            item_release_locked(&request->items[i], request->items[i].lease, &fd[i - first]);
    }
    efs_unlock(fs);
    for (uint32_t i = first; i < end; i++) {
        if (fd[i - first] >= 0)
            efs_sys_close(fd[i - first]);
        if (!request->items[i].was_ready)
            continue;
        efs_item_free_load(&request->items[i]);
        request->items[i].lease = NULL;
        if (request->arrived)
            efs_request_unref(request);
    }
}

void efs_request_drop(struct efs_request *request, uint32_t index)
{
    if (index < request->count)
        request_drop(request, index, index + 1);
}

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

void efs_request_detach(struct efs_request *request, uint32_t index)
{
    struct efs_request_item *item = &request->items[index];
    efs_item_free_load(item);
    item->lease = NULL;
    item->state = EFS_ITEM_DROPPED;
    efs_request_unref(request);
}

void efs_request_free_in_child(struct efs_request *request)
{
    efs_event_close(&request->event);
    free(request);
}

void efs_request_release(struct efs_request *request)
{
    if (!request)
        return;
    pthread_mutex_lock(&request->lock);
    request->released = true;
    pthread_mutex_unlock(&request->lock);
    for (uint32_t i = 0; i < request->count; i += DROPPED_AT_ONCE)
        request_drop(request, i, i + DROPPED_AT_ONCE < request->count ? i + DROPPED_AT_ONCE : request->count);
    efs_request_unref(request);
}
