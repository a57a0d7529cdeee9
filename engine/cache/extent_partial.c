/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_partial.c - reads bytes near the start or end of an extent that is not in memory, for a request that is mostly
 * of the adjacent extent. The kernel reads around a page fault: up to half its read-ahead before it, and more after it.
 * In a file where another expert is adjacent, that would load whole extents and evict needed ones. Instead only the
 * shard is read, and freed after decoding. It is not cached: for a program that walks over mapped experts with memory
 * for a quarter of them, a cache of the last 16 such shards saved 64 of 1,702 of these reads.
 */
#include "extent_internal.h"

#include "container.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct efs_partial_read {
    struct efs *fs;
    struct efs_job *job; /* the caller's, pushed at completion */
    uint32_t extent, shard;
    struct efs_block e, sm;
    struct efs_io e_read, sm_read;
    _Atomic int pending;
    _Atomic errint_t error;
};

struct efs_partial_read *efs_partial_read_new(void)
{
    return efs_sys_calloc(1, sizeof(struct efs_partial_read));
}

void efs_partial_read_free(struct efs_partial_read *partial)
{
    free(partial);
}

static void partial_read_done(struct efs_partial_read *partial, errint_t error)
{
    if (error < 0)
        partial->error = error;
    if (atomic_fetch_sub(&partial->pending, 1) != 1)
        return;
    efs_workers_push(partial->fs->workers, partial->job);
}

static void partial_e_done(struct efs_io *r, errint_t error)
{
    partial_read_done(EFS_CONTAINER(r, struct efs_partial_read, e_read), error);
}

static void partial_sm_done(struct efs_io *r, errint_t error)
{
    partial_read_done(EFS_CONTAINER(r, struct efs_partial_read, sm_read), error);
}

static void partial_submit(struct efs_partial_read *partial, struct efs_io *r, uint64_t offset, uint32_t bytes,
                           const struct efs_block *block)
{
    if (!bytes)
        return;
    r->offset = efs_page_down(offset);
    r->bytes = efs_page_span(offset, offset + bytes);
    r->data = block->data;
    r->segment = block->segment;
    efs_defer_read(partial->fs, r);
}

static bool partial_alloc(struct efs *fs, struct efs_partial_read *partial, const struct efs_disk_shard *s)
{
    size_t e_bytes = efs_page_span(s->e_offset, s->e_offset + s->e_bytes);
    size_t sm_bytes = efs_page_span(s->sm_offset, s->sm_offset + s->sm_bytes);
    return (!e_bytes || partial->e.data || efs_arena_alloc(&fs->arena, e_bytes, false, &partial->e)) &&
           (!sm_bytes || partial->sm.data || efs_arena_alloc(&fs->arena, sm_bytes, true, &partial->sm));
}

bool efs_partial_read_submit(struct efs *fs, struct efs_partial_read *partial, uint32_t extent, uint64_t begin,
                             size_t bytes, struct efs_job *job)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    uint64_t shard_bytes = efs_object_shard_bytes(fs, x->object), first = begin / shard_bytes;
    if (x->state != EFS_EXTENT_IDLE || x->resident || x->shard_count < 2 ||
        (begin + bytes - 1) / shard_bytes != first || fs->closing || fs->extents->waiting)
        return false;
    *partial = (struct efs_partial_read){.fs = fs,
                                         .job = job,
                                         .extent = extent,
                                         .shard = fs->store->objects[x->object].shard_first + (uint32_t)first,
                                         .e_read.complete = partial_e_done,
                                         .sm_read.complete = partial_sm_done};
    const struct efs_disk_shard *s = &fs->store->shards[partial->shard];
    while (!partial_alloc(fs, partial, s))
        if (!efs_extents_reclaim(fs, EFS_LOAD_DEMAND)) {
            efs_arena_free(&fs->arena, &partial->e);
            return false;
        }
    partial->pending = (s->e_bytes != 0) + (s->sm_bytes != 0);
    partial_submit(partial, &partial->e_read, s->e_offset, s->e_bytes, &partial->e);
    partial_submit(partial, &partial->sm_read, s->sm_offset, s->sm_bytes, &partial->sm);
    efs_count(&fs->stats, reads_edge, 1);
    return true;
}

errint_t efs_partial_read_decode(struct efs_partial_read *partial, uint64_t begin, size_t bytes, void *dst,
                                 struct efs_codec_scratch *scratch)
{
    struct efs *fs = partial->fs;
    const struct efs_disk_shard *s = &fs->store->shards[partial->shard];
    errint_t rc = partial->error;
    if (rc < 0)
        efs_log(fs, EFS_LOG_ERROR, "%s: read at offset %llu failed: %s", fs->store->path,
                (unsigned long long)(partial->e_read.bytes ? partial->e_read.offset : partial->sm_read.offset),
                strerror(-rc));
    else
        rc = efs_shard_decode_from(fs, fs->extents->at[partial->extent].object, partial->shard,
                                   s->e_bytes ? partial->e.data + s->e_offset % EFS_ALIGN : NULL,
                                   s->sm_bytes ? partial->sm.data + s->sm_offset % EFS_ALIGN : NULL, begin, bytes, dst,
                                   scratch);
    efs_lock(fs);
    efs_arena_free(&fs->arena, &partial->e);
    efs_arena_free(&fs->arena, &partial->sm);
    efs_retry(fs, EFS_RETRY_EXTENTS);
    efs_retry(fs, EFS_RETRY_SEGMENTS);
    efs_unlock(fs);
    return rc;
}
