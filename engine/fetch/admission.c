/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.c - see fetch.h: the queue of requests that wait for memory. With efs.lock held.
 *
 * A request gets the memory of all of its items at once (reserve.c), in the order of the queue, or waits without any.
 * Its items are admitted one by one if they are used one by one: opens, and preloads without a holder; and if
 * they do not fit into memory at once. Such an *oversize* request holds some items while it waits for the next. It
 * waits behind all requests that fit, there is one at a time, and its caller gets -EDEADLK if it waits for all.
 *
 * The first request is tried when memory that was pinned is released, or a limit rises. If it fails although its bytes
 * would fit, loads and decodes in flight use the memory: until it is admitted, no other load starts
 * (admission_starved). If it fails while nothing is pinned or in flight, everything else is evicted, because its own
 * resident extents may be where its other blocks must go; if it fails again it cannot succeed.
 *
 * So if the queue is not empty, something is pinned by a request that holds all it needs, or in flight; both end.
 */
#include "fetch.h"

#include "budget.h"
#include "cache.h"

#include <errno.h>

/* Whether memory is pinned, in flight or being freed: some will become available. */
static bool memory_will_come(const struct efs *fs)
{
    return fs->coded_pinned || efs_full_any_in_use(fs) || !efs_extents_only_long_refs(fs) ||
           fs->account.bytes[EFS_ACCOUNT_RETIRING];
}

/* Whether an item that found no memory waits for it. An open of a file does not wait for coded experts: the file can be
 * read without a lease, and the process that opens it may hold them. */
static bool item_may_wait(const struct efs *fs, const struct efs_request_item *item)
{
    if (item->form == EFS_FORM_CODED)
        return true;
    bool held = efs_full_any_in_use(fs) || (item->request->use != EFS_MEMFILE_EXPORTED && fs->coded_pinned);
    return fs->options.lease_wait && held;
}

/* Whether it holds some of its experts while the rest waits. */
static bool request_holds_some(struct efs_request *request)
{
    bool some = false;
    if (!request->together || request->waiting == request->count)
        return false;
    pthread_mutex_lock(&request->lock);
    for (uint32_t i = 0; i < request->count; i++) {
        const struct efs_request_item *item = &request->items[i];
        some |= item->got != EFS_GOT_NOTHING && !item->preload &&
                (item->state == EFS_ITEM_LOADING || item->state == EFS_ITEM_READY);
    }
    pthread_mutex_unlock(&request->lock);
    return some;
}

/* Reports that not all experts of the request fit into memory at once, by the last one that waits: the rest is admitted
 * before it. */
static void request_report_oversize(struct efs_request *request)
{
    for (uint32_t i = request->count; request->oversize_fn && i-- > 0;)
        if (request->items[i].waiting && request->items[i].arg) {
            request->oversize_fn(request->items[i].arg);
            return;
        }
}

static void request_set_oversize(struct efs_request *request, bool oversize)
{
    pthread_mutex_lock(&request->lock);
    bool report = oversize && !request->oversize;
    request->oversize = oversize;
    pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
    if (report)
        request_report_oversize(request);
}

/* Takes the item off the queue; it is answered with this error after the lock is released. */
static void item_fail(struct efs *fs, struct efs_request_item *item, errint_t error)
{
    item->waiting = false;
    item->request->waiting--;
    fs->items_waiting--;
    efs_cache_release(fs, item->expert);
    efs_item_defer_answer(fs, item, error);
}

/* Admits those of these items that wait, or none. 0; -EAGAIN, -EBUSY, -ENOMEM: see efs_items_reserve(). */
static errint_t items_admit(struct efs *fs, struct efs_request_item *items, uint32_t count)
{
    errint_t rc = efs_items_reserve(fs, items, count);
    if (rc < 0 && !memory_will_come(fs)) {
        efs_extents_evict_all(fs);
        rc = efs_items_reserve(fs, items, count);
    }
    if (rc == 0)
        efs_items_commit(fs, items, count);
    return rc;
}

/* Whether items that were not admitted, for this reason, wait. */
static bool items_wait(const struct efs *fs, const struct efs_request_item *items, uint32_t count, errint_t rc)
{
    bool may = true;
    for (uint32_t i = 0; i < count && rc == -ENOMEM; i++)
        may = may && (!items[i].waiting || item_may_wait(fs, &items[i]));
    return may && memory_will_come(fs);
}

/* Admits the waiting items of a request one by one, until one has to wait. 0: none waits. */
static errint_t request_admit_each(struct efs *fs, struct efs_request *request)
{
    for (uint32_t i = 0; i < request->count; i++) {
        struct efs_request_item *item = &request->items[i];
        errint_t rc = item->waiting ? items_admit(fs, item, 1) : 0;
        if (rc < 0 && items_wait(fs, item, 1, rc))
            return rc;
        if (rc < 0)
            item_fail(fs, item, -ENOMEM);
    }
    return 0;
}

/* Whether an item waits that may have to wait for the caller's drops. */
static bool request_may_wait_long(const struct efs *fs, const struct efs_request *request)
{
    for (uint32_t i = 0; i < request->count; i++)
        if (request->items[i].waiting && (request->items[i].form == EFS_FORM_CODED || fs->options.lease_wait))
            return true;
    return false;
}

