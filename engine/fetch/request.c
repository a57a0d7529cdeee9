/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - a layer's experts, named at once (ZipMoE 3.3): as leases on full ones, or as references on their chunks.
 *
 * Chunks that are referenced cannot be evicted: coded experts are handed out up to efs_budget_coded(), the others come
 * as these are dropped.
 */
#include "expertfs-private.h"

#include "clock.h"
#include "lease.h"
#include "request_core.h"
#include "budget.h"
#include "cache.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CODED_AT_ONCE 64u  /* experts that begin as one batch */
#define BRING_SHARE 4      /* a quarter of the budget */
#define STUCK_NS 200000000 /* without anything new, before a wait asks whether anything can come */

/* ---- what there is to tell ---- */

static bool request_any_coming(const struct efs_request *request)
{
    for (uint32_t i = 0; i < request->count; i++)
        if (request->items[i].state == EFS_ITEM_COMING)
            return true;
    return false;
}

/* Lock held: an item that is here or failed, and was not told yet; NULL: there is none. */
static struct efs_request_item *request_untold(struct efs_request *request)
{
    for (uint32_t i = 0; i < request->count; i++) {
        struct efs_request_item *item = &request->items[i];
        if (!item->told && (item->state == EFS_ITEM_HERE || item->state == EFS_ITEM_FAILED))
            return item;
    }
    return NULL;
}

/* Lock held: is the event readable when waiting would not wait? */
static void request_tell_event(struct efs_request *request)
{
    if (request->event.fd >= 0)
        efs_event_set(&request->event, request_untold(request) || !request_any_coming(request));
}

/* ---- the life of an item ---- */

static void request_unref(struct efs_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool last = --request->refs == 0;
    pthread_mutex_unlock(&request->lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < request->count; i++)
        efs_item_free_tensors(&request->items[i]);
    if (request->event.fd >= 0)
        efs_sys_close(request->event.fd);
    pthread_cond_destroy(&request->changed);
    pthread_mutex_destroy(&request->lock);
    free(request);
}

/* Lock held: what it takes of the room for coded experts. One that others hold takes nothing: it is the same memory. */
static uint64_t coded_more(const struct efs *fs, const struct efs_request_item *item)
{
    return fs->leases->coded_holds[item->expert] ? 0 : item->bytes;
}

/*
 * Lock held: is there room for the first that waits? A request's coded experts are handed out all or none, so that two
 * requests never wait for each other's; one that is too large for that has the others wait until all of it was there.
 */
static bool coded_has_room(const struct efs *fs, const struct efs_request_item *first)
{
    uint64_t bytes = coded_more(fs, first);
    const struct efs_request_item *i = first->next_waiting;
    for (; i && i->request == first->request && !first->request->begun;
         i = i->next_waiting) /* they follow each other */
        bytes += coded_more(fs, i);
    return bytes == 0 || fs->closing || fs->account.coded_bytes == 0 ||
           fs->account.coded_bytes + bytes <= efs_budget_coded(fs);
}

/* Lock held. */
static void coded_hold(struct efs *fs, const struct efs_request_item *item)
{
    if (fs->leases->coded_holds[item->expert]++ == 0) {
        fs->account.coded_bytes += item->bytes;
        fs->leases->coded_count++;
    }
}

static void coded_unhold(struct efs *fs, uint32_t expert, uint64_t bytes)
{
    if (--fs->leases->coded_holds[expert] == 0) {
        fs->account.coded_bytes -= bytes;
        fs->leases->coded_count--;
    }
}

void efs_coded_stats(const struct efs *fs, struct efs_stats *stats)
{
    stats->coded_bytes = fs->account.coded_bytes;
    stats->coded_experts = fs->leases->coded_count;
}

/* Lock held: it waits for room, in line. */
static void coded_wait(struct efs *fs, struct efs_request_item *item)
{
    *fs->leases->coded_tail = item;
    fs->leases->coded_tail = &item->next_waiting;
    fs->coded_waiting++;
}

