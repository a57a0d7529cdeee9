/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - a read request: cut into pieces, one an extent or a stretch of text; each piece is served from where its
 * bytes are. Pieces that are in memory are done at once on the calling thread; the others by a worker when their extent
 * has come. No piece waits while holding another's memory, so readers cannot block each other.
 */
#include "serve.h"

#include "container.h"
#include "cache.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_EXPERT_SHARE 8 /* a first touch brings the whole expert if it is at most 1/8 of the budget */

struct read;
struct piece {
    struct efs_extent_waiter waiter;
    struct read *read;
    struct piece *next_ready;
    uint64_t begin; /* in the object */
    size_t bytes;
    uint8_t *dst;
};

struct read {
    struct efs *fs;
    efs_done_fn *done;
    void *arg;
    size_t bytes;
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
        efs_count(&fs->stats, read_errors, 1);
    else
        efs_count(&fs->stats, read_bytes, r->bytes);
    r->done(r->arg, error, error < 0 ? 0 : r->bytes);
    free(r);
    efs_active_end(fs);
}

static void piece_end(struct piece *p, errint_t error)
{
    struct read *r = p->read;
    if (error < 0)
        r->error = error;
    free(p);
    read_end(r);
}

static void piece_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct piece *p = EFS_CONTAINER(job, struct piece, waiter.job);
    struct efs *fs = p->read->fs;
    errint_t rc = p->waiter.error;
    if (rc == 0) {
        rc = efs_extent_decode(fs, p->waiter.extent, p->begin, p->bytes, p->dst, false, scratch);
        efs_extent_put(fs, p->waiter.extent);
    }
    piece_end(p, rc);
}

/* A miss: the expert's other extents come too, unless the reader is going through the file anyway. */
static void missed(struct efs *fs, uint32_t object, enum efs_pace pace)
{
    uint32_t group = fs->store->objects[object].group;
    if (group >= fs->store->expert_count || pace != EFS_PACE_RANDOM)
        return;
    if (fs->expert_bytes[group] <= efs_budget_now(fs) / WHOLE_EXPERT_SHARE)
        efs_group_ahead(fs, group);
}

/* An object's bytes: from the full pool if the expert is there, else extent by extent. Returns pieces that can run now.
 */
static void read_object(struct read *r, const struct efs_segment_at *at, size_t bytes, uint8_t *dst, enum efs_pace pace,
                        struct piece ***ready)
{
    struct efs *fs = r->fs;
    for (size_t done = 0; done < bytes;) {
        uint64_t begin = at->object_offset + done, end;
        uint32_t extent = efs_extent_at(fs, at->object, begin, &end);
        size_t n = end - begin < bytes - done ? (size_t)(end - begin) : bytes - done;
        struct piece *p = efs_sys_calloc(1, sizeof(*p));
        if (!p) {
            r->error = -ENOMEM;
            return;
        }
        *p = (struct piece){.read = r, .begin = begin, .bytes = n, .dst = dst + done};
        p->waiter.extent = extent;
        p->waiter.job.run = piece_run;
        atomic_fetch_add(&r->remaining, 1);
        if (efs_extent_get_paced(fs, extent, pace, n, &p->waiter)) {
            efs_count(&fs->stats, reads_c, 1);
            **ready = p;
            *ready = &p->next_ready;
        } else {
            efs_count(&fs->stats, reads_m, 1);
            missed(fs, at->object, pace);
        }
        done += n;
    }
}

/* From the full pool: where the object stands in the expert's own file. */
static bool read_full(struct read *r, const struct efs_segment_at *at, size_t bytes, uint8_t *dst)
{
    struct efs *fs = r->fs;
    uint32_t expert = fs->store->objects[at->object].group;
    if (!fs->options.full_pool || expert >= fs->store->expert_count)
        return false;
    const uint8_t *data = efs_full_pin(fs, expert);
    if (!data)
        return false;
    struct efs_expert_part parts[EFS_EXPERT_OBJECTS];
    uint32_t n = efs_view_expert_parts(&fs->view, expert, parts), i = 0;
    while (i < n && parts[i].object != at->object)
        i++;
    if (i < n)
        memcpy(dst, data + parts[i].file_offset + at->object_offset, bytes);
    efs_full_unpin(fs, expert);
    if (i < n)
        efs_count(&fs->stats, reads_f, 1);
    return i < n;
}

static void read_header(struct read *r, uint32_t file, uint64_t offset, size_t bytes, uint8_t *dst)
{
    struct efs *fs = r->fs;
    uint32_t expert = file - fs->view.expert_first;
    char *header = efs_sys_malloc(fs->view.expert_header_bytes[expert]);
    if (!header) {
        r->error = -ENOMEM;
        return;
    }
    efs_view_expert_header(&fs->view, expert, header);
    memcpy(dst, header + offset, bytes);
    free(header);
}

/* Lock held: what to do with the extents of a part of a file, in order, until one cannot. Where it ended. */
typedef bool extent_fn(struct efs *fs, uint32_t extent, struct efs_disk_request **submit);

static uint64_t each_extent(struct efs *fs, uint32_t file, uint64_t from, uint64_t to, extent_fn *visit,
                            struct efs_disk_request **submit)
{
    uint64_t size = efs_view_bytes(&fs->view, file), at = from;
    while (at < to && at < size) {
        struct efs_segment_at seg;
        efs_view_at(&fs->view, file, at, &seg);
        uint64_t step = seg.bytes;
        if (seg.object != EFS_NONE) {
            uint64_t end;
            uint32_t extent = efs_extent_at(fs, seg.object, seg.object_offset, &end);
            if (end - seg.object_offset < step)
                step = end - seg.object_offset;
            if (!visit(fs, extent, submit))
                break;
        }
        at += step;
    }
    return at;
}

