/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coded_admission.c - the queue of coded experts that wait for room: at most efs_budget_coded() bytes may be held
 * coded, because chunks with references cannot be evicted. The queue advances as experts are dropped.
 */
#include "request_internal.h"

#include "budget.h"
#include "lease.h"

#include <errno.h>

#define CODED_BATCH_MAX 64u /* experts admitted in one critical section */

/* Lock held: bytes that the item adds to the pinned coded experts: 0 if its expert is pinned already. */
static uint64_t coded_added_bytes(const struct efs *fs, const struct efs_request_item *item)
{
    return fs->leases->coded_pins[item->expert] ? 0 : item->bytes;
}

/*
 * Lock held: whether the head of the queue can be admitted. The coded experts of a request are admitted all or none, so
 * that two requests never wait for each other. A request above the limit is admitted when nothing is pinned; the
 * requests behind it wait until all of its experts were admitted.
 */
static bool coded_has_room(const struct efs *fs, const struct efs_request_item *first)
{
    uint64_t bytes = coded_added_bytes(fs, first);
    const struct efs_request_item *i = first->next_waiting;
    for (; i && i->request == first->request && !first->request->begun;
         i = i->next_waiting) /* items of a request are adjacent */
        bytes += coded_added_bytes(fs, i);
    uint64_t pinned = fs->account.bytes[EFS_ACCOUNT_CODED_PINNED];
    return bytes == 0 || fs->closing || pinned == 0 || pinned + bytes <= efs_budget_coded(fs);
}

/* Lock held. */
static void coded_pin(struct efs *fs, const struct efs_request_item *item)
{
    if (fs->leases->coded_pins[item->expert]++ == 0) {
        efs_account_charge(&fs->account, EFS_ACCOUNT_CODED_PINNED, item->bytes);
        fs->coded_pinned++;
    }
}

void efs_coded_unpin(struct efs *fs, uint32_t expert, uint64_t bytes)
{
    if (--fs->leases->coded_pins[expert] == 0) {
        efs_account_release(&fs->account, EFS_ACCOUNT_CODED_PINNED, bytes);
        fs->coded_pinned--;
        efs_retry(fs, EFS_RETRY_EXTENTS); /* queue_resolve_deadlock() compares with coded_pinned */
    }
    efs_retry(fs, EFS_RETRY_LEASES);
    efs_retry(fs, EFS_RETRY_CODED);
}

void efs_coded_stats(const struct efs *fs, struct efs_stats *stats)
{
    stats->coded_bytes = fs->account.bytes[EFS_ACCOUNT_CODED_PINNED];
    stats->coded_experts = fs->coded_pinned;
}

void efs_coded_enqueue(struct efs *fs, struct efs_request_item *item)
{
    *fs->leases->coded_tail = item;
    fs->leases->coded_tail = &item->next_waiting;
    fs->coded_waiting++;
}

void efs_coded_requeue(struct efs *fs, struct efs_request_item *item)
{
    item->next_waiting = fs->leases->coded_waiting;
    fs->leases->coded_waiting = item;
    if (fs->coded_waiting++ == 0)
        fs->leases->coded_tail = &item->next_waiting;
}

/* Lock held: pins an item that was removed from the queue; its fetch starts when the lock is released. */
static void coded_start(struct efs *fs, struct efs_request_item *item, bool from_queue)
{
    coded_pin(fs, item);
    fs->coded_retrying += item->retries != 0;
    fs->deferred.from_queues |= from_queue;
    EFS_DEFER(fs, fetches, item->fetch);
}

/* Starts cancelled items with -ECANCELED: efs_fetch_submit() ends their fetches without a read. */
void efs_coded_cancel(struct efs *fs, efs_cancelled_fn *cancelled)
{
    struct efs_request_item **at = &fs->leases->coded_waiting;
    for (struct efs_request_item *item; (item = *at);) {
        if (!item->request->arrived || !item->arg || !cancelled(item->arg)) {
            at = &item->next_waiting;
            continue;
        }
        *at = item->next_waiting;
        fs->coded_waiting--;
        item->fetch->error = -ECANCELED;
        coded_start(fs, item, true);
    }
    fs->leases->coded_tail = at;
}

void efs_coded_admit(struct efs *fs, bool from_queue)
{
    for (uint32_t taken = 0; fs->leases->coded_waiting && coded_has_room(fs, fs->leases->coded_waiting); taken++) {
        struct efs_request_item *item = fs->leases->coded_waiting;
        if (taken == CODED_BATCH_MAX) {
            efs_retry(fs, EFS_RETRY_CODED);
            return;
        }
        item->request->begun = true;
        fs->leases->coded_waiting = item->next_waiting;
        if (--fs->coded_waiting == 0)
            fs->leases->coded_tail = &fs->leases->coded_waiting;
        coded_start(fs, item, from_queue);
    }
}

void efs_coded_retry(struct efs *fs)
{
    efs_coded_admit(fs, true);
}