/* Lock held: coded experts that there is room for now begin. */
static void coded_take(struct efs *fs, bool from_line)
{
    for (uint32_t taken = 0; fs->leases->coded_waiting && coded_has_room(fs, fs->leases->coded_waiting); taken++) {
        struct efs_request_item *item = fs->leases->coded_waiting;
        if (taken == CODED_AT_ONCE) {
            efs_again(fs, EFS_AGAIN_CODED);
            return;
        }
        item->request->begun = true;
        fs->leases->coded_waiting = item->next_waiting;
        if (--fs->coded_waiting == 0)
            fs->leases->coded_tail = &fs->leases->coded_waiting;
        coded_hold(fs, item);
        fs->deferred.from_lines |= from_line;
        EFS_DEFER(fs, fetches, item->fetch);
    }
}

void efs_coded_retry(struct efs *fs)
{
    coded_take(fs, true);
}

/* An expert that nobody comes for comes once, however often it is named meanwhile: else who names on and on would have
 * lines without end. false: it does already. */
static bool brought_begin(struct efs *fs, uint32_t expert, enum efs_form form)
{
    const uint8_t bit = (uint8_t)(1u << form);
    return !(atomic_fetch_or(&fs->leases->brought[expert], bit) & bit);
}

static void brought_end(struct efs *fs, uint32_t expert, enum efs_form form)
{
    atomic_fetch_and(&fs->leases->brought[expert], (uint8_t) ~(1u << form));
}

/* What an item holds is given back. It was HERE, or is told just now. */
static void item_let_go(struct efs *fs, struct efs_lease *lease, struct efs_fetch *fetch, uint64_t bytes)
{
    if (lease)
        efs_lease_release(lease);
    if (!fetch)
        return;
    efs_lock(fs);
    efs_fetch_unref(fetch);
    coded_unhold(fs, fetch->expert, bytes);
    efs_cache_release(fs, fetch->expert);
    efs_again(fs, EFS_AGAIN_CODED);
    efs_unlock(fs);
    free(fetch);
}

/* An item for another process is here, and its own until it is dropped; or it failed. */
static void item_hand_over(struct efs_request_item *item, errint_t error, struct efs_lease *lease)
{
    struct efs_request *request = item->request;
    item->lease = lease;
    item->state = error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_HERE;
    if (error == 0) {
        request->arrived(item->arg, 0, request, (uint32_t)(item - request->items));
        return;
    }
    struct efs_fetch *fetch = item->fetch;
    item->fetch = NULL;
    item_let_go(request->fs, NULL, fetch, item->bytes);
    request->arrived(item->arg, error, NULL, 0);
    request_unref(request);
}

/* An item is here, or failed. */
static void item_arrived(struct efs_request_item *item, errint_t error, struct efs_lease *lease)
{
    struct efs_request *request = item->request;
    struct efs_fetch *fetch = NULL;
    uint64_t bytes = item->bytes;
    if (request->arrived && !item->for_nobody) {
        item_hand_over(item, error, lease);
        return;
    }
    pthread_mutex_lock(&request->lock);
    item->lease = lease;
    item->error = error;
    bool wanted = error == 0 && !item->for_nobody && !request->over && item->state == EFS_ITEM_COMING;
    if (!wanted) {
        fetch = item->fetch;
        item->fetch = NULL;
        item->lease = NULL;
    }
    if (item->state == EFS_ITEM_COMING)
        item->state = error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_HERE;
    pthread_cond_broadcast(&request->changed);
    request_tell_event(request);
    pthread_mutex_unlock(&request->lock);
    if (!wanted)
        item_let_go(request->fs, lease, fetch, bytes);
    if (item->for_nobody)
        brought_end(request->fs, item->expert, item->form);
    request_unref(request);
}

static void item_leased(void *arg, errint_t error, struct efs_lease *lease)
{
    item_arrived(arg, error, lease);
}

static void item_brought(struct efs_fetch *fetch)
{
    struct efs *fs = fetch->fs;
    struct efs_request_item *item = fetch->owner;
    errint_t error = fetch->error;
    efs_count(&fs->stats, coded_errors, error < 0);
    efs_count(&fs->stats, coded_m, error == 0 && fetch->from_disk);
    efs_count(&fs->stats, coded_c, error == 0 && !fetch->from_disk);
    item_arrived(item, error, NULL);
    efs_active_end(fs);
}

