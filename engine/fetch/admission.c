/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.c - see fetch.h: the queue of requests that wait for memory. With efs.lock held.
 *
 * A request gets the memory of all of its items at once (reserve.c), in the order of the queue, or waits without any.
 * Its items are admitted one by one if they are used one by one, as opens are; and if they do not fit into memory at
 * once. Such an *oversize* request holds some items while it waits for the next. There is one at a time, and its caller
 * gets -EDEADLK if it waits for all.
 *
 * A request whose program holds experts, of this or of other requests, waits for its own caller while what it waits for
 * does not fit next to those: behind the rest of the queue, which it does not hold up. Then it has its turn: at its
 * place, or, if it is admitted in part, at the end of the queue, so that requests that come later do not overtake it.
 *
 * Requests for experts that are pinned already need no memory, and pass the first request that waits. They pin the
 * experts again, and programs that do so in turns would keep them pinned for ever; opens take memory that it could get.
 * So PASSES_MOST requests pass it. Then they wait behind it, and opens are served without a lease. The program of a
 * request that holds experts is not counted: it would wait while it holds memory that the first one may need.
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

#define PASSES_MOST 64u /* later requests that pass the first one that waits */

/* Whether memory is pinned, in flight or being freed: some will become available. */
static bool memory_will_come(const struct efs *fs)
{
    const uint64_t *bytes = fs->account.bytes;
    return fs->coded_pinned || bytes[EFS_ACCOUNT_FULL_PINNED] || bytes[EFS_ACCOUNT_RETIRING] ||
           !efs_extents_only_long_refs(fs);
}

/* Whether full experts of a request wait for a release. For an open of a file that is an option: the file can be read
 * without a lease. */
static bool request_may_wait_for_full(const struct efs *fs, const struct efs_request *request)
{
    return fs->options.lease_wait || request->use == EFS_MEMFILE_WINDOW;
}

/* Whether an item that found no memory waits for it. An open of a file does not wait for coded experts: the file can be
 * read without a lease, and the process that opens it may hold them. */
static bool item_may_wait(const struct efs *fs, const struct efs_request_item *item)
{
    if (item->form == EFS_FORM_CODED)
        return true;
    bool held =
        fs->account.bytes[EFS_ACCOUNT_FULL_PINNED] || (item->request->use != EFS_MEMFILE_EXPORTED && fs->coded_pinned);
    return held && request_may_wait_for_full(fs, item->request);
}

/* ---- reports ---- */

/* Reports that not all experts of the request fit into memory at once, by the last one that waits: the rest is admitted
 * before it. Withdraws that report when it is not true any more. anew: also if that item still waits. */
static void request_report_oversize(struct efs_request *request, bool anew)
{
    struct efs_request_item *old = request->oversize_item;
    if (!request->oversize_fn || (request->base.oversize && old && old->waiting && !anew))
        return;
    request->oversize_item = NULL;
    for (uint32_t i = request->base.count; request->base.oversize && !request->oversize_item && i-- > 0;)
        if (request->items[i].waiting && request->items[i].arg)
            request->oversize_item = &request->items[i];
    if (request->oversize_item)
        request->oversize_fn(request->oversize_item->arg, true, request->base.own_drops);
    else if (old)
        request->oversize_fn(old->arg, false, 0);
}

/* stuck, own_drops: efs_request_is_stuck(), efs_request_waits_for_drops(). Threads that wait for it are woken. */
static void request_set_stuck(struct efs_request *request, bool stuck, uint32_t own_drops)
{
    const bool other_drops = request->base.own_drops != own_drops;
    if (request->base.stuck == stuck && !other_drops)
        return;
    pthread_mutex_lock(&request->lock);
    request->base.stuck = stuck;
    request->base.own_drops = own_drops;
    pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
    if (other_drops)
        request_report_oversize(request, true);
}

static void request_set_oversize(struct efs_request *request, bool oversize)
{
    if (!oversize && !request->base.oversize)
        return;
    pthread_mutex_lock(&request->lock);
    request->base.oversize = oversize;
    pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
    request_report_oversize(request, false);
}

/* ---- admission of a request ---- */

