/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_partial.c - reads a few bytes at the edge of an extent that is not in memory, for a request of its neighbour. The
 * kernel reads around a page fault: up to half its read-ahead before it, and more after it. In a file where another
 * expert is adjacent, that would load whole extents and evict needed ones. Instead only the shard is read, and dropped
 * with its bytes: for a program that walks over mapped experts with memory for a quarter of them, a cache of the last
 * 16 such shards saved only 64 of 1,702 of these reads.
 */
#include "extent_internal.h"

#include "container.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct efs_edge {
    struct efs *fs;
    struct efs_job *job; /* of who asked */
    uint32_t extent, shard;
    struct efs_block e, sm;
    struct efs_disk_request e_read, sm_read;
    _Atomic int pending;
    _Atomic errint_t error;
};

struct efs_edge *efs_edge_new(void)
{
    return efs_sys_calloc(1, sizeof(struct efs_edge));
}

void efs_edge_free(struct efs_edge *edge)
{
    free(edge);
}

static void edge_read_done(struct efs_edge *edge, errint_t error)
{
    if (error < 0)
        edge->error = error;
    if (atomic_fetch_sub(&edge->pending, 1) != 1)
        return;
    efs_workers_push(edge->fs->workers, edge->job);
}

static void edge_e_done(struct efs_disk_request *r, errint_t error)
{
    edge_read_done(EFS_CONTAINER(r, struct efs_edge, e_read), error);
}

static void edge_sm_done(struct efs_disk_request *r, errint_t error)
{
    edge_read_done(EFS_CONTAINER(r, struct efs_edge, sm_read), error);
}

static void edge_read(struct efs_edge *edge, struct efs_disk_request *r, uint64_t offset, uint32_t bytes,
                      const struct efs_block *block)
{
    if (!bytes)
        return;
    r->offset = efs_page_down(offset);
    r->bytes = efs_page_span(offset, offset + bytes);
    r->data = block->data;
    r->segment = block->segment;
    efs_defer_read(edge->fs, r);
}

static bool edge_alloc(struct efs *fs, struct efs_edge *edge, const struct efs_disk_shard *s)
{
    size_t e_bytes = efs_page_span(s->e_offset, s->e_offset + s->e_bytes);
    size_t sm_bytes = efs_page_span(s->sm_offset, s->sm_offset + s->sm_bytes);
    return (!e_bytes || edge->e.data || efs_arena_alloc(&fs->arena, e_bytes, false, &edge->e)) &&
           (!sm_bytes || edge->sm.data || efs_arena_alloc(&fs->arena, sm_bytes, true, &edge->sm));
}

bool efs_edge_ask(struct efs *fs, struct efs_edge *edge, uint32_t extent, uint64_t begin, size_t bytes,
                  struct efs_job *job)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    uint64_t shard_bytes = efs_object_shard_bytes(fs, x->object), first = begin / shard_bytes;
    if (x->state != EFS_EXTENT_REST || x->have || x->shard_count < 2 || (begin + bytes - 1) / shard_bytes != first ||
        fs->closing || fs->extents->no_memory)
        return false;
    *edge = (struct efs_edge){.fs = fs,
                              .job = job,
                              .extent = extent,
                              .shard = fs->store->objects[x->object].shard_first + (uint32_t)first,
                              .e_read.complete = edge_e_done,
                              .sm_read.complete = edge_sm_done};
    const struct efs_disk_shard *s = &fs->store->shards[edge->shard];
    while (!edge_alloc(fs, edge, s))
        if (!efs_extents_more_memory(fs, EFS_LOAD_WANTED)) {
            efs_arena_free(&fs->arena, &edge->e);
            return false;
        }
    edge->pending = (s->e_bytes != 0) + (s->sm_bytes != 0);
    edge_read(edge, &edge->e_read, s->e_offset, s->e_bytes, &edge->e);
    edge_read(edge, &edge->sm_read, s->sm_offset, s->sm_bytes, &edge->sm);
    efs_count(&fs->stats, reads_edge, 1);
    return true;
}

errint_t efs_edge_decode(struct efs_edge *edge, uint64_t begin, size_t bytes, void *dst,
                         struct efs_codec_scratch *scratch)
{
    struct efs *fs = edge->fs;
    const struct efs_disk_shard *s = &fs->store->shards[edge->shard];
    errint_t rc = edge->error;
    if (rc < 0)
        efs_log(fs, EFS_LOG_ERROR, "%s: read at offset %llu failed: %s", fs->store->path,
                (unsigned long long)(edge->e_read.bytes ? edge->e_read.offset : edge->sm_read.offset), strerror(-rc));
    else
        rc = efs_shard_decode_from(fs, fs->extents->at[edge->extent].object, edge->shard,
                                   s->e_bytes ? edge->e.data + s->e_offset % EFS_ALIGN : NULL,
                                   s->sm_bytes ? edge->sm.data + s->sm_offset % EFS_ALIGN : NULL, begin, bytes, dst,
                                   scratch);
    efs_lock(fs);
    efs_arena_free(&fs->arena, &edge->e);
    efs_arena_free(&fs->arena, &edge->sm);
    efs_again(fs, EFS_AGAIN_EXTENTS);
    efs_again(fs, EFS_AGAIN_SEGMENTS);
    efs_unlock(fs);
    return rc;
}