/* ---- beginning ---- */

static errint_t request_check(const struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_form form,
                              struct efs_error *err)
{
    uint32_t width = efs_cache_width(fs);
    if (form == EFS_FORM_FULL && !fs->options.full_pool)
        return efs_fail(err, -EINVAL, "full experts need the full pool, which is off");
    if (count == 0 || count > width)
        return efs_fail(err, -EINVAL, "%u experts in a request: a layer has 1 to %u", count, width);
    for (uint32_t i = 0; i < count; i++) {
        if (needs[i].expert >= fs->store->expert_count || needs[i].tokens == 0)
            return efs_fail(err, -EINVAL, "there is no expert %u, or it gets no token", needs[i].expert);
        if (efs_cache_layer_of(fs, needs[i].expert) != efs_cache_layer_of(fs, needs[0].expert))
            return efs_fail(err, -EINVAL, "experts %u and %u are of two layers", needs[0].expert, needs[i].expert);
        for (uint32_t n = 0; n < i; n++)
            if (needs[n].expert == needs[i].expert)
                return efs_fail(err, -EINVAL, "expert %u twice in a request", needs[i].expert);
    }
    return 0;
}

/* What is asked for, and what beginning needs, got before anything is told to the cache state. */
struct start {
    const struct efs_request_how *how;
    uint32_t count, coming;     /* named; of those, that are to come */
    uint32_t *experts, *tokens; /* that are named */
    uint8_t *forms;
    bool *comes;
    struct efs_full_waiter **waiters; /* of those that are to come in full */
};

static void start_free(struct start *s)
{
    free(s->waiters);
    free(s->experts);
}

static bool start_for_nobody(const struct start *s, uint32_t i)
{
    return s->how->bring || (s->how->arrived && !s->how->args[i]);
}

/* Nothing has begun. */
static void start_undo(struct efs *fs, struct start *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->comes[i] && start_for_nobody(s, i))
            brought_end(fs, s->experts[i], s->forms[i]);
}

/* In which form each comes. What nobody has leased yet takes a share of the budget in full at most; the rest is brought
 * coded. */
static void start_choose_forms(struct efs *fs, struct start *s)
{
    enum efs_form form = s->how->form;
    uint64_t bytes = 0, most = efs_budget_now(fs) / BRING_SHARE;
    efs_lock(fs);
    for (uint32_t i = 0; i < s->count; i++) {
        bool full = form == EFS_FORM_FULL;
        if (s->how->bring) {
            bytes += efs_memfile_bytes(fs, s->experts[i]);
            full = bytes <= most;
        } else if (form == EFS_FORM_ANY) {
            full = fs->options.full_pool && efs_full_of(fs, s->experts[i])->state != EFS_FULL_NONE;
        }
        s->forms[i] = full && fs->options.full_pool ? EFS_FORM_FULL : EFS_FORM_CODED;
    }
    efs_unlock(fs);
}

static bool start_new(struct efs *fs, const struct efs_need *needs, uint32_t count, const struct efs_request_how *how,
                      struct start *s)
{
    *s = (struct start){.how = how,
                        .count = count,
                        .waiters = efs_sys_calloc(count, sizeof(struct efs_full_waiter *)),
                        .experts = efs_sys_calloc(count, 2 * sizeof(uint32_t) + 2)};
    if (!s->waiters || !s->experts)
        return false;
    s->tokens = s->experts + count;
    s->forms = (uint8_t *)(s->tokens + count);
    s->comes = (bool *)(s->forms + count);
    for (uint32_t i = 0; i < count; i++) {
        s->experts[i] = needs[i].expert;
        s->tokens[i] = needs[i].tokens;
    }
    start_choose_forms(fs, s);
    for (uint32_t i = 0; i < count; i++) {
        s->comes[i] = !start_for_nobody(s, i) || brought_begin(fs, s->experts[i], s->forms[i]);
        s->coming += s->comes[i];
    }
    return true;
}

