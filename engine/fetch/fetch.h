/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.h - experts are brought to memory in the order in which they were asked for: reads in that order, decodes by
 * whichever worker is free, the first available in that order. An expert that is brought is a *fetch*.
 *
 * ZipMoE's Algorithm 1 (sched/schedule/) is not used here: on a real disk it takes no less time than this order.
 */
#ifndef EFS_FETCH_H
#define EFS_FETCH_H

#include "extent.h"
#include "full.h"

struct efs_batch;
struct efs_fetch;

/* One extent of a fetch. */
struct efs_fetch_part {
    struct efs_extent_waiter waiter;
    struct efs_fetch *fetch;
    struct efs_batch *batch;
    uint64_t file_offset, object_offset; /* where its raw bytes stand in the expert's file, and in the object */
    size_t bytes;
    uint32_t place; /* in the batch */
    uint32_t shards, next_shard, done_shards;
    bool ready;                       /* the extent is here and referenced, or failed */
    struct efs_disk_request *read[2]; /* E, SM: while the batch is put together */
};

struct efs_fetch {
    struct efs_fetch *next; /* of those that are to be begun */
    struct efs *fs;
    uint32_t expert;
    struct efs_memfile *memfile; /* to be decoded into; NULL: the chunks are wanted, each extent stays referenced */
    void (*ended)(struct efs_fetch *fetch); /* from any thread; owns the fetch then */
    void *owner;
    _Atomic uint32_t remaining;
    _Atomic errint_t error;
    _Atomic bool from_disk;
    uint32_t part_count;
    struct efs_fetch_part parts[];
};

/* Not begun yet; to be freed with free(). NULL: no memory. */
struct efs_fetch *efs_fetch_new(struct efs *fs, uint32_t expert);
/* Begin all of this list (no lock held); each ends once. */
void efs_fetch_submit(struct efs *fs, struct efs_fetch *fetches);
/* With lock held: give back the extents of a fetch without memfile, those that came. */
void efs_fetch_unref(struct efs_fetch *fetch);

#endif
