/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fit.c - see fetch.h: whether the experts of a request fit into memory, next to those that programs hold. A program is
 * a client of a mount, or a thread of this process. With efs.lock held.
 */
#include "fetch.h"

#include "budget.h"
#include "cache.h"

#include <errno.h>

/* ---- what a program holds ---- */

struct efs_held efs_program_held(const struct efs *fs, const struct efs_request *request)
{
    struct efs_held held = {{0}};
    const struct efs_request *other;
    if (request->holder || !request->base.thread)
        return request->holder ? request->holder->held : request->held;
    LIST_FOREACH(other, &fs->leases->holding, holding)
    {
        for (unsigned form = 0; form < 2 && other->base.thread == request->base.thread; form++)
            held.bytes[form] += other->held.bytes[form];
    }
    return held;
}

bool efs_request_waits_for_others(const struct efs *fs, const struct efs_request *request)
{
    const struct efs_held held = efs_program_held(fs, request);
    return !efs_held_some(held) || fs->account.bytes[EFS_ACCOUNT_CODED_PINNED] > held.bytes[EFS_FORM_CODED] ||
           fs->account.bytes[EFS_ACCOUNT_FULL_PINNED] > held.bytes[EFS_FORM_FULL] || !efs_extents_only_long_refs(fs);
}

/* ---- sizes ---- */

/* Adds the bytes of the items that wait to these. */
static struct efs_held add_waiting(const struct efs *fs, struct efs_held held, const struct efs_request_item *items,
                                   uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (items[i].waiting)
            held.bytes[items[i].form] += efs_item_bytes(fs, &items[i]);
    return held;
}

/* The same for those that are admitted next: together, or one by one. */
static struct efs_held add_next(const struct efs *fs, struct efs_held held, const struct efs_request *request)
{
    const struct efs_request_item *first = request->items;
    if (request->together && !request->base.oversize)
        return add_waiting(fs, held, first, request->base.count);
    while (!first->waiting)
        first++;
    return add_waiting(fs, held, first, 1);
}

/* Whether experts of these sizes can be in memory at once if nothing else is pinned. */
static bool bytes_fit(const struct efs *fs, struct efs_held held)
{
    uint64_t coded = held.bytes[EFS_FORM_CODED], full = held.bytes[EFS_FORM_FULL];
    uint64_t chunks = fs->account.floor_segments * fs->arena.segment_bytes;
    if (coded > chunks)
        chunks = coded;
    return coded <= efs_budget_coded(fs) &&
           (full == 0 || efs_account_fixed(&fs->account) + chunks + full <= fs->account.budget_bytes);
}

bool efs_request_is_oversize(const struct efs *fs, const struct efs_request *request)
{
    const struct efs_held none = {{0}};
    return request->waiting > 1 && !bytes_fit(fs, add_waiting(fs, none, request->items, request->base.count));
}

bool efs_request_is_pinned(const struct efs *fs, const struct efs_request *request)
{
    const struct efs_request_item *items = request->items;
    for (uint32_t i = 0; i < request->base.count; i++) {
        const struct efs_full *f = efs_full_of(fs, items[i].expert);
        bool full = f->state == EFS_FULL_FILLING || (f->state == EFS_FULL_READY && f->leases);
        if (items[i].waiting && !(items[i].form == EFS_FORM_CODED ? fs->leases->at[items[i].expert].coded_pins : full))
            return false;
    }
    return true;
}

bool efs_request_fits_next_to(const struct efs *fs, const struct efs_request *request, struct efs_held held)
{
    return bytes_fit(fs, add_next(fs, held, request));
}

/* ---- a thread that waits for itself ---- */

/* Whether the expert was not seen in this form yet; marks it. */
static bool mark(const struct efs *fs, const struct efs_request_item *item)
{
    uint8_t *marks = &fs->leases->at[item->expert].marks, bit = (uint8_t)(1u << item->form);
    bool is_new = !(*marks & bit);
    *marks |= bit;
    return is_new;
}

/* Adds the bytes of items of a request that are not marked, and marks them: of those that it holds, or of those that
 * wait and are admitted next. */
static void add_unmarked(const struct efs *fs, const struct efs_request *request, bool next, struct efs_held *held)
{
    const bool together = request->together && !request->base.oversize;
    for (uint32_t i = 0; i < request->base.count; i++) {
        const struct efs_request_item *item = &request->items[i];
        if (!(next ? item->waiting : item->held))
            continue;
        if (mark(fs, item))
            held->bytes[item->form] += efs_item_bytes(fs, item);
        if (next && !together)
            return;
    }
}

static void unmark(const struct efs *fs, const struct efs_request *request)
{
    for (uint32_t i = 0; i < request->base.count; i++)
        fs->leases->at[request->items[i].expert].marks = 0;
}

/* The bytes that its thread holds, each expert once: by all requests, or without this one; *with_next: and of what it
 * waits for next. A request for another process has no thread: then its own bytes alone. */
