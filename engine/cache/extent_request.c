/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_request.c - requests of extents, and the FIFO of extents that wait for memory.
 *
 * A reader that decodes drops its reference afterwards, so its memory becomes available to the queue. Chunks of coded
 * experts are referenced until a client drops them: see queue_resolve_deadlock().
 */
#include "extent_internal.h"

#include <errno.h>

bool efs_extent_request_paced(struct efs *fs, uint32_t extent, enum efs_pace pace, size_t bytes,
                              struct efs_extent_waiter *waiter)
{
    efs_extent_accessed(fs, extent, pace, bytes);
    return efs_extent_request(fs, extent, waiter);
}

bool efs_extent_request(struct efs *fs, uint32_t extent, struct efs_extent_waiter *waiter)
{
    struct efs_extent *x = &fs->extents->at[extent];
    efs_extent_used(fs, x);
    x->prefetched = false;
    if (efs_extent_is_complete(x)) {
        efs_extent_ref(fs, x, waiter);
        x->evict_first = false;
        efs_extent_enlist(fs, extent);
        return true;
    }
    waiter->extent = extent;
    waiter->error = 0;
    waiter->next = x->waiters;
    x->waiters = waiter;
    if (x->state != EFS_EXTENT_IDLE) {
        efs_extent_load_raise(fs, extent);
        return false;
    }
    bool uncached = fs->coded_retrying && !waiter->long_term;
    errint_t rc = fs->closing            ? -ECANCELED
                  : uncached             ? -ENOMEM
                  : fs->extents->waiting ? -EAGAIN
                                         : efs_extent_load(fs, extent, EFS_LOAD_DEMAND);
    if (rc == -EAGAIN)
        efs_extent_wait_for_memory(fs, extent);
    else if (rc < 0)
        efs_extent_complete_waiters(fs, x, rc);
    return false;
}

bool efs_extent_may_read_shard(const struct efs *fs, uint32_t extent, uint64_t begin, size_t bytes)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    uint64_t shard_bytes = efs_object_shard_bytes(fs, x->object);
    return x->state == EFS_EXTENT_IDLE && !x->resident && x->shard_count >= 2 &&
           (begin + bytes - 1) / shard_bytes == begin / shard_bytes && !fs->closing;
}

/* ---- queue for memory ---- */

static bool queue_load_any(struct efs *fs)
{
    for (struct efs_extent **at = &fs->extents->waiting; *at; at = &(*at)->next_waiting)
        if (efs_extent_load(fs, (uint32_t)(*at - fs->extents->at), EFS_LOAD_DEMAND) == 0) {
            efs_extent_dequeue(fs, at);
            return true;
        }
    return false;
}

/* Completes waiters without long-term references with -ENOMEM: they read uncached. true: no waiter is left. */
static bool extent_complete_uncached(struct efs *fs, struct efs_extent *x)
{
    for (struct efs_extent_waiter **at = &x->waiters, *w; (w = *at);) {
        if (w->long_term) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        efs_extent_complete_waiter(fs, x, w, -ENOMEM);
    }
    return !x->waiters;
}

/* Returns the number of experts with extents in the queue. *first: the expert of its head, EFS_NONE: none. */
static uint32_t queue_experts(const struct efs *fs, uint32_t *first)
{
    uint32_t count = 0;
    for (const struct efs_extent *x = fs->extents->waiting; x; x = x->next_waiting) {
        uint32_t expert = fs->store->objects[x->object].group;
        const struct efs_extent *before = fs->extents->waiting;
        while (before != x && fs->store->objects[before->object].group != expert)
            before = before->next_waiting;
        count += before == x;
    }
    *first = count ? fs->store->objects[fs->extents->waiting->object].group : EFS_NONE;
    return count;
}

/*
 * The head of the queue gets no memory, and only a client that drops coded experts would free some. Loads the first
 * extent that finds memory. If none does, waiters without long-term references read uncached, and protected extents are
 * evicted for the rest. If every coded expert lacks an extent, so that no client has one to drop, the first expert's
 * fetch fails and releases its extents.
 */
static void queue_resolve_deadlock(struct efs *fs)
{
    uint32_t first;
    if (queue_load_any(fs) || fs->growing)
        return;
    for (struct efs_extent **at = &fs->extents->waiting; *at;) {
        struct efs_extent *x = *at;
        if (extent_complete_uncached(fs, x)) {
            x->state = EFS_EXTENT_IDLE;
            efs_extent_dequeue(fs, at);
        } else {
            at = &x->next_waiting;
        }
    }
    while (fs->extents->waiting && efs_extents_reclaim_protected(fs))
        if (queue_load_any(fs))
            return;
    if (fs->extents->waiting == NULL || queue_experts(fs, &first) < fs->coded_pinned)
        return;
    for (struct efs_extent **at = &fs->extents->waiting; *at;) {
        struct efs_extent *x = *at;
        if (fs->store->objects[x->object].group != first) {
            at = &x->next_waiting;
            continue;
        }
        efs_extent_dequeue(fs, at);
        x->state = EFS_EXTENT_IDLE;
        efs_extent_complete_waiters(fs, x, -ENOMEM);
    }
}

/* Loads queued extents in order until one gets no memory. */
void efs_extents_retry(struct efs *fs)
{
    while (fs->extents->waiting) {
        struct efs_extent *x = fs->extents->waiting;
        errint_t rc = fs->closing ? -ECANCELED : efs_extent_load(fs, (uint32_t)(x - fs->extents->at), EFS_LOAD_DEMAND);
        if (rc == -EAGAIN) {
            if (fs->extents->long_refs && efs_extents_only_long_refs(fs))
                queue_resolve_deadlock(fs);
            break;
        }
        efs_extent_dequeue(fs, &fs->extents->waiting);
        if (rc < 0) {
            x->state = EFS_EXTENT_IDLE;
            efs_extent_complete_waiters(fs, x, rc);
        }
    }
}
