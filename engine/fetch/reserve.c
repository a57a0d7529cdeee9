/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reserve.c - see fetch.h: takes the memory of items in one critical section, all or nothing. A coded item needs blocks
 * of the chunk pool, referenced until it is dropped; a full one a lease, or a memory file to be filled. With efs.lock
 * held.
 */
#include "fetch.h"
#include "stats.h"

#include "budget.h"
#include "cache.h"

#include <errno.h>

/* ---- coded ---- */

static void coded_unreserve(struct efs *fs, struct efs_request_item *item)
{
    for (uint32_t i = 0; i < item->part_count; i++)
        efs_extent_unreserve(fs, &item->parts[i].waiter);
    efs_item_coded_unpin(fs, item);
}

static errint_t coded_reserve(struct efs *fs, struct efs_request_item *item)
{
    efs_item_coded_pin(fs, item); /* before its blocks: the chunk pool may grow for pinned experts */
    for (uint32_t i = 0; i < item->part_count; i++) {
        item->parts[i].waiter.long_term = true;
        errint_t rc = efs_extent_reserve(fs, item->parts[i].waiter.extent, &item->parts[i].waiter);
        if (rc < 0) {
            coded_unreserve(fs, item);
            return rc;
        }
    }
    item->got = EFS_GOT_CODED;
    return 0;
}

/* ---- full ---- */

/* Leases a READY expert, so that memory for the other items does not replace it. */
static void full_lease_ready(struct efs *fs, struct efs_request_item *item)
{
    item->was_full = efs_full_is_unusable(efs_full_of(fs, item->expert), item->request->use);
    if (item->was_full)
        efs_full_evict(fs, item->expert);
    if (efs_full_of(fs, item->expert)->state != EFS_FULL_READY)
        return;
    efs_lease_get(fs, item->expert);
    item->got = EFS_GOT_LEASE;
}

static errint_t full_reserve(struct efs *fs, struct efs_request_item *item)
{
    const struct efs_full *f = efs_full_of(fs, item->expert);
    if (f->state == EFS_FULL_FILLING) {
        item->got = EFS_GOT_FILLING;
        return 0;
    }
    enum efs_memfile_kind use = item->request->use == EFS_MEMFILE_PRIVATE ? fs->leases->last_use : item->request->use;
    errint_t rc = efs_budget_get_memfile(fs, efs_memfile_bytes(fs, item->expert), use, &item->memfile);
    if (rc == 0)
        item->got = EFS_GOT_MEMFILE;
    return rc;
}

static void full_unreserve(struct efs *fs, struct efs_request_item *item)
{
    int fd = -1;
    if (item->got == EFS_GOT_LEASE)
        efs_full_unlease(fs, item->expert, &fd); /* fd: an expert without leases has none */
    else if (item->got == EFS_GOT_MEMFILE && item->memfile)
        efs_full_put_memfile(fs, item->memfile);
    else if (item->got == EFS_GOT_MEMFILE)
        efs_account_release(&fs->account, EFS_ACCOUNT_FULL, efs_memfile_bytes(fs, item->expert));
    item->memfile = NULL;
}

bool efs_full_is_short(const struct efs *fs, uint64_t need)
{
    return need && efs_account_fixed(&fs->account) + fs->account.floor_segments * fs->arena.segment_bytes +
                           fs->account.bytes[EFS_ACCOUNT_FULL_PINNED] + need >
                       fs->account.budget_bytes;
}

/* ---- all items ---- */

static void items_unreserve(struct efs *fs, struct efs_request_item *items, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct efs_request_item *item = &items[i];
        if (!item->waiting)
            continue;
        if (item->got == EFS_GOT_CODED)
            coded_unreserve(fs, item);
        else
            full_unreserve(fs, item);
        if (item->was_full)
            efs_cache_lost_full(fs, item->expert);
        item->was_full = false;
        item->got = EFS_GOT_NOTHING;
    }
}

static errint_t items_reserve(struct efs *fs, struct efs_request_item *items, uint32_t count)
{
    errint_t rc = 0;
    uint64_t pinned = fs->account.bytes[EFS_ACCOUNT_CODED_PINNED], coded = 0, full = 0; /* bytes that are added */
    for (uint32_t i = 0; i < count; i++)
        if (items[i].waiting && items[i].form == EFS_FORM_CODED && !fs->leases->at[items[i].expert].coded_pins)
            coded += efs_item_bytes(fs, &items[i]);
    if (coded && pinned && pinned + coded > efs_budget_coded(fs))
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        if (!items[i].waiting || items[i].form != EFS_FORM_FULL)
            continue;
        full_lease_ready(fs, &items[i]);
        full += efs_full_missing_bytes(fs, items[i].expert);
    }
    if (efs_full_is_short(fs, full)) /* nothing has to be evicted to find that out */
        return -ENOMEM;
    /* Memory files first. The chunk pool grows rather than evict what it has: of memory that a segment was retired for,
     * it would take a segment again, and the request would wait for its own retirement for ever. */
    for (uint32_t i = 0; i < count && rc == 0; i++)
        if (items[i].waiting && items[i].form == EFS_FORM_FULL && items[i].got == EFS_GOT_NOTHING)
            rc = full_reserve(fs, &items[i]);
    for (uint32_t i = 0; i < count && rc == 0; i++)
        if (items[i].waiting && items[i].form == EFS_FORM_CODED)
            rc = coded_reserve(fs, &items[i]);
    return rc;
}

errint_t efs_items_reserve(struct efs *fs, struct efs_request_item *items, uint32_t count)
{
    const struct efs_changes before = efs_changes(fs);
    errint_t rc = items_reserve(fs, items, count);
    if (rc < 0) {
        items_unreserve(fs, items, count);
        efs_changes_undo(fs, before);
    }
    return rc;
}

void efs_items_commit(struct efs *fs, struct efs_request_item *items, uint32_t count)
{
    for (struct efs_request_item *item = items; item < items + count; item++) {
        if (!item->waiting)
            continue;
        item->waiting = false;
        item->request->waiting--;
        fs->items_waiting--;
        efs_item_set_held(fs, item, item->request->together);
        if (item->got == EFS_GOT_LEASE) {
            efs_count(fs->stats, leases_f, 1);
            efs_item_defer_answer(fs, item, 0);
            continue;
        }
        const bool fresh = !item->memfile || !item->memfile->populated;
        if (item->got != EFS_GOT_CODED)
            item->next_waiter = efs_full_add_waiter(fs, item->expert, item, fresh);
        if (item->got == EFS_GOT_FILLING)
            continue;
        efs_item_request_parts(item);
        efs_defer_task(fs, &item->task, efs_item_start);
    }
}
