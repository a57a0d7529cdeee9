/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - read requests: splits a request into parts, one per extent, and serves each part from where its bytes are.
 * All extents are requested in one critical section. Parts that are in memory are finished on the calling thread, the
 * other parts by a worker when their extent is loaded. No part waits while it holds another part's memory, so readers
 * cannot deadlock.
 */
#include "fetch.h"
#include "stats.h"

#include "container.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PARTIAL_SHARE 8      /* a partial read is at most 1/8 of its extent */
#define AROUND_BYTES 32768u  /* minimum size of a request that may be the kernel's read-around */
#define WHOLE_EXPERT_SHARE 8 /* a miss loads the whole expert if it is at most 1/8 of the budget */

struct efs_stream { /* walks are shared by all streams: efs_extents.streams */
    bool no_readahead, may_block, stays;
};

struct read;
struct part { /* the bytes of a read in one extent */
    struct efs_extent_waiter waiter;
    struct read *read;
    struct part *next;
    struct efs_uncached span; /* its bytes, and the read of those that are not loaded into the chunk pool */
    uint32_t next_object;     /* the next object, if the part ends at the end of an object; else EFS_NONE */
    size_t range_bytes;       /* of the object's range, in its first part; 0 in its later parts */
    bool pinned;              /* this part holds the pin on the full expert, for all parts of the range */
    uint32_t group;
    const uint8_t *full; /* its bytes in the full pool, while the expert is pinned */
};

struct parts {
    struct part *head, **tail;
};

struct read {
    struct efs *fs;
    efs_done_fn *done;
    void *arg;
    uint8_t *dst;
    size_t bytes;
    bool may_block;      /* EFS_STREAM_MAY_BLOCK */
    bool stays;          /* EFS_STREAM_STAYS */
    uint32_t prev_group; /* with lock held: group of the previous part; EFS_NONE: none */
    bool prev_resident;  /* that part was in memory */
    _Atomic uint32_t remaining;
    _Atomic errint_t error;
};

static void read_end(struct read *r)
{
    if (atomic_fetch_sub(&r->remaining, 1) != 1)
        return;
    struct efs *fs = r->fs;
    errint_t error = r->error;
    if (error < 0)
        efs_count(fs->stats, read_errors, 1);
    else
        efs_count(fs->stats, read_bytes, r->bytes);
    r->done(r->arg, error, error < 0 ? 0 : r->bytes);
    free(r);
    efs_in_flight_end(fs);
}

static void part_end(struct part *p, errint_t error)
{
    struct read *r = p->read;
    if (error < 0)
        r->error = error;
    free(p);
    read_end(r);
}

static void part_read_done(struct efs *fs, struct efs_uncached *span, errint_t error)
{
    (void)fs;
    part_end(EFS_CONTAINER(span, struct part, span), error);
}

static void part_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct part *p = EFS_CONTAINER(job, struct part, waiter.job);
    struct efs *fs = p->read->fs;
    errint_t rc = p->waiter.error;
    if (rc == -ENOMEM) {
        efs_count(fs->stats, reads_past, 1);
        efs_uncached_read(fs, &p->span);
        return;
    }
    if (rc == 0) {
        rc = efs_extent_decode(fs, p->span.extent, p->span.object, p->span.begin, p->span.bytes, p->span.dst, false,
                               scratch);
        efs_extent_put(fs, &p->waiter, p->read->stays && rc == 0 ? p->span.bytes : 0);
    }
    part_end(p, rc);
}

