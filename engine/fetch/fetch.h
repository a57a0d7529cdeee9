/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.h - loads experts in the order in which they were requested.
 *
 * fetch/ serves requests: it loads experts and ranges of files, and grants leases on experts. client/, serve/, all
 * rooms of the daemon except base/, and runmoe call it. It never submits a read itself (core/ does when efs.lock is
 * released) and never calls a policy: cache/ does.
 *
 * Reads are submitted in the order of the requests, and an idle worker decodes the first shard of that order that is in
 * memory. A *fetch* loads one expert, full or coded; a *batch* is the fetches that are started together.
 *
 * ZipMoE's Algorithm 1 (sched/schedule/) is not used here: on a real disk it takes no less time than this order.
 */
#ifndef EFS_FETCH_H
#define EFS_FETCH_H

#include "extent.h"
#include "full.h"
#include "uncached.h"

struct efs_batch;
struct efs_fetch;

/* One extent of a fetch. */
struct efs_fetch_part {
    struct efs_extent_waiter waiter;
    struct efs_fetch *fetch;
    struct efs_batch *batch;
    uint64_t file_offset, object_offset; /* of its raw bytes, in the expert's file and in the object */
    size_t bytes;
    uint32_t index; /* index in the batch */
    uint32_t shards, next_shard, done_shards;
    bool ready;             /* the extent is in memory and referenced, or failed */
    struct efs_io *read[2]; /* E, SM: set while the batch is built */
    struct efs_uncached uncached;
};

struct efs_fetch {
    struct efs_fetch *next; /* in a list of fetches to start */
    struct efs *fs;
    uint32_t expert;
    struct efs_memfile *memfile; /* destination of the decoded expert; NULL: coded, each extent stays referenced */
    void (*ended)(struct efs_fetch *fetch); /* called once, on any thread; takes ownership of the fetch */
    void *owner;
    _Atomic uint32_t remaining;
    _Atomic errint_t error;
    _Atomic bool from_disk;
    uint32_t part_count;
    struct efs_fetch_part parts[];
};

/* A fetch that is not started; free with free(). NULL: no memory. */
struct efs_fetch *efs_fetch_new(struct efs *fs, uint32_t expert);
/* Starts all fetches of the list as a batch. Without lock. */
void efs_fetch_submit(struct efs *fs, struct efs_fetch *fetches);
/* Drops the references on the extents of a coded fetch, of those that were loaded. With lock held. */
void efs_fetch_unref(struct efs_fetch *fetch);

#endif
