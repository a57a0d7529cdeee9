/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_request.c - requests of extents, reservations, and the FIFO of extents that wait for memory.
 *
 * Only readers and loads of full experts wait in the FIFO. They drop their references after decoding, so what is in
 * flight becomes available to the next. When nothing is in flight and clients hold all memory, they read uncached.
 * Coded experts, whose chunks are referenced until a client drops them, are reserved as a whole.
 */
#include "extent_internal.h"

#include <assert.h>
#include <errno.h>

/* The extent has no waiters and is not being loaded: loads it, or queues it for memory. */
static void extent_load_or_queue(struct efs *fs, uint32_t extent)
{
    errint_t rc = fs->closing                                     ? -ECANCELED
                  : efs_extents_wait(fs) || fs->admission_starved ? -EAGAIN
                                                                  : efs_extent_load(fs, extent, EFS_LOAD_DEMAND, NULL);
    if (rc == -EAGAIN)
        efs_extent_wait_for_memory(fs, extent);
    else if (rc < 0)
        efs_extent_complete_waiters(fs, &fs->extents->at[extent], rc);
}

bool efs_extent_request(struct efs *fs, uint32_t extent, enum efs_pace pace, struct efs_extent_waiter *waiter)
{
    struct efs_extent *x = &fs->extents->at[extent];
    enum efs_reserved reserved = (enum efs_reserved)waiter->reserved;
    bool complete = efs_extent_is_complete(x), referenced = reserved == EFS_RESERVED_REF;
    efs_extent_accessed(fs, extent, pace);
    efs_extent_used(fs, x);
    waiter->extent = extent;
    waiter->reserved = EFS_RESERVED_NOTHING;
    waiter->error = 0;
    if (complete && fs->admission_starved && !referenced) {
        /* its memory may be needed: read uncached, so that the references on it end */
        efs_extent_complete_waiter(fs, x, waiter, -ENOMEM);
        return false;
    }
    if (complete) {
        if (!referenced)
            efs_extent_ref(fs, x, waiter);
        efs_extent_enlist(fs, extent);
        return true;
    }
    waiter->next = x->waiters;
    x->waiters = waiter;
    if (reserved == EFS_RESERVED_LOAD) {
        if (waiter->load->was == EFS_EXTENT_QUEUED)
            efs_lru_remove(&fs->extents->waiting, extent);
        efs_extent_load_start(fs, waiter->load);
    } else if (x->state != EFS_EXTENT_IDLE) {
        efs_extent_load_raise(fs, extent);
    } else {
        extent_load_or_queue(fs, extent);
    }
    return false;
}

bool efs_extent_may_read_shard(const struct efs *fs, uint32_t extent, uint64_t begin, size_t bytes)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    uint64_t shard_bytes = efs_object_shard_bytes(fs, x->object);
    return x->state == EFS_EXTENT_IDLE && !x->resident && x->shard_count >= 2 &&
           (begin + bytes - 1) / shard_bytes == begin / shard_bytes && !fs->closing;
}

/* ---- reservations ---- */

errint_t efs_extent_reserve(struct efs *fs, uint32_t extent, struct efs_extent_waiter *waiter)
{
    struct efs_extent *x = &fs->extents->at[extent];
    assert(waiter->long_term && waiter->reserved == EFS_RESERVED_NOTHING);
    if (efs_extent_is_complete(x)) {
        efs_extent_ref(fs, x, waiter);
        waiter->reserved = EFS_RESERVED_REF;
        return 0;
    }
    if (x->state == EFS_EXTENT_LOADING) {
        if (!efs_extent_is_being_read(fs, extent))
            return -EAGAIN;
        waiter->reserved = EFS_RESERVED_READING;
        return 0;
    }
    errint_t rc;
    do
        rc = efs_extent_load_prepare(fs, extent, EFS_LOAD_DEMAND, &waiter->load);
    while (rc == -EAGAIN && efs_extents_only_long_refs(fs) &&
           efs_extents_evict(fs, EFS_VICTIMS_KEPT) == EFS_EVICTED_ONE);
    if (rc == 0)
        waiter->reserved = EFS_RESERVED_LOAD;
    return rc;
}

void efs_extent_unreserve(struct efs *fs, struct efs_extent_waiter *waiter)
{
    if (waiter->reserved == EFS_RESERVED_REF)
        efs_extent_unref_long(fs, waiter->extent);
    else if (waiter->reserved == EFS_RESERVED_LOAD)
        efs_extent_load_abandon(fs, waiter->load);
    waiter->reserved = EFS_RESERVED_NOTHING;
}

/* ---- queue for memory ---- */

void efs_extents_retry(struct efs *fs)
{
    for (uint32_t i; (i = fs->extents->waiting.oldest) != EFS_NONE && (fs->closing || !fs->admission_starved);) {
        struct efs_extent *x = &fs->extents->at[i];
        errint_t rc = fs->closing ? -ECANCELED : efs_extent_load(fs, i, EFS_LOAD_DEMAND, NULL);
        if (rc == -EAGAIN && !efs_extents_only_long_refs(fs))
            break;
        efs_lru_remove(&fs->extents->waiting, i);
        if (rc == 0)
            continue;
        x->state = EFS_EXTENT_IDLE;
        /* -EAGAIN: nothing is in flight, and clients hold all memory: the waiters read uncached */
        efs_extent_complete_waiters(fs, x, rc == -EAGAIN ? -ENOMEM : rc);
    }
    efs_extents_set_wanted(fs);
}