static struct efs_held held_by_thread(const struct efs *fs, const struct efs_request *request, bool without_this,
                                      struct efs_held *with_next)
{
    struct efs_held held = {{0}};
    const struct efs_request *other;
    LIST_FOREACH(other, &fs->leases->holding, holding)
    {
        if (other != request && other->base.thread == request->base.thread)
            add_unmarked(fs, other, false, &held);
    }
    if (!without_this)
        add_unmarked(fs, request, false, &held);
    *with_next = held;
    add_unmarked(fs, request, true, with_next);
    LIST_FOREACH(other, &fs->leases->holding, holding)
    {
        unmark(fs, other);
    }
    unmark(fs, request);
    return held;
}

/* Whether memory is being freed or prepared, without a drop: not segments in which programs hold blocks. */
static bool memory_is_coming(const struct efs *fs)
{
    const uint64_t *bytes = fs->account.bytes;
    return bytes[EFS_ACCOUNT_RETIRING] > bytes[EFS_ACCOUNT_RETIRING_HELD] || bytes[EFS_ACCOUNT_RETURNING] ||
           bytes[EFS_ACCOUNT_MEASURING] || fs->growing;
}

bool efs_memory_is_held(const struct efs *fs, errint_t why)
{
    return why == -ENOMEM || (why == -EAGAIN && efs_extents_only_long_refs(fs) && !memory_is_coming(fs));
}

/* Nothing else is pinned than these bytes, and no memory is being freed or prepared. */
static bool only_these_are_pinned(const struct efs *fs, struct efs_held held)
{
    const uint64_t *bytes = fs->account.bytes;
    return bytes[EFS_ACCOUNT_CODED_PINNED] <= held.bytes[EFS_FORM_CODED] &&
           bytes[EFS_ACCOUNT_FULL_PINNED] <= held.bytes[EFS_FORM_FULL] && !memory_is_coming(fs);
}

bool efs_request_is_stuck(const struct efs *fs, const struct efs_request *request)
{
    struct efs_held with_next;
    if (!request->base.thread || !request->waiting || LIST_EMPTY(&fs->leases->holding))
        return false;
    const struct efs_held held = held_by_thread(fs, request, true, &with_next);
    if (!efs_held_some(held))
        return false;
    return (!bytes_fit(fs, with_next) && !efs_request_is_pinned(fs, request)) ||
           (request->is_short && !efs_held_some(request->held) && only_these_are_pinned(fs, held));
}

uint32_t efs_request_waits_for_drops(const struct efs *fs, const struct efs_request *request)
{
    struct efs_held with_next;
    if (!request->waiting || !efs_held_some(request->held))
        return 0;
    const struct efs_held held = held_by_thread(fs, request, false, &with_next);
    const bool fits = bytes_fit(fs, with_next) || efs_request_is_pinned(fs, request);
    return !fits || (request->is_short && only_these_are_pinned(fs, held)) ? request->waiting : 0;
}

/* ---- threads that wait for each other ---- */

/* Whether the thread that made the request waits for it, nothing of which is in flight, and so drops nothing. A team
 * drops what the request itself holds. */
static bool request_is_blocked(struct efs_request *request)
{
    if (!request->base.thread || !request->waiting || !request->is_short)
        return false;
    pthread_mutex_lock(&request->lock);
    const enum efs_blocked blocked = request->base.blocked;
    const bool in_flight = request->base.loading != request->waiting;
    pthread_mutex_unlock(&request->lock);
    return !in_flight &&
           (blocked == EFS_BLOCKED_MAKER || (blocked == EFS_BLOCKED_TEAM && !efs_held_some(request->held)));
}

/* Whether a blocked thread gets -EDEADLK for what it holds itself. */
static bool some_wait_for_themselves(const struct efs *fs)
{
    for (struct efs_request *r = fs->leases->queue.head; r; r = r->next)
        if (request_is_blocked(r) && (efs_request_is_stuck(fs, r) || efs_request_waits_for_drops(fs, r)))
            return true;
    return false;
}

const struct efs_request *efs_deadlocked(const struct efs *fs)
{
    struct efs_held held = {{0}};
    const struct efs_request *last = NULL, *other;
    if (LIST_EMPTY(&fs->leases->holding) || !efs_extents_only_long_refs(fs) || some_wait_for_themselves(fs))
        return NULL;
    for (struct efs_request *r = fs->leases->queue.head; r; r = r->next) {
        if (!request_is_blocked(r) || !efs_held_some(efs_program_held(fs, r)))
            continue;
        last = r;
        LIST_FOREACH(other, &fs->leases->holding, holding)
        {
            if (other->base.thread == r->base.thread)
                add_unmarked(fs, other, false, &held);
        }
    }
    LIST_FOREACH(other, &fs->leases->holding, holding)
    {
        unmark(fs, other);
    }
    return only_these_are_pinned(fs, held) ? last : NULL;
}
