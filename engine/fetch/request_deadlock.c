/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_deadlock.c - detects waits that only the waiter itself could end: the experts that it waits for have no room
 * while it holds the loaded ones, and it drops none before all are loaded.
 */
#include "request_internal.h"

#include "budget.h"
#include "full.h"
#include "lease.h"

/* Experts that one request, or one caller by its arg, holds and waits for. */
struct claim {
    uint64_t coded_bytes, full_bytes;
    uint32_t coded_count;
    uint32_t coded_loaded, full_loaded; /* loaded or being loaded */
    bool waits;                         /* an item waits for room */
};

/* efs.lock held: the queued item that is `key`, or has it as arg; NULL: none. */
static const struct efs_request_item *waiting_item(const struct efs *fs, const void *key)
{
    for (const struct efs_request_item *i = fs->leases->coded_waiting; i; i = i->next_waiting)
        if (i == key || i->arg == key)
            return i;
    for (const struct efs_full_waiter *w = fs->leases->queue; w; w = w->next) {
        const struct efs_request_item *i = w->use == EFS_MEMFILE_EXPORTED ? NULL : w->arg; /* EXPORTED: of an open */
        if (i && (i == key || i->arg == key))
            return i;
    }
    return NULL;
}

/* efs.lock held. */
static void claim_add(const struct efs *fs, struct claim *claim, const struct efs_request_item *item, bool waits)
{
    bool coded = item->form == EFS_FORM_CODED;
    claim->coded_bytes += coded ? item->bytes : 0;
    claim->coded_count += coded;
    claim->coded_loaded += coded && !waits;
    claim->full_loaded += !coded && !waits;
    claim->full_bytes += coded ? 0 : efs_memfile_bytes(fs, item->expert);
    /* an expert that is pinned coded is resident: its item will be admitted */
    claim->waits |= waits && !(coded && fs->leases->coded_pins[item->expert]);
}

/* efs.lock held: the claim holds all pinned experts, and no memory is being freed. */
static bool claim_is_sole_holder(const struct efs *fs, const struct claim *claim)
{
    return claim->coded_loaded + claim->full_loaded > 0 && claim->coded_loaded >= fs->coded_pinned &&
           !efs_full_in_use_beyond(fs, claim->full_loaded) && efs_extents_only_long_refs(fs) &&
           !efs_budget_is_retiring(fs);
}

/* efs.lock held: the claim waits, and exceeds the budget even without other holders, or is the only holder. A single
 * coded expert is always admitted. */
static bool claim_is_deadlocked(const struct efs *fs, const struct claim *claim)
{
    uint64_t chunks = fs->account.floor_segments * fs->arena.segment_bytes;
    if (claim->coded_bytes > chunks)
        chunks = claim->coded_bytes;
    bool coded = claim->coded_count > 1 && claim->coded_bytes > efs_budget_coded(fs);
    bool full =
        claim->full_bytes && efs_account_fixed(&fs->account) + chunks + claim->full_bytes > fs->account.budget_bytes;
    return claim->waits && (coded || full || claim_is_sole_holder(fs, claim));
}

bool efs_request_is_deadlocked(struct efs_request *request)
{
    struct efs *fs = request->fs;
    struct claim claim = {0};
    bool loading = false;
    efs_lock(fs);
    pthread_mutex_lock(&request->lock);
    for (uint32_t i = 0; i < request->count; i++) {
        const struct efs_request_item *item = &request->items[i];
        bool loads = item->state == EFS_ITEM_LOADING, waits = loads && waiting_item(fs, item);
        if (loads || item->state == EFS_ITEM_READY)
            claim_add(fs, &claim, item, waits);
        loading |= loads && !waits;
    }
    bool deadlocked = !loading && claim_is_deadlocked(fs, &claim);
    pthread_mutex_unlock(&request->lock);
    efs_unlock(fs);
    return deadlocked;
}

bool efs_requests_are_deadlocked(struct efs *fs, const struct efs_request_ref *held, uint32_t count)
{
    struct claim claim = {0};
    bool loading = false;
    efs_lock(fs);
    for (uint32_t i = 0; i < count; i++) {
        bool here = held[i].request != NULL;
        const struct efs_request_item *item =
            here ? &held[i].request->items[held[i].index] : waiting_item(fs, held[i].arg);
        if (item)
            claim_add(fs, &claim, item, !here);
        loading |= !item;
    }
    bool deadlocked = !loading && claim_is_deadlocked(fs, &claim);
    efs_unlock(fs);
    return deadlocked;
}