/* Takes the item off the queue; it is answered with this error after the lock is released. */
static void item_fail(struct efs *fs, struct efs_request_item *item, errint_t error)
{
    item->waiting = false;
    item->request->waiting--;
    fs->items_waiting--;
    efs_changed(fs, EFS_CHANGED_QUEUE);
    efs_cache_release(fs, item->expert);
    efs_item_defer_answer(fs, item, error);
}

/* Takes the items that wait off the queue, with this error. */
static void request_fail(struct efs *fs, struct efs_request *request, errint_t error)
{
    for (uint32_t i = 0; i < request->base.count; i++)
        if (request->items[i].waiting)
            item_fail(fs, &request->items[i], error);
}

/* Admits those of these items that wait, or none. 0; -EAGAIN, -ENOMEM: see efs_items_reserve(). */
static errint_t items_admit(struct efs *fs, struct efs_request_item *items, uint32_t count)
{
    errint_t rc = efs_items_reserve(fs, items, count);
    while (efs_memory_is_held(fs, rc) && efs_cache_reclaim(fs, EFS_FOR_REQUEST, 0) == 0)
        rc = efs_items_reserve(fs, items, count); /* demotions do not hold it: one may take seconds */
    if (rc < 0 && !memory_will_come(fs)) {
        while (efs_cache_reclaim(fs, EFS_FOR_ADMISSION, 0) == 0)
            ;
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

/* Whether an item waits that may have to wait for the caller's drops. */
static bool request_may_wait_long(const struct efs *fs, const struct efs_request *request)
{
    for (uint32_t i = 0; i < request->base.count; i++)
        if (request->items[i].waiting &&
            (request->items[i].form == EFS_FORM_CODED || request_may_wait_for_full(fs, request)))
            return true;
    return false;
}

/* Admits the waiting items of a request, all or none, or one by one. 0: none waits. */
static errint_t request_admit(struct efs *fs, struct efs_request *request)
{
    struct efs_request_item *items = request->items;
    const uint32_t count = request->base.count;
    errint_t rc = 0;
    if (fs->closing)
        request_fail(fs, request, -ECANCELED);
    bool oversize = request->together && (efs_held_some(request->held) || efs_request_is_oversize(fs, request));
    if (request->together && !oversize) {
        rc = items_admit(fs, items, count);
        if (rc == 0 || items_wait(fs, items, count, rc))
            return rc;
        oversize = request->waiting > 1 && !memory_will_come(fs);
        rc = 0;
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) { /* one by one, until one has to wait */
        rc = items[i].waiting ? items_admit(fs, &items[i], 1) : 0;
        if (rc < 0 && !items_wait(fs, &items[i], 1, rc)) {
            item_fail(fs, &items[i], -ENOMEM);
            rc = 0;
        }
    }
    if (rc < 0 && (oversize || efs_held_some(request->held)) && request_may_wait_long(fs, request))
        request_set_oversize(request, true);
    return rc;
}

/* ---- the queue ---- */

/* Takes a request off the queue of which no item waits. */
static void queue_end(struct efs *fs, struct efs_request **at)
{
    struct efs_request *request = *at;
    *at = request->next;
    if (!*at)
        fs->leases->queue.tail = at;
    request_set_oversize(request, false);
    request_set_stuck(request, false, 0);
}

/* Whether some request holds experts while its rest waits. Updates what depends on drops: an oversize request of which
 * nothing is held any more may fit; one that fits next to what its program holds has its turn. */
static bool queue_look_at_drops(struct efs *fs)
{
    bool some = false;
    for (struct efs_request **at = &fs->leases->queue.head, *request; (request = *at);) {
        const struct efs_held held = efs_program_held(fs, request);
        bool was_in_line = request->in_line, part = efs_held_some(request->held);
        request->is_short = true; /* unless it is tried, and waits for another reason */
        some |= part;
        if (request->base.oversize && !part && !efs_request_is_oversize(fs, request))
            request_set_oversize(request, false);
        request->in_line = efs_held_some(held) && request->waiting &&
                           (efs_request_fits_next_to(fs, request, held) || efs_request_is_pinned(fs, request));
        if (!part || !request->in_line || was_in_line || !request->next) {
            at = &request->next;
            continue;
        }
        *at = request->next;
        EFS_QUEUE_PUSH(&fs->leases->queue, request);
    }
    return some;
}

/* Admits requests in order until one waits: those that wait for their own callers to drop some of their experts, or all
 * other requests. Returns why the first one waits; 0: none does. */
static errint_t queue_run(struct efs *fs, bool own_caller, bool some_hold)
{
    struct efs_leases *leases = fs->leases;
    struct efs_request *first = NULL;
    errint_t why = 0;
    for (struct efs_request **at = &leases->queue.head, *request; (request = *at);) {
        const bool holds = efs_held_some(efs_program_held(fs, request));
        const bool for_caller = holds && !request->in_line;
        /* not while it is oversize, and another one is admitted one by one */
        const bool turn = for_caller == own_caller && (efs_held_some(request->held) || !some_hold ||
                                                       !request->together || !efs_request_is_oversize(fs, request));
        /* an open of a file, which must not wait for coded experts */
        const bool opened = request->use == EFS_MEMFILE_EXPORTED && fs->coded_pinned;
        const bool may =
            turn &&
            (!first || ((first->passed < PASSES_MOST || holds) && (opened || efs_request_is_pinned(fs, request))));
        const uint32_t waiting = request->waiting;
        errint_t rc = may ? request_admit(fs, request) : 0;
        request->is_short = request->is_short && (!may || efs_memory_is_held(fs, rc));
        request->in_line = request->in_line && request->waiting == waiting;
        if (first && request->waiting < waiting) {
            first->passed++;
        } else if (request->waited && request->waiting < waiting) { /* in its turn: more may be pinned from now on */
            leases->progressed = true;
            leases->least_pinned = UINT64_MAX;
        }
        if (first && turn && !may && opened)
            request_fail(fs, request, -ENOMEM);
        if (!first && rc < 0 && efs_request_waits_for_others(fs, request)) {
            first = request;
            why = rc;
            leases->is_short = efs_memory_is_held(fs, rc);
        }
        if (own_caller && efs_memory_is_held(fs, rc) && !efs_held_some(request->held))
            leases->is_short = true; /* for what other requests of it hold */
        request->waited |= request->waiting != 0;
        if (request->waiting)
            at = &request->next;
        else
            queue_end(fs, at);
    }
    return why;
}

/* After the queue was tried: whether a request that waits is closer to its memory. `waits`: for other programs. */
static void look_for_progress(struct efs *fs, bool waits)
{
    struct efs_leases *leases = fs->leases;
    const uint64_t *bytes = fs->account.bytes,
                   pinned = bytes[EFS_ACCOUNT_CODED_PINNED] + bytes[EFS_ACCOUNT_FULL_PINNED];
    if (waits && pinned >= leases->least_pinned)
        return;
    leases->progressed |= leases->least_pinned != UINT64_MAX;
    leases->least_pinned = waits ? pinned : UINT64_MAX;
}

static void queue_look_for_stuck(struct efs *fs)
{
    const struct efs_request *deadlocked = efs_deadlocked(fs);
    for (struct efs_request *request = fs->leases->queue.head; request; request = request->next)
        request_set_stuck(request, request == deadlocked || efs_request_is_stuck(fs, request),
                          efs_request_waits_for_drops(fs, request));
}

/* Whether the queue will be tried before efs.lock is released for the last time: flags of then are set by that. */
static bool queue_is_retried(const struct efs *fs)
{
    return fs->queue_starts || fs->deferred.admitted;
}

void efs_admission_blocked(struct efs *fs)
{
    if (!queue_is_retried(fs))
        queue_look_for_stuck(fs);
}

static void admission_run(struct efs *fs)
{
    fs->admission_starved = false;
    fs->leases->is_short = false;
    bool some_hold = queue_look_at_drops(fs);
    errint_t rc = queue_run(fs, false, some_hold);
    if (rc == 0)
        rc = queue_run(fs, true, some_hold);
    fs->leases->awaits_flight = rc == -EAGAIN;
    fs->admission_starved = rc == -EAGAIN && !efs_extents_only_long_refs(fs);
    efs_extents_set_wanted(fs);
    const bool is_coming = rc == -EAGAIN && !efs_memory_is_held(fs, rc);
    for (struct efs_request *r = fs->leases->queue.head; r && is_coming; r = r->next)
        r->is_short = false; /* the queue is tried again when what is in flight has ended */
    queue_look_for_stuck(fs);
    look_for_progress(fs, rc < 0);
    if (!fs->leases->is_short || !fs->leases->on_short)
        return;
    fs->leases->on_short(fs->leases->on_short_arg, fs->leases->progressed);
    fs->leases->progressed = false;
}

bool efs_memory_short(struct efs *fs)
{
    efs_lock(fs);
    bool is_short = fs->leases->is_short;
    efs_unlock(fs);
    return is_short;
}

bool efs_admission_is_live(const struct efs *fs)
{
    bool retried = queue_is_retried(fs);
    bool in_flight = !efs_extents_only_long_refs(fs);
    return (fs->items_waiting == 0 || retried || memory_will_come(fs)) &&
           (!fs->admission_starved || retried || in_flight) && (!efs_extents_wait(fs) || retried || in_flight);
}

void efs_admission_run(struct efs *fs)
{
    /* one thread at a time starts what is admitted: a load may complete at once and admit the next one, and the
     * recursion would be as deep as the queue is long */
    const struct efs_changes *c = &fs->deferred.changes;
    bool due = c->admission || (fs->leases->awaits_flight && c->flight) || fs->closing;
    if (queue_is_retried(fs)) {
        for (struct efs_request *request = due ? fs->leases->queue.head : NULL; request; request = request->next)
            request_set_stuck(request, false, 0); /* until the queue is tried: the change may be a drop */
        return;
    }
    fs->deferred.changes.admission = fs->deferred.changes.flight = false;
    if (!due)
        return;
    uint32_t waiting = fs->items_waiting;
    admission_run(fs);
    fs->deferred.admitted |= fs->items_waiting < waiting;
}

void efs_on_memory_short(struct efs *fs, efs_memory_short_fn *call, void *arg)
{
    efs_lock(fs);
    fs->leases->on_short = call;
    fs->leases->on_short_arg = arg;
    efs_unlock(fs);
}

void efs_admission_enqueue(struct efs *fs, struct efs_request *request)
{
    if (fs->items_waiting == 0) {
        fs->leases->least_pinned = UINT64_MAX;
        fs->deferred.changes.admission = false; /* of a time when nothing waited */
    }
    for (uint32_t i = 0; i < request->base.count; i++)
        request->items[i].waiting = true;
    request->waiting = request->base.count;
    fs->items_waiting += request->waiting;
    EFS_QUEUE_PUSH(&fs->leases->queue, request);
    admission_run(fs);
    if (request->together && efs_request_is_oversize(fs, request) && request_may_wait_long(fs, request))
        request_set_oversize(request, true);
}

uint32_t efs_admission_cancel(struct efs *fs, const struct efs_request *dropped, efs_cancelled_fn *chosen,
                              errint_t error)
{
    uint32_t ended = 0;
    for (struct efs_request **at = &fs->leases->queue.head, *request; (request = *at);) {
        const bool others = request->arrived && request->use != EFS_MEMFILE_EXPORTED;
        bool may = error == -ECANCELED || !efs_held_some(request->held); /* else it waits for its own drops */
        for (uint32_t i = 0; may && i < request->base.count; i++) {
            struct efs_request_item *item = &request->items[i];
            if (!item->waiting ||
                !(dropped ? request == dropped && item->was_loading : others && item->arg && chosen(item->arg)))
                continue;
            item_fail(fs, item, error);
            ended++;
        }
        if (request->waiting) {
            request_report_oversize(request, false); /* by an item that still waits */
            at = &request->next;
        } else {
            queue_end(fs, at);
        }
    }
    return ended;
}

uint32_t efs_requests_refuse(struct efs *fs, efs_cancelled_fn *chosen)
{
    efs_lock(fs);
    uint32_t refused = efs_admission_cancel(fs, NULL, chosen, -EDEADLK);
    efs_unlock(fs);
    return refused;
}

void efs_requests_cancel(struct efs *fs, efs_cancelled_fn *cancelled)
{
    efs_lock(fs);
    efs_admission_cancel(fs, NULL, cancelled, -ECANCELED);
    efs_unlock(fs);
}
