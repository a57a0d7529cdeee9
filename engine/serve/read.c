/*
 * read.c - a read request: cut into pieces, one a unit or a stretch of text; each piece is served from where its bytes
 * are. Pieces that are in memory are done at once on the calling thread; the others by a worker when their unit has
 * come. No piece waits while holding another's memory, so readers cannot block each other.
 */
#include "serve.h"

#include "residency.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENTIAL_RUN 2         /* reads in a row that make a reader sequential */
#define REORDER_BYTES (4u << 20) /* the kernel may send a reader's requests a little out of order */
#define SCAN_BYTES (32u << 20)   /* a run of that length through several experts or tensors is a scan of the file */
#define WHOLE_EXPERT_SHARE 8     /* a first touch brings the whole expert if it is at most 1/8 of the budget */

/* How a reader goes through its file. A scan is served from a few units in turn: it would push out what others need,
 * and comes back for nothing. */
enum pace { PACE_RANDOM, PACE_SEQUENTIAL, PACE_SCAN };

struct read;
struct piece {
    struct efs_unit_waiter waiter;
    struct read *read;
    struct piece *next_ready;
    uint64_t begin; /* in the object */
    size_t bytes;
    uint8_t *dst;
    bool passed; /* a scan leaves the unit behind */
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
    struct piece *p = (struct piece *)((char *)job - offsetof(struct piece, waiter.job));
    struct efs *fs = p->read->fs;
    errint_t rc = p->waiter.error;
    if (rc == 0) {
        rc = efs_unit_decode(fs, p->waiter.unit, p->begin, p->bytes, p->dst, false, scratch);
        if (p->passed)
            efs_unit_first_to_go(fs, p->waiter.unit, true);
        efs_unit_put(fs, p->waiter.unit);
    }
    piece_end(p, rc);
}

/* A miss: the expert's other units come too, unless the reader is going through the file anyway. */
static void missed(struct efs *fs, uint32_t object, enum pace pace)
{
    uint32_t group = fs->store->objects[object].group;
    if (group >= fs->store->expert_count || pace != PACE_RANDOM)
        return;
    if (fs->expert_bytes[group] <= fs->options.budget_bytes / WHOLE_EXPERT_SHARE)
        efs_group_ahead(fs, group);
}