static struct efs_request *request_new(struct efs *fs, const struct start *s)
{
    struct efs_request *request = efs_sys_calloc(1, sizeof(*request) + s->coming * sizeof(request->items[0]));
    if (!request)
        return NULL;
    request->fs = fs;
    request->event.fd = -1;
    request->arrived = s->how->arrived;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&request->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&request->lock, NULL);
    for (uint32_t i = 0; i < s->count; i++)
        if (s->comes[i])
            request->items[request->count++] =
                (struct efs_request_item){.request = request,
                                          .expert = s->experts[i],
                                          .tokens = s->tokens[i],
                                          .arg = s->how->arrived ? s->how->args[i] : NULL,
                                          .for_nobody = start_for_nobody(s, i),
                                          .form = s->forms[i]};
    request->refs = request->count + 1;
    return request;
}

/* What each item needs on its way. false: no memory, and none has it. */
static bool request_prepare(struct efs *fs, struct efs_request *request, struct start *s)
{
    bool good = true;
    for (uint32_t i = 0; good && i < request->count; i++) {
        struct efs_request_item *item = &request->items[i];
        if (item->form == EFS_FORM_FULL) {
            s->waiters[i] = efs_lease_waiter(item->expert, item->tokens, item_leased, item);
            good = s->waiters[i] != NULL;
            if (good && request->arrived)
                s->waiters[i]->use = EFS_MEMFILE_WINDOW;
        } else {
            item->fetch = efs_fetch_new(fs, item->expert);
            good = item->fetch != NULL;
            item->bytes = efs_expert_coded_bytes(fs, item->expert);
        }
        if (good && item->fetch) {
            item->fetch->owner = item;
            item->fetch->ended = item_brought;
            item->fetch->tokens = item->tokens;
        }
    }
    for (uint32_t i = 0; !good && i < request->count; i++) {
        free(s->waiters[i]);
        free(request->items[i].fetch);
        request->items[i].fetch = NULL;
    }
    return good;
}

static void request_begin(struct efs *fs, struct efs_request *request, const struct start *s)
{
    uint32_t coded = 0;
    efs_lock(fs);
    for (uint32_t i = 0; s->how->bring && i < s->count; i++) /* named again is another use, come for it or not */
        efs_cache_announce(fs, s->experts[i], false);
    efs_cache_request(fs, s->experts, s->tokens, s->count, true);
    for (uint32_t i = 0; i < s->count; i++) {
        efs_cache_touched(fs, s->experts[i]);
        if (s->how->bring)
            efs_cache_announce(fs, s->experts[i], true);
        if (!s->comes[i])
            efs_cache_release(fs, s->experts[i]);
    }
    for (uint32_t i = 0; i < request->count; i++) {
        struct efs_request_item *item = &request->items[i];
        if (item->form == EFS_FORM_FULL) {
            efs_count(&fs->stats, leases, 1);
            if (request->arrived)
                fs->leases->last_use = EFS_MEMFILE_WINDOW;
            efs_lease_ask(fs, s->waiters[i]);
        } else {
            coded_wait(fs, item);
            coded++;
            efs_active_begin(fs);
        }
    }
    efs_count(&fs->stats, coded, coded);
    coded_take(fs, false);
    efs_count(&fs->stats, coded_waits, coded < fs->coded_waiting ? coded : fs->coded_waiting); /* the last in line */
    efs_unlock(fs);
}

errint_t efs_request_submit(struct efs *fs, const struct efs_need *needs, uint32_t count,
                            const struct efs_request_how *how, struct efs_request **out, struct efs_error *err)
{
    struct start s;
    *out = NULL;
    errint_t rc = request_check(fs, needs, count, how->bring ? EFS_FORM_CODED : how->form, err);
    if (rc < 0)
        return rc;
    struct efs_request *request = NULL;
    bool started = start_new(fs, needs, count, how, &s);
    if (started)
        request = request_new(fs, &s);
    if (!request || !request_prepare(fs, request, &s)) {
        if (started)
            start_undo(fs, &s);
        start_free(&s);
        if (request) {
            request->refs = 1;
            request_unref(request);
        }
        return efs_fail(err, -ENOMEM, "no memory for a request");
    }
    request_begin(fs, request, &s);
    start_free(&s);
    if (how->bring || how->arrived)
        request_unref(request);
    else
        *out = request;
    return 0;
}

