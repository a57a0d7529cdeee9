/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - the life of a request after it was started (request_begin.c): experts are loaded, reported, waited for
 * and dropped.
 */
#include "request_internal.h"

#include "cache.h"
#include "clock.h"
#include "lease.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define RETRIES_MAX 8               /* retries of a coded expert after -ENOMEM */
#define DEADLOCK_CHECK_NS 200000000 /* ns without a change, before a wait checks for a deadlock */

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
    for (uint32_t i = 0; i < request->count; i++)
        efs_item_free_tensors(&request->items[i]);
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

/* Releases the lease or the fetch of an item that was READY or has just completed. */
static void item_release(struct efs *fs, struct efs_lease *lease, struct efs_fetch *fetch, uint64_t bytes)
{
    if (lease)
        efs_lease_release(lease);
    if (!fetch)
        return;
    efs_lock(fs);
    efs_fetch_unref(fetch);
    efs_coded_unpin(fs, fetch->expert, bytes);
    efs_cache_release(fs, fetch->expert);
    efs_unlock(fs);
    free(fetch);
}

/* Reports an item of another process: READY, then held until efs_request_drop(), or FAILED. */
static void item_export(struct efs_request_item *item, errint_t error, struct efs_lease *lease)
{
    struct efs_request *request = item->request;
    item->lease = lease;
    item->state = error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY;
    if (error == 0) {
        request->arrived(item->arg, 0, request, (uint32_t)(item - request->items));
        return;
    }
    struct efs_fetch *fetch = item->fetch;
    item->fetch = NULL;
    item_release(request->fs, NULL, fetch, item->bytes);
    request->arrived(item->arg, error, NULL, 0);
    efs_request_unref(request);
}

/* Completes an item: READY, or FAILED with this error. */
static void item_done(struct efs_request_item *item, errint_t error, struct efs_lease *lease)
{
    struct efs_request *request = item->request;
    struct efs_fetch *fetch = NULL;
    uint64_t bytes = item->bytes;
    if (request->arrived && !item->preload) {
        item_export(item, error, lease);
        return;
    }
    pthread_mutex_lock(&request->lock);
    item->lease = lease;
    item->error = error;
    bool wanted = error == 0 && !item->preload && !request->released && item->state == EFS_ITEM_LOADING;
    if (!wanted) {
        fetch = item->fetch;
        item->fetch = NULL;
        item->lease = NULL;
    }
    if (item->state == EFS_ITEM_LOADING)
        item->state = error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY;
    pthread_cond_broadcast(&request->changed);
    request_update_event(request);
    pthread_mutex_unlock(&request->lock);
    if (!wanted)
        item_release(request->fs, lease, fetch, bytes);
    if (item->preload)
        efs_preload_end(request->fs, item->expert, item->form);
    efs_request_unref(request);
}

void efs_item_leased(void *arg, errint_t error, struct efs_lease *lease)
{
    item_done(arg, error, lease);
}

/* Pinned chunks left no room for the expert: releases its extents and queues it again. */
static bool item_retry(struct efs *fs, struct efs_request_item *item)
{
    bool again = item->fetch->error == -ENOMEM && item->retries < RETRIES_MAX;
    if (!again && !item->retries)
        return false;
    efs_lock(fs);
    fs->coded_retrying -= item->retries != 0;
    if (again) {
        item->retries++;
        item->fetch->error = 0;
        efs_fetch_unref(item->fetch);
        efs_extents_evict_expert(fs, item->expert);
        efs_coded_unpin(fs, item->expert, item->bytes);
        efs_coded_requeue(fs, item);
    }
    efs_unlock(fs);
    return again;
}

void efs_item_loaded(struct efs_fetch *fetch)
{
    struct efs *fs = fetch->fs;
    struct efs_request_item *item = fetch->owner;
    if (item_retry(fs, item))
        return;
    errint_t error = fetch->error;
    efs_count(&fs->stats, coded_errors, error < 0);
    efs_count(&fs->stats, coded_m, error == 0 && fetch->from_disk);
    efs_count(&fs->stats, coded_c, error == 0 && !fetch->from_disk);
    item_done(item, error, NULL);
    efs_in_flight_end(fs);
}

/* ---- waiting, dropping ---- */

int efs_request_wait_any(struct efs_request *request, int timeout_ms, uint32_t *index, errint_t *status)
{
    const struct timespec until = efs_from_now((int64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000);
    struct efs_request_item *item;
    int rc = 0;
    pthread_mutex_lock(&request->lock);
    while (!(item = request_next_unreported(request)) && request_any_loading(request) && rc == 0)
        if (timeout_ms < 0)
            pthread_cond_wait(&request->changed, &request->lock);
        else if (pthread_cond_timedwait(&request->changed, &request->lock, &until) == ETIMEDOUT)
            rc = -ETIMEDOUT;
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
    bool deadlocked = false;
    pthread_mutex_lock(&request->lock);
    while (request_any_loading(request) && !deadlocked) {
        const struct timespec until = efs_from_now(DEADLOCK_CHECK_NS);
        if (pthread_cond_timedwait(&request->changed, &request->lock, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&request->lock);
        deadlocked = efs_request_is_deadlocked(request);
        pthread_mutex_lock(&request->lock);
    }
    for (uint32_t i = 0; i < request->count && rc == 0; i++)
        rc = request->items[i].state == EFS_ITEM_FAILED ? request->items[i].error : 0;
    pthread_mutex_unlock(&request->lock);
    return deadlocked ? -EDEADLK : rc;
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

void efs_request_drop(struct efs_request *request, uint32_t index)
{
    if (index >= request->count)
        return;
    struct efs_request_item *item = &request->items[index];
    bool exported = request->arrived != NULL;
    pthread_mutex_lock(&request->lock);
    bool here = item->state == EFS_ITEM_READY;
    struct efs_lease *lease = here ? item->lease : NULL;
    struct efs_fetch *fetch = here ? item->fetch : NULL;
    if (here) {
        item->lease = NULL;
        item->fetch = NULL;
    }
    item->state = EFS_ITEM_DROPPED; /* an item that is loading is released when it completes */
    pthread_cond_broadcast(&request->changed);
    request_update_event(request);
    pthread_mutex_unlock(&request->lock);
    item_release(request->fs, lease, fetch, item->bytes);
    if (here && exported)
        efs_request_unref(request);
}

void efs_requests_cancel(struct efs *fs, efs_cancelled_fn *cancelled)
{
    efs_lock(fs);
    efs_coded_cancel(fs, cancelled);
    efs_leases_cancel(fs, cancelled);
    efs_unlock(fs);
}

void efs_request_detach(struct efs_request *request, uint32_t index)
{
    struct efs_request_item *item = &request->items[index];
    free(item->fetch);
    item->fetch = NULL;
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
    for (uint32_t i = 0; i < request->count; i++)
        efs_request_drop(request, i);
    efs_request_unref(request);
}
