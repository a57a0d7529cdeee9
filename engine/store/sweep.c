/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - see sweep.h: each thread takes the next batch of shards, reads their chunks with one or two large reads
 * and calls the callback. */
#include "sweep.h"

#include "parallel.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- batches of shards, and the large reads of their chunks. store_check.c has checked that the pages of every
 * chunk are inside the store ---- */

/* The next shard, with groups in disk order. */
struct efs_sweep_cursor {
    uint32_t *sorted; /* owned; NULL: part.order is the caller's */
    struct efs_sweep_part part;
};

/* A page-aligned range [begin, end) of the store; empty: begin == end. */
struct page_range {
    uint64_t begin, end;
};

#define EFS_SWEEP_SHARDS 256
struct efs_sweep_batch {
    /* All E-chunks are in range e and all SM-chunks in range sm; if these are close, all chunks are in e and sm is
     * empty. */
    struct page_range e, sm;
    uint32_t count;
    struct {
        uint32_t object, shard;
    } shards[EFS_SWEEP_SHARDS];
};

#define GAP_BYTES (64u << 10) /* largest gap between two ranges that are read as one */

static uint64_t range_bytes(const struct page_range *w)
{
    return w->end - w->begin;
}

/* The smallest range that contains both. */
static struct page_range sweep_join(struct page_range a, struct page_range b)
{
    if (a.begin == a.end)
        return b;
    if (b.begin == b.end)
        return a;
    return (struct page_range){a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

static struct page_range sweep_chunk(uint64_t offset, uint32_t bytes)
{
    if (bytes == 0)
        return (struct page_range){0, 0};
    return (struct page_range){efs_page_down(offset), efs_page_up(offset + bytes)};
}

static bool sweep_near(struct page_range a, struct page_range b)
{
    return a.begin == a.end || b.begin == b.end || (a.begin <= b.end + GAP_BYTES && b.begin <= a.end + GAP_BYTES);
}

/* Bytes to read for both ranges. */
static uint64_t sweep_cost(struct page_range e, struct page_range sm)
{
    struct page_range both = sweep_join(e, sm);
    return sweep_near(e, sm) ? range_bytes(&both) : range_bytes(&e) + range_bytes(&sm);
}

static size_t sweep_room(const struct efs_disk_shard *s)
{
    struct page_range e = sweep_chunk(s->e_offset, s->e_bytes), sm = sweep_chunk(s->sm_offset, s->sm_bytes);
    return (size_t)(range_bytes(&e) + range_bytes(&sm)) + GAP_BYTES;
}

/* Store offset of a group's first chunk; UINT64_MAX for a group without objects. */
static uint64_t group_offset(const struct efs_store *store, uint32_t group)
{
    const struct efs_disk_group *g = &store->groups[group];
    if (g->object_count == 0)
        return UINT64_MAX;
    const struct efs_disk_shard *s = &store->shards[store->objects[g->object_first].shard_first];
    return s->e_bytes ? s->e_offset : s->sm_offset;
}

static int compare_offsets(const void *a, const void *b, void *arg)
{
    uint32_t g = *(const uint32_t *)a, h = *(const uint32_t *)b;
    uint64_t at = group_offset(arg, g), bt = group_offset(arg, h);
    return at != bt ? (at < bt ? -1 : 1) : (g > h) - (g < h);
}

static void enter_group(const struct efs_store *store, struct efs_sweep_part *p)
{
    while (p->at < store->group_count && store->groups[p->order[p->at]].object_count == 0)
        p->at++;
    if (p->at == store->group_count)
        return;
    p->object = store->groups[p->order[p->at]].object_first;
    p->shard = store->objects[p->object].shard_first;
}

static errint_t cursor_init(const struct efs_store *store, const struct efs_sweep_part *part,
                            struct efs_sweep_cursor *c)
{
    *c = (struct efs_sweep_cursor){0};
    if (part) {
        c->part = *part;
        return 0;
    }
    c->sorted = efs_sys_malloc(((size_t)store->group_count + 1) * sizeof(*c->sorted));
    if (!c->sorted)
        return -ENOMEM;
    for (uint32_t g = 0; g < store->group_count; g++)
        c->sorted[g] = g;
    qsort_r(c->sorted, store->group_count, sizeof(*c->sorted), compare_offsets, (void *)(uintptr_t)store);
    c->part = (struct efs_sweep_part){.order = c->sorted, .end_at = store->group_count};
    enter_group(store, &c->part);
    return 0;
}

static void cursor_free(struct efs_sweep_cursor *c)
{
    free(c->sorted);
    c->sorted = NULL;
}

static bool sweep_at_end(const struct efs_store *store, const struct efs_sweep_part *p)
{
    return p->at == store->group_count || (p->at == p->end_at && p->shard == p->end_shard);
}

static void sweep_step(const struct efs_store *store, struct efs_sweep_part *p)
{
    const struct efs_disk_object *o = &store->objects[p->object];
    const struct efs_disk_group *g = &store->groups[o->group];
    if (++p->shard < o->shard_first + o->shard_count)
        return;
    if (++p->object < g->object_first + g->object_count)
        return;
    p->at++;
    enter_group(store, p);
}

/* Ends the batch when the buffer is full, or when over a third of the bytes to read would not be its chunks. */
static bool next_batch(const struct efs_store *store, struct efs_sweep_cursor *c, size_t buffer_bytes,
                       struct efs_sweep_batch *batch)
{
    struct page_range none = {0, 0}, e = none, sm = none;
    uint64_t useful = 0;
    batch->count = 0;
    while (!sweep_at_end(store, &c->part) && batch->count < EFS_SWEEP_SHARDS) {
        const struct efs_disk_shard *s = &store->shards[c->part.shard];
        struct page_range e_next = sweep_join(e, sweep_chunk(s->e_offset, s->e_bytes));
        struct page_range sm_next = sweep_join(sm, sweep_chunk(s->sm_offset, s->sm_bytes));
        uint64_t bytes = sweep_cost(e_next, sm_next);
        useful += (uint64_t)s->e_bytes + s->sm_bytes;
        if (batch->count > 0 && (bytes > buffer_bytes || bytes > useful + useful / 2 + GAP_BYTES))
            break;
        e = e_next;
        sm = sm_next;
        batch->shards[batch->count].object = c->part.object;
        batch->shards[batch->count++].shard = c->part.shard;
        sweep_step(store, &c->part);
    }
    batch->e = sweep_near(e, sm) ? sweep_join(e, sm) : e;
    batch->sm = sweep_near(e, sm) ? none : sm;
    return batch->count > 0;
}

static bool read_batch(const struct efs_store *store, const struct efs_sweep_batch *batch, uint8_t *buffer)
{
    size_t e_bytes = (size_t)range_bytes(&batch->e), sm_bytes = (size_t)range_bytes(&batch->sm);
    return efs_store_read(store, batch->e.begin, buffer, e_bytes) == 0 &&
           (sm_bytes == 0 || efs_store_read(store, batch->sm.begin, buffer + e_bytes, sm_bytes) == 0);
}

static void shard_at(const struct efs_store *store, const struct efs_sweep_batch *batch, uint32_t i, uint8_t *buffer,
                     struct efs_sweep_shard *shard)
{
    uint32_t object = batch->shards[i].object, index = batch->shards[i].shard;
    const struct efs_disk_object *o = &store->objects[object];
    const struct efs_disk_shard *s = &store->shards[index];
    enum efs_format format = (enum efs_format)o->format;
    bool one = range_bytes(&batch->sm) == 0;
    size_t width = efs_format_bytes(format), elements = efs_store_shard_elements(store, o, index);
    const uint8_t *sm = one ? buffer + (s->sm_offset - batch->e.begin)
                            : buffer + range_bytes(&batch->e) + (s->sm_offset - batch->sm.begin);
    *shard = (struct efs_sweep_shard){
        .object = object,
        .shard = index,
        .object_offset = (uint64_t)(index - o->shard_first) * store->sb.shard_elements * width,
        .raw_bytes = elements * width,
        .view = {.format = format,
                 .codec = s->codec,
                 .elements = elements,
                 .e = s->e_bytes ? buffer + (s->e_offset - batch->e.begin) : buffer,
                 .sm = s->sm_bytes ? sm : buffer,
                 .e_bytes = s->e_bytes,
                 .sm_bytes = s->sm_bytes},
    };
}

/* Reads the pages of one chunk to their place in the batch's buffer. */
static errint_t read_chunk(const struct efs_store *store, uint64_t offset, uint32_t bytes, const uint8_t *to)
{
    struct page_range pages = sweep_chunk(offset, bytes);
    return bytes ? efs_store_read(store, pages.begin, (uint8_t *)(uintptr_t)to - (offset - pages.begin),
                                  (size_t)range_bytes(&pages))
                 : 0;
}

static void retry_shard(const struct efs_store *store, struct efs_sweep_shard *shard)
{
    const struct efs_disk_shard *s = &store->shards[shard->shard];
    shard->e_error = read_chunk(store, s->e_offset, s->e_bytes, shard->view.e);
    shard->sm_error = read_chunk(store, s->sm_offset, s->sm_bytes, shard->view.sm);
    if (shard->sm_error && !shard->e_error) /* the failed read may have overwritten the page that E shares with SM */
        shard->e_error = read_chunk(store, s->e_offset, s->e_bytes, shard->view.e);
}

/* ---- the threads ---- */

#define THREADS_MAX 256u
#define READING_THREADS 2u /* additional threads, because some wait for the disk */
#define MEMORY_BYTES (192u << 20)
#define BUFFER_BYTES_MAX (8u << 20)

struct sweep {
    const struct efs_sweep *options;
    uint64_t total_bytes;
    size_t raw_bytes, buffer_bytes; /* per thread; raw_bytes twice */
    struct efs_parallel parallel;   /* its lock also guards cursor */
    struct efs_sweep_cursor cursor;
};

struct thread {
    struct sweep *sweep;
    uint8_t *buffer, *raw;
    struct efs_codec_scratch *scratch;
    struct efs_sweep_batch batch;
};

static bool sweep_next_batch(struct sweep *s, struct efs_sweep_batch *batch)
{
    pthread_mutex_lock(&s->parallel.lock);
    bool taken = !s->parallel.stop && next_batch(s->options->store, &s->cursor, s->buffer_bytes, batch);
    pthread_mutex_unlock(&s->parallel.lock);
    return taken;
}

static errint_t sweep_work(void *arg, struct efs_error *err)
{
    struct thread *t = arg;
    struct sweep *s = t->sweep;
    while (sweep_next_batch(s, &t->batch)) {
        uint64_t bytes = 0;
        bool all = read_batch(s->options->store, &t->batch, t->buffer);
        for (uint32_t i = 0; i < t->batch.count; i++) {
            struct efs_sweep_shard shard;
            shard_at(s->options->store, &t->batch, i, t->buffer, &shard);
            if (!all)
                retry_shard(s->options->store, &shard);
            errint_t rc = s->options->each(s->options->arg, &shard, t->scratch, t->raw, t->raw + s->raw_bytes, err);
            if (rc < 0)
                return rc;
            bytes += shard.raw_bytes;
        }
        pthread_mutex_lock(&s->parallel.lock);
        s->parallel.done_bytes += bytes;
        pthread_mutex_unlock(&s->parallel.lock);
    }
    return 0;
}

/* Sizes the buffers for the largest shard, enlarges the read buffers within MEMORY_BYTES, and returns the number of
 * threads. coding: threads that the caller wants to decode at a time. */
static unsigned size_threads(struct sweep *s, unsigned coding)
{
    const struct efs_store *store = s->options->store;
    size_t chunks = 1, raw = 1;
    for (uint32_t o = 0; o < store->object_count; o++) {
        const struct efs_disk_object *object = &store->objects[o];
        s->total_bytes += object->bytes;
        for (uint32_t i = object->shard_first; i < object->shard_first + object->shard_count; i++) {
            size_t room = sweep_room(&store->shards[i]);
            size_t bytes =
                efs_store_shard_elements(store, object, i) * efs_format_bytes((enum efs_format)object->format);
            chunks = room > chunks ? room : chunks;
            raw = bytes > raw ? bytes : raw;
        }
    }
    s->raw_bytes = ((raw + EFS_ALIGN - 1) & ~(size_t)(EFS_ALIGN - 1)) + EFS_ALIGN;
    size_t fixed = 2 * s->raw_bytes + efs_codec_scratch_bytes(store->sb.shard_elements);
    unsigned threads = coding > THREADS_MAX ? THREADS_MAX : coding;
    s->buffer_bytes = chunks;
    return efs_parallel_fit(MEMORY_BYTES, fixed, &s->buffer_bytes, BUFFER_BYTES_MAX, threads + READING_THREADS);
}

static errint_t sweep_start(struct sweep *s, struct thread *threads, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        threads[i].sweep = s;
        threads[i].buffer = efs_sys_aligned_alloc(EFS_ALIGN, s->buffer_bytes);
        threads[i].raw = efs_sys_aligned_alloc(EFS_ALIGN, 2 * s->raw_bytes);
        errint_t rc = efs_codec_scratch_new(s->options->store->sb.shard_elements, &threads[i].scratch);
        if (rc < 0 || !threads[i].buffer || !threads[i].raw)
            return -ENOMEM;
    }
    return efs_parallel_start(&s->parallel, "efs-sweep", sweep_work, threads, sizeof(*threads), count);
}

errint_t efs_sweep_run(const struct efs_sweep *options, struct efs_error *err)
{
    struct sweep s = {.options = options};
    efs_parallel_begin(&s.parallel, NULL, NULL);
    unsigned count = size_threads(&s, options->threads ? options->threads : efs_cores());
    struct thread *threads = efs_sys_calloc(count, sizeof(*threads));
    errint_t rc = threads ? cursor_init(options->store, options->part, &s.cursor) : -ENOMEM;
    if (rc == 0)
        rc = sweep_start(&s, threads, count);
    if (rc < 0)
        efs_parallel_fail(&s.parallel, rc, strerror(-rc));
    rc = efs_parallel_end(&s.parallel, options->progress, options->progress_arg, s.total_bytes, options->phase, err);
    for (unsigned i = 0; threads && i < count; i++) {
        efs_codec_scratch_free(threads[i].scratch);
        free(threads[i].buffer);
        free(threads[i].raw);
    }
    free(threads);
    cursor_free(&s.cursor);
    return rc;
}