/* ---- waiting, dropping ---- */

int efs_request_wait_any(struct efs_request *request, int timeout_ms, uint32_t *index, errint_t *status)
{
    const struct timespec until = efs_from_now((int64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000);
    struct efs_request_item *item;
    int rc = 0;
    pthread_mutex_lock(&request->lock);
    while (!(item = request_untold(request)) && request_any_coming(request) && rc == 0)
        if (timeout_ms < 0)
            pthread_cond_wait(&request->changed, &request->lock);
        else if (pthread_cond_timedwait(&request->changed, &request->lock, &until) == ETIMEDOUT)
            rc = -ETIMEDOUT;
    if (item) {
        item->told = true;
        *index = (uint32_t)(item - request->items);
        *status = item->state == EFS_ITEM_HERE ? 0 : item->error;
        rc = 1;
        request_tell_event(request);
    }
    pthread_mutex_unlock(&request->lock);
    return rc;
}

int efs_request_event(struct efs_request *request)
{
    pthread_mutex_lock(&request->lock);
    int fd = request->event.fd >= 0 ? request->event.fd : efs_event_open(&request->event);
    if (fd >= 0)
        request_tell_event(request);
    pthread_mutex_unlock(&request->lock);
    return fd;
}

errint_t efs_request_wait(struct efs_request *request)
{
    errint_t rc = 0;
    bool stuck = false;
    pthread_mutex_lock(&request->lock);
    while (request_any_coming(request) && !stuck) {
        const struct timespec until = efs_from_now(STUCK_NS);
        if (pthread_cond_timedwait(&request->changed, &request->lock, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&request->lock);
        stuck = efs_request_is_stuck(request);
        pthread_mutex_lock(&request->lock);
    }
    for (uint32_t i = 0; i < request->count && rc == 0; i++)
        rc = request->items[i].state == EFS_ITEM_FAILED ? request->items[i].error : 0;
    pthread_mutex_unlock(&request->lock);
    return stuck ? -EDEADLK : rc;
}

errint_t efs_request_tensors(struct efs_request *request, uint32_t index, const struct efs_tensor **tensors,
                             uint32_t *count)
{
    if (index >= request->count)
        return -EINVAL;
    struct efs_request_item *item = &request->items[index];
    pthread_mutex_lock(&request->lock);
    errint_t rc = item->state == EFS_ITEM_COMING    ? -EAGAIN
                  : item->state == EFS_ITEM_HERE    ? 0
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
    bool for_others = request->arrived != NULL;
    pthread_mutex_lock(&request->lock);
    bool here = item->state == EFS_ITEM_HERE;
    struct efs_lease *lease = here ? item->lease : NULL;
    struct efs_fetch *fetch = here ? item->fetch : NULL;
    if (here) {
        item->lease = NULL;
        item->fetch = NULL;
    }
    item->state = EFS_ITEM_DROPPED; /* one that is coming is let go when it arrives */
    pthread_cond_broadcast(&request->changed);
    request_tell_event(request);
    pthread_mutex_unlock(&request->lock);
    item_let_go(request->fs, lease, fetch, item->bytes);
    if (here && for_others)
        request_unref(request);
}

void efs_request_forget(struct efs_request *request, uint32_t index)
{
    struct efs_request_item *item = &request->items[index];
    free(item->fetch);
    item->fetch = NULL;
    item->lease = NULL;
    item->state = EFS_ITEM_DROPPED;
    request_unref(request);
}

void efs_request_release(struct efs_request *request)
{
    if (!request)
        return;
    pthread_mutex_lock(&request->lock);
    request->over = true;
    pthread_mutex_unlock(&request->lock);
    for (uint32_t i = 0; i < request->count; i++)
        efs_request_drop(request, i);
    request_unref(request);
}