static void parts_free(struct parts *parts)
{
    for (struct part *p = parts->head, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    parts->head = NULL;
}

/* ---- splitting a read into parts; without lock ---- */

struct efs_file_span efs_file_span(const struct efs *fs, uint32_t file, uint64_t offset)
{
    struct efs_file_span span = {.extent = EFS_NONE};
    efs_view_locate(&fs->view, file, offset, &span.at);
    span.bytes = span.at.bytes;
    if (span.at.object != EFS_NONE) {
        span.extent = efs_extent_at(fs, span.at.object, span.at.object_offset);
        const uint64_t end = efs_extent_end(fs, span.extent, span.at.object);
        span.bytes = end - span.at.object_offset < span.bytes ? end - span.at.object_offset : span.bytes;
    }
    return span;
}

/* Extends the last part by `next` if it continues in the next object of the same shared extent, so that adjacent small
 * objects are one part. false: it does not. */
static bool part_joins(const struct parts *parts, const struct part *next)
{
    if (!parts->head)
        return false;
    struct part *last = EFS_CONTAINER(parts->tail, struct part, next);
    if (last->span.extent != next->span.extent || last->next_object != next->span.object || next->span.begin != 0 ||
        last->span.dst + last->span.bytes != next->span.dst)
        return false;
    last->span.bytes += next->span.bytes;
    last->range_bytes += next->span.bytes;
    last->next_object = next->next_object;
    return true;
}

/* Adds a part for the first n bytes of a span, of which the read has `left` more. 0, -ENOMEM. */
static errint_t read_add_part(struct read *r, const struct efs_file_span *span, size_t n, size_t left, uint8_t *dst,
                              struct parts *parts)
{
    const struct efs_disk_object *object = &r->fs->store->objects[span->at.object];
    const uint64_t begin = span->at.object_offset;
    bool first = !parts->head || EFS_CONTAINER(parts->tail, struct part, next)->span.object != span->at.object;
    const struct part part = {.read = r,
                              .span = {.object = span->at.object,
                                       .extent = span->extent,
                                       .begin = begin,
                                       .bytes = n,
                                       .dst = dst,
                                       .may_block = r->may_block,
                                       .done = part_read_done},
                              .next_object = begin + n == object->bytes ? span->at.object + 1 : EFS_NONE,
                              .range_bytes = !first                  ? 0
                                             : span->at.bytes < left ? (size_t)span->at.bytes
                                                                     : left,
                              .group = object->group,
                              .waiter.job.run = part_run};
    if (part_joins(parts, &part))
        return 0;
    struct part *p = efs_sys_calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    *p = part;
    EFS_QUEUE_PUSH(parts, p);
    return 0;
}

/* Copies `bytes` of an expert's header, from `left` bytes before its end; bytes <= left. 0, -ENOMEM. */
static errint_t read_header(const struct efs *fs, uint32_t expert, uint64_t left, size_t bytes, uint8_t *dst)
{
    uint32_t all = efs_view_expert_header_bytes(&fs->view, expert);
    char *header = efs_sys_malloc(all);
    if (!header)
        return -ENOMEM;
    efs_view_expert_header(&fs->view, expert, header);
    memcpy(dst, header + all - left, bytes);
    free(header);
    return 0;
}

/* Copies bytes of experts' headers to dst, and splits bytes of objects into parts. 0, -ENOMEM. */
static errint_t read_prepare(struct read *r, uint32_t file, uint64_t offset, uint8_t *dst, struct parts *parts)
{
    struct efs *fs = r->fs;
    errint_t rc = 0;
    for (size_t at = 0; at < r->bytes && rc == 0;) {
        const struct efs_file_span span = efs_file_span(fs, file, offset + at);
        size_t left = r->bytes - at, n = span.bytes < left ? (size_t)span.bytes : left;
        if (span.extent != EFS_NONE) {
            rc = read_add_part(r, &span, n, left, dst + at, parts);
        } else {
            efs_count(fs->stats, reads_generated, 1);
            rc = read_header(fs, span.at.expert, span.bytes, n, dst + at);
        }
        at += n;
    }
    return rc;
}

/* ---- with lock held ---- */

/* Starts read-ahead for a sequential reader, as far as memory and the quota of the streams allow. */
static void read_ahead(struct efs *fs, const struct efs_step *step, uint32_t file)
{
    uint64_t at, to;
    if (step->pace == EFS_PACE_RANDOM || !step->walk ||
        !efs_streams_ahead(efs_extents_streams(fs), step->walk, &at, &to))
        return;
    uint64_t size = efs_view_bytes(&fs->view, file);
    while (at < to && at < size) {
        const struct efs_file_span span = efs_file_span(fs, file, at);
        if (span.extent != EFS_NONE && !efs_extent_read_ahead_scan(fs, span.extent))
            break;
        at += span.bytes;
    }
    step->walk->ahead_until = at;
}

/* Whether to read the part without loading its extent: it is in the first, or at the end in the last, 1/PARTIAL_SHARE
 * of an expert's extent, of another expert than the adjacent part of a request of at least AROUND_BYTES: the kernel
 * then probably read around bytes of that expert. A reader that continues into this expert starts a later request in
 * it. Never for a scan. */
static bool part_is_partial(const struct part *p, const struct efs_step *step)
{
    const struct read *r = p->read;
    const struct efs_uncached *span = &p->span;
    if (r->bytes < AROUND_BYTES || p->group >= r->fs->store->expert_count || step->pace == EFS_PACE_SCAN)
        return false;
    const uint64_t begin = efs_extent_begin(r->fs, span->extent);
    const uint64_t end = efs_extent_end(r->fs, span->extent, span->object);
    const uint64_t most = (end - begin) / PARTIAL_SHARE;
    if (span->begin + span->bytes == end && span->dst + span->bytes < r->dst + r->bytes)
        return span->bytes <= most && p->next && p->next->group != p->group;
    if (span->begin + span->bytes - begin > most)
        return false;
    if (span->begin == begin && span->dst > r->dst)
        return r->prev_group != p->group && r->prev_resident;
    return step->pace == EFS_PACE_SEQUENTIAL && span->begin - begin <= span->bytes;
}

/* The parts of a read, by how they are served. */
struct served {
    struct parts ready, full, direct; /* in memory; of pinned full experts; read past the extents */
};

/* Requests the part. true: its extent is in memory and referenced. false: it is appended to a list of *served, or
 * part_run() runs on a worker later and frees it. */
static bool part_request(struct efs *fs, struct part *p, const struct efs_step *step, struct served *served)
{
    const uint32_t group = p->group;
    const bool is_short = p->read->bytes <= EFS_SMALL_BYTES;
    /* the page cache holds the extent, except a few pages that the kernel has dropped */
    const bool lost = is_short && efs_extent(fs, p->span.extent)->elsewhere;
    atomic_fetch_add(&p->read->remaining, 1);
    if ((lost || part_is_partial(p, step)) &&
        efs_extent_may_read_shard(fs, p->span.extent, p->span.begin, p->span.bytes)) {
        efs_count(fs->stats, reads_m, 1);
        efs_count(fs->stats, reads_edge, 1);
        EFS_QUEUE_PUSH(&served->direct, p);
        return false;
    }
    /* Not of a sequential reader. Faults in a mapping, which the engine does not read ahead for, are short once the
     * kernel has stopped reading ahead because they are random. */
    p->span.small = is_short && (step->pace == EFS_PACE_RANDOM || !step->walk) &&
                    efs_small_serves(fs, p->span.extent, p->span.object, p->span.begin, p->span.bytes);
    if (p->span.small) {
        EFS_QUEUE_PUSH(&served->direct, p);
        return false;
    }
    if (efs_extent_request(fs, p->span.extent, step->pace, &p->waiter)) {
        efs_count(fs->stats, reads_c, 1);
        return true;
    }
    efs_count(fs->stats, reads_m, 1);
    /* loads the expert's other extents, too, except for sequential readers, which have read-ahead */
    if (group < fs->store->expert_count && step->pace == EFS_PACE_RANDOM &&
        efs_expert_coded_bytes(fs, group) <= fs->account.budget_bytes / WHOLE_EXPERT_SHARE)
        efs_expert_read_ahead(fs, group);
    return false;
}

/* Requests parts in order. Parts that are not loaded by way of the chunk pool are appended to the lists. */
static void read_request(struct efs *fs, struct parts *parts, const struct efs_step *step, struct served *served)
{
    const uint8_t *data = NULL; /* of the object in the full pool, while its expert is READY there and pinned */
    for (struct part *p = parts->head, *next; p; p = next) {
        next = p->next;
        bool of_expert = p->group < fs->store->expert_count;
        if (p->range_bytes) {
            /* scans do not count as uses, nor reads for a page cache that keeps the pages */
            if (of_expert && step->pace != EFS_PACE_SCAN && !p->read->stays)
                efs_use_bytes(fs, p->group, p->range_bytes);
            uint64_t at = UINT64_MAX; /* the expert's file does not contain the object */
            if (of_expert && fs->options.full_pool)
                at = efs_view_expert_offset(&fs->view, p->group, efs_extent(fs, p->span.extent)->object);
            data = at == UINT64_MAX ? NULL : efs_full_pin(fs, p->group);
            p->pinned = data != NULL;
            if (data)
                data += at;
            efs_count(fs->stats, reads_f, p->pinned);
        }
        struct read *r = p->read;
        uint32_t group = p->group;
        bool resident = true;
        if (data) {
            p->full = data + p->span.begin;
            EFS_QUEUE_PUSH(&served->full, p);
        } else if (part_request(fs, p, step, served)) {
            EFS_QUEUE_PUSH(&served->ready, p);
        } else {
            resident = false;
        }
        r->prev_group = group;
        r->prev_resident = resident;
    }
}

/* ---- ending the parts in memory; without lock ---- */

static void read_copy(struct efs *fs, struct parts *full)
{
    for (struct part *p = full->head; p; p = p->next)
        memcpy(p->span.dst, p->full, p->span.bytes);
    efs_lock(fs);
    for (struct part *p = full->head; p; p = p->next)
        if (p->pinned)
            efs_full_copy_end(fs, p->group);
    efs_unlock(fs);
    parts_free(full);
}

static void read_run(struct parts *ready)
{
    for (struct part *p = ready->head, *next; p; p = next) {
        next = p->next;
        if (efs_extent_decodes_inline(p->read->fs, p->span.extent) && efs_codec_thread_memory())
            part_run(&p->waiter.job, NULL);
        else
            efs_workers_push(p->read->fs->workers, &p->waiter.job, EFS_JOB_NORMAL);
    }
}

void efs_read(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t len,
              efs_done_fn *done, void *arg)
{
    if (!efs_is_this_process(fs)) {
        done(arg, -ECHILD, 0);
        return;
    }
    efs_count(fs->stats, reads, 1);
    const bool known = file < fs->view.file_count;
    const uint64_t size = known ? efs_view_bytes(&fs->view, file) : 0;
    if (offset >= size || len == 0) {
        efs_count(fs->stats, read_errors, !known);
        done(arg, known ? 0 : -EBADF, 0);
        return;
    }
    if (len > size - offset)
        len = (size_t)(size - offset);
    struct read *r = efs_sys_calloc(1, sizeof(*r));
    if (!r) {
        efs_count(fs->stats, read_errors, 1);
        done(arg, -ENOMEM, 0);
        return;
    }
    *r = (struct read){
        .fs = fs, .done = done, .arg = arg, .dst = dst, .bytes = len, .prev_group = EFS_NONE, .remaining = 1};
    r->may_block = stream && stream->may_block;
    r->stays = stream && stream->stays;
    efs_in_flight_begin(fs);
    struct parts parts = {NULL, &parts.head};
    struct served served = {{NULL, &served.ready.head}, {NULL, &served.full.head}, {NULL, &served.direct.head}};
    r->error = read_prepare(r, file, offset, dst, &parts);
    if (r->error < 0)
        parts_free(&parts);
    uint32_t group = parts.head && parts.head->span.dst == dst ? parts.head->group : EFS_NONE;
    struct efs_step step = {.pace = stream && stream->no_readahead ? EFS_PACE_SEQUENTIAL : EFS_PACE_RANDOM};
    efs_lock(fs);
    if (stream && !stream->no_readahead)
        efs_streams_note(efs_extents_streams(fs), file, offset, len, group, &step);
    read_request(fs, &parts, &step, &served);
    read_ahead(fs, &step, file);
    efs_unlock(fs);
    if (served.full.head)
        read_copy(fs, &served.full);
    for (struct part *p = served.direct.head, *next; p; p = next) {
        next = p->next;
        efs_uncached_read(fs, &p->span);
    }
    read_run(&served.ready);
    read_end(r);
}

errint_t efs_stream_new(struct efs *fs, uint32_t hints, struct efs_stream **out)
{
    (void)fs;
    *out = NULL;
    if (hints & ~(uint32_t)(EFS_STREAM_NO_READAHEAD | EFS_STREAM_MAY_BLOCK | EFS_STREAM_STAYS))
        return -EINVAL;
    struct efs_stream *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct efs_stream){.no_readahead = hints & EFS_STREAM_NO_READAHEAD,
                             .may_block = hints & EFS_STREAM_MAY_BLOCK,
                             .stays = hints & EFS_STREAM_STAYS};
    *out = s;
    return 0;
}

void efs_stream_free(struct efs_stream *stream)
{
    free(stream);
}