/* Admits the waiting items of a request, all or none, or one by one. 0: none waits. */
static errint_t request_admit(struct efs *fs, struct efs_request *request)
{
    struct efs_request_item *items = request->items;
    uint32_t count = request->count;
    for (uint32_t i = 0; fs->closing && i < count; i++)
        if (items[i].waiting)
            item_fail(fs, &items[i], -ECANCELED);
    bool oversize = request->together && (request_holds_some(request) || efs_items_are_oversize(fs, items, count));
    if (request->together && !oversize) {
        errint_t rc = items_admit(fs, items, count);
        if (rc == 0 || items_wait(fs, items, count, rc))
            return rc;
        oversize = request->waiting > 1 && !memory_will_come(fs);
    }
    errint_t rc = request_admit_each(fs, request);
    if (rc < 0 && (oversize || request_holds_some(request)) && request_may_wait_long(fs, request))
        request_set_oversize(request, true);
    return rc;
}

/* Takes a request off the queue of which no item waits. */
static void queue_end(struct efs *fs, struct efs_request **at)
{
    struct efs_request *request = *at;
    *at = request->next_queued;
    if (!*at)
        fs->leases->queue.tail = at;
    request_set_oversize(request, false);
}

static bool queue_holds_some(const struct efs *fs)
{
    for (struct efs_request *request = fs->leases->queue.head; request; request = request->next_queued)
        if (request_holds_some(request))
            return true;
    return false;
}

/* Whether it is the request's turn: it holds some of its experts, or none; and it is not oversize while another one is
 * admitted one by one. */
static bool request_has_turn(const struct efs *fs, struct efs_request *request, bool holding, bool others_hold)
{
    if (request_holds_some(request) != holding)
        return false;
    return holding || !others_hold || !request->together || !efs_items_are_oversize(fs, request->items, request->count);
}

/* Admits requests in order until one waits: those that hold some of their experts, or those that hold none. Returns why
 * the first one waits; 0: none does. */
static errint_t queue_run(struct efs *fs, bool holding)
{
    errint_t first = 0;
    bool others_hold = queue_holds_some(fs);
    for (struct efs_request **at = &fs->leases->queue.head, *request; (request = *at);) {
        bool opened = request->use == EFS_MEMFILE_EXPORTED && fs->coded_pinned; /* waits for no coded expert */
        bool may = request_has_turn(fs, request, holding, others_hold) &&
                   (first == 0 || opened || efs_items_are_pinned(fs, request->items, request->count));
        errint_t rc = may ? request_admit(fs, request) : 0;
        if (first == 0)
            first = rc;
        if (request->waiting) {
            at = &request->next_queued;
            continue;
        }
        queue_end(fs, at);
    }
    return first;
}

static void admission_run(struct efs *fs)
{
    bool starved = fs->admission_starved;
    fs->admission_starved = false;
    errint_t rc = queue_run(fs, false);
    if (rc == 0)
        rc = queue_run(fs, true);
    fs->admission_starved = (rc == -EAGAIN || rc == -EBUSY) && !efs_extents_only_long_refs(fs);
    if (starved && !fs->admission_starved)
        efs_retry(fs, EFS_RETRY_EXTENTS);
}

bool efs_admission_is_live(const struct efs *fs)
{
    bool retried = fs->queue_starts || fs->deferred.admitted || fs->deferred.retries & 1u << EFS_RETRY_ADMIT;
    bool in_flight = !efs_extents_only_long_refs(fs);
    return (fs->items_waiting == 0 || retried || memory_will_come(fs)) &&
           (!fs->admission_starved || retried || in_flight) && (efs_extents_none_wait(fs) || retried || in_flight);
}

void efs_admission_run(struct efs *fs)
{
    if (fs->items_waiting == 0 && !fs->admission_starved)
        return;
    admission_run(fs);
    fs->deferred.admitted |= fs->deferred.starts.head != NULL;
}

static void item_wait(struct efs *fs, struct efs_request_item *item)
{
    item->waiting = true;
    item->request->waiting++;
    fs->items_waiting++;
}

/* A preload in a request that is for holders otherwise takes memory that is there now; it never waits. */
static void preload_admit(struct efs *fs, struct efs_request_item *item)
{
    item_wait(fs, item);
    errint_t rc = efs_items_reserve(fs, item, 1);
    if (rc < 0)
        item_fail(fs, item, -ECANCELED);
    else
        efs_items_commit(fs, item, 1);
}

void efs_admission_enqueue(struct efs *fs, struct efs_request *request)
{
    for (uint32_t i = 0; i < request->count; i++)
        if (!request->together || !request->items[i].preload)
            item_wait(fs, &request->items[i]);
    request->next_queued = NULL;
    *fs->leases->queue.tail = request;
    fs->leases->queue.tail = &request->next_queued;
    admission_run(fs);
    if (request->waiting && request->together && efs_items_are_oversize(fs, request->items, request->count) &&
        request_may_wait_long(fs, request))
        request_set_oversize(request, true);
    for (uint32_t i = 0; request->together && i < request->count; i++)
        if (request->items[i].preload)
            preload_admit(fs, &request->items[i]);
}

void efs_admission_cancel(struct efs *fs, efs_cancel_item_fn *cancelled, const void *arg)
{
    for (struct efs_request **at = &fs->leases->queue.head, *request; (request = *at);) {
        uint32_t waiting = request->waiting;
        for (uint32_t i = 0; i < request->count; i++)
            if (request->items[i].waiting && cancelled(&request->items[i], arg))
                item_fail(fs, &request->items[i], -ECANCELED);
        if (request->oversize && request->waiting < waiting)
            request_report_oversize(request); /* by an item that still waits */
        if (request->waiting)
            at = &request->next_queued;
        else
            queue_end(fs, at);
    }
    efs_retry(fs, EFS_RETRY_ADMIT);
}
