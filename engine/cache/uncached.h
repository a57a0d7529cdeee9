/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uncached.h - reads that bypass the chunk pool: each shard is read into a *bounce slot*, decoded, and forgotten. For
 * readers and loads that find no memory in the pool because clients hold it, and for a few bytes of an extent that is
 * not worth loading. The slots are allocated when the store is opened; a slot is held for a read and a decode of each
 * shard in turn, so a wait for one depends on the disk and the workers only.
 */
#ifndef EFS_UNCACHED_H
#define EFS_UNCACHED_H

#include "slots.h"

/* A read of raw bytes [begin, begin + bytes) of an object, which may continue in the next objects, into dst. The caller
 * keeps it allocated until done() is called. */
struct efs_uncached {
    struct efs_slot_waiter waiter;
    uint32_t object, extent; /* extent: for efs_small_read() */
    uint64_t begin;
    size_t bytes;
    uint8_t *dst;
    bool may_block; /* of efs_small_read(): the calling thread may wait for the disk */
    /* Called once, on a worker, without lock; by efs_small_read() possibly on its caller's thread, before it returns.
     * 0, -EUCLEAN, the read's error. May free the struct. */
    void (*done)(struct efs *fs, struct efs_uncached *read, errint_t error);
};

/* Starts the read, or queues it for a slot. Without lock; never fails. The caller keeps the store open until done(). */
void efs_uncached_read(struct efs *fs, struct efs_uncached *read);

/* Memory of all slots, bytes: part of the fixed memory. */
uint64_t efs_uncached_bytes(const struct efs *fs);
/* Without lock, before threads are started and after they have ended. -ENOMEM. */
errint_t efs_uncached_build(struct efs *fs);
void efs_uncached_destroy(struct efs *fs);

#endif