static bool pass(struct efs *fs, uint32_t extent, struct efs_disk_request **submit)
{
    (void)submit;
    efs_extent_pass(fs, extent);
    return true;
}

struct efs_stream { /* what is found out is in efs.streams, for all of them */
    bool alone, through;
};

errint_t efs_stream_new(struct efs *fs, uint32_t hints, struct efs_stream **out)
{
    (void)fs;
    *out = NULL;
    if (hints & ~(uint32_t)(EFS_STREAM_NO_READAHEAD | EFS_STREAM_THROUGH))
        return -EINVAL;
    struct efs_stream *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct efs_stream){.alone = hints & EFS_STREAM_NO_READAHEAD, .through = hints & EFS_STREAM_THROUGH};
    *out = s;
    return 0;
}

void efs_stream_free(struct efs_stream *stream)
{
    free(stream);
}

/* Whose read is it, and how does he go through the file? group: of the first byte, or EFS_NONE. */
static struct efs_step step_of(struct efs *fs, const struct efs_stream *s, uint32_t file, uint64_t offset, size_t len,
                               uint32_t group)
{
    struct efs_step step = {.pace = EFS_PACE_RANDOM};
    if (s && s->alone)
        step.pace = s->through ? EFS_PACE_SCAN : EFS_PACE_SEQUENTIAL;
    if (!s || s->alone)
        return step;
    pthread_mutex_lock(&fs->lock);
    efs_streams_note(&fs->streams, file, offset, len, group, s->through, &step);
    if (step.scan_begins)
        each_extent(fs, file, step.scan_from, offset + len, pass, NULL);
    pthread_mutex_unlock(&fs->lock);
    return step;
}

/* Start loading what the reader will want next. */
static void read_ahead(struct efs *fs, const struct efs_step *step, uint32_t file)
{
    struct efs_disk_request *submit = NULL;
    uint64_t from, to;
    if (step->pace == EFS_PACE_RANDOM || !step->serial)
        return;
    pthread_mutex_lock(&fs->lock);
    if (efs_streams_ahead(&fs->streams, step, &from, &to))
        efs_streams_went(&fs->streams, step, each_extent(fs, file, from, to, efs_extent_ahead_passing, &submit));
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
}

/* Bytes of an expert are asked for: its use counts, unless the reader goes through the whole file. */
static void touch(struct efs *fs, const struct efs_segment_at *at, size_t bytes, enum efs_pace pace)
{
    uint32_t expert = fs->store->objects[at->object].group;
    if (expert >= fs->store->expert_count || pace == EFS_PACE_SCAN)
        return;
    pthread_mutex_lock(&fs->lock);
    efs_cache_read(fs, expert, bytes);
    pthread_mutex_unlock(&fs->lock);
}

static void run_ready(struct piece *ready)
{
    while (ready) {
        struct piece *p = ready;
        ready = p->next_ready;
        if (efs_extent_decodes_inline(p->read->fs, p->waiter.extent))
            piece_run(&p->waiter.job, NULL);
        else
            efs_workers_push(p->read->fs->workers, &p->waiter.job);
    }
}

void efs_read(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t len,
              efs_done_fn *done, void *arg)
{
    efs_count(&fs->stats, reads, 1);
    uint64_t size = file < fs->view.file_count ? efs_view_bytes(&fs->view, file) : 0;
    if (file >= fs->view.file_count || offset >= size || len == 0) {
        if (file >= fs->view.file_count)
            efs_count(&fs->stats, read_errors, 1);
        done(arg, file >= fs->view.file_count ? -EBADF : 0, 0);
        return;
    }
    if (len > size - offset)
        len = (size_t)(size - offset);
    struct read *r = efs_sys_calloc(1, sizeof(*r));
    if (!r) {
        efs_count(&fs->stats, read_errors, 1);
        done(arg, -ENOMEM, 0);
        return;
    }
    *r = (struct read){.fs = fs, .done = done, .arg = arg, .bytes = len, .remaining = 1};
    efs_active_begin(fs);
    struct piece *ready = NULL, **tail = &ready;
    struct efs_segment_at first;
    efs_view_at(&fs->view, file, offset, &first);
    uint32_t group = first.object == EFS_NONE ? EFS_NONE : fs->store->objects[first.object].group;
    struct efs_step step = step_of(fs, stream, file, offset, len, group);
    for (size_t at = 0; at < len && r->error == 0;) {
        struct efs_segment_at seg;
        efs_view_at(&fs->view, file, offset + at, &seg);
        size_t n = seg.bytes < len - at ? (size_t)seg.bytes : len - at;
        uint8_t *out = (uint8_t *)dst + at;
        if (seg.object == EFS_NONE) {
            efs_count(&fs->stats, reads_generated, 1);
            if (seg.text)
                memcpy(out, seg.text, n);
            else
                read_header(r, file, offset + at, n, out);
        } else {
            touch(fs, &seg, n, step.pace);
            if (!read_full(r, &seg, n, out))
                read_object(r, &seg, n, out, step.pace, &tail);
        }
        at += n;
    }
    *tail = NULL;
    read_ahead(fs, &step, file);
    run_ready(ready);
    read_end(r);
}