/* An object's bytes: from the full pool if the expert is there, else unit by unit. Returns pieces that can run now. */
static void read_object(struct read *r, const struct efs_segment_at *at, size_t bytes, uint8_t *dst, enum pace pace,
                        struct piece ***ready)
{
    struct efs *fs = r->fs;
    for (size_t done = 0; done < bytes;) {
        uint64_t begin = at->object_offset + done, end;
        uint32_t unit = efs_unit_at(fs, at->object, begin, &end);
        size_t n = end - begin < bytes - done ? (size_t)(end - begin) : bytes - done;
        struct piece *p = efs_sys_calloc(1, sizeof(*p));
        if (!p) {
            r->error = -ENOMEM;
            return;
        }
        *p = (struct piece){
            .read = r, .begin = begin, .bytes = n, .dst = dst + done, .passed = pace == PACE_SCAN && begin + n == end};
        p->waiter.unit = unit;
        p->waiter.job.run = piece_run;
        atomic_fetch_add(&r->remaining, 1);
        if (efs_unit_get(fs, unit, &p->waiter)) {
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
    const uint8_t *data = efs_full_hold(fs, expert);
    if (!data)
        return false;
    struct efs_expert_part parts[EFS_EXPERT_OBJECTS];
    uint32_t n = efs_view_expert_parts(&fs->view, expert, parts), i = 0;
    while (i < n && parts[i].object != at->object)
        i++;
    if (i < n)
        memcpy(dst, data + parts[i].file_offset + at->object_offset, bytes);
    efs_full_unhold(fs, expert);
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

/* Start loading what a sequential reader will want next. */
static void read_ahead(struct efs *fs, uint32_t file, uint64_t from, uint64_t to)
{
    uint64_t size = efs_view_bytes(&fs->view, file);
    for (uint64_t at = from; at < to && at < size;) {
        struct efs_segment_at seg;
        efs_view_at(&fs->view, file, at, &seg);
        uint64_t step = seg.bytes;
        if (seg.object != EFS_NONE) {
            uint64_t end;
            uint32_t unit = efs_unit_at(fs, seg.object, seg.object_offset, &end);
            if (end - seg.object_offset < step)
                step = end - seg.object_offset;
            efs_unit_ahead(fs, unit, true);
        }
        at += step;
    }
}

static enum pace pace_of(const struct efs_stream *s)
{
    if (s && s->through)
        return PACE_SCAN;
    if (!s || __atomic_load_n(&s->run, __ATOMIC_RELAXED) < SEQUENTIAL_RUN)
        return PACE_RANDOM;
    uint64_t run =
        __atomic_load_n(&s->next_offset, __ATOMIC_RELAXED) - __atomic_load_n(&s->run_begin, __ATOMIC_RELAXED);
    bool several = __atomic_load_n(&s->group, __ATOMIC_RELAXED) == UINT32_MAX;
    return several && run >= SCAN_BYTES ? PACE_SCAN : PACE_SEQUENTIAL;
}

/* Note where the reader is (group: of its first byte, or EFS_NONE), and read ahead. Fields are set by one thread at a
 * time and looked at by others without harm. */
static void follow(struct efs *fs, struct efs_stream *s, uint32_t file, uint64_t offset, size_t len, uint32_t group)
{
    if (!s || __atomic_exchange_n(&s->busy, 1, __ATOMIC_ACQUIRE))
        return; /* another thread is at it: one of them is enough */
    uint64_t end = offset + len, distance = offset > s->next_offset ? offset - s->next_offset : s->next_offset - offset;
    bool goes_on = distance <= REORDER_BYTES || s->through;
    uint32_t run = goes_on && s->run < UINT32_MAX ? s->run + 1 : 0;
    __atomic_store_n(&s->run, run, __ATOMIC_RELAXED);
    if (run == 0) {
        __atomic_store_n(&s->run_begin, offset, __ATOMIC_RELAXED);
        __atomic_store_n(&s->group, 0, __ATOMIC_RELAXED);
        s->ahead_until = end;
    }
    if (group != EFS_NONE && s->group != group + 1)
        __atomic_store_n(&s->group, s->group ? UINT32_MAX : group + 1, __ATOMIC_RELAXED);
    if (run == 0 || end > s->next_offset)
        __atomic_store_n(&s->next_offset, end, __ATOMIC_RELAXED);
    uint64_t from = s->ahead_until > end ? s->ahead_until : end, to = end + fs->options.readahead_bytes;
    bool more = (run >= SEQUENTIAL_RUN || s->through) &&
                to > from + fs->options.readahead_bytes / 8; /* in steps, not each time */
    if (more)
        s->ahead_until = to;
    __atomic_store_n(&s->busy, 0, __ATOMIC_RELEASE);
    if (more)
        read_ahead(fs, file, from, to);
}

/* Bytes of an expert are asked for: its use counts, unless the reader goes through the whole file. */
static void touch(struct efs *fs, const struct efs_segment_at *at, size_t bytes, enum pace pace)
{
    uint32_t expert = fs->store->objects[at->object].group;
    if (expert >= fs->store->expert_count || pace == PACE_SCAN)
        return;
    pthread_mutex_lock(&fs->lock);
    efs_residency_read(fs, expert, bytes);
    pthread_mutex_unlock(&fs->lock);
}

static void run_ready(struct piece *ready)
{
    while (ready) {
        struct piece *p = ready;
        ready = p->next_ready;
        if (efs_unit_decodes_inline(p->read->fs, p->waiter.unit))
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
    enum pace pace = pace_of(stream);
    uint32_t group = EFS_NONE;
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
            if (group == EFS_NONE)
                group = fs->store->objects[seg.object].group;
            touch(fs, &seg, n, pace);
            if (!read_full(r, &seg, n, out))
                read_object(r, &seg, n, out, pace, &tail);
        }
        at += n;
    }
    *tail = NULL;
    follow(fs, stream, file, offset, len, group);
    run_ready(ready);
    read_end(r);
}
