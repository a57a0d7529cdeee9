/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small.h - small reads: a read of at most EFS_SMALL_BYTES of an object with page checksums (store/checks.h) takes only
 * the pages that it needs, from fragments (cache/fragment.h) or from the store. So does a read of a plain store, of
 * objects outside experts from EFS_SMALL_READS_BYTES on: their pages have no checksums, and are not compared.
 *
 * The pages are gathered in a *slot*. The slots are allocated when the store is opened; a slot is held for at most two
 * reads of the disk and a decode of each shard in turn, so a wait for one depends on the disk and the workers only.
 */
#ifndef EFS_SMALL_H
#define EFS_SMALL_H

#include "efs.h"
#include "slots.h"

#define EFS_SMALL_BYTES (32u << 10)

/* A read of raw bytes [begin, begin + bytes) of an object into dst. The caller keeps it allocated until done(). */
struct efs_small {
    struct efs_slot_waiter waiter;
    uint32_t extent, object;
    uint64_t begin;
    size_t bytes;
    uint8_t *dst;
    bool may_block; /* the calling thread may wait for the disk */
    /* Called once, on the caller's thread before efs_small_read() returns or on a worker, without lock. May free the
     * struct. -EAGAIN: not read; another way of reading the same bytes reports why, or succeeds. */
    void (*done)(struct efs *fs, struct efs_small *read, errint_t error);
};

/* With lock held: whether to read these bytes, inside the extent, by efs_small_read(). */
bool efs_small_serves(const struct efs *fs, uint32_t extent, uint32_t object, uint64_t begin, size_t bytes);
/* Makes or starts the read, or queues it for a slot. Without lock. The caller keeps the store open until done(). */
void efs_small_read(struct efs *fs, struct efs_small *read);

/* Memory of all slots, bytes: part of the fixed memory; 0 for a packed store without page checksums. */
uint64_t efs_small_slots_bytes(const struct efs *fs);
/* Without lock, before threads are started and after they have ended. -ENOMEM. */
errint_t efs_small_build(struct efs *fs);
void efs_small_destroy(struct efs *fs);

#endif
