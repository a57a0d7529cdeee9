/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_disk.c - what reading takes. Reads go as the daemon's do: a tensor's E-chunks in one read and its SM-chunks
 * in another, through the I/O thread, as many in flight as it allows, at places all over the store.
 */
#include "profile_core.h"

#include "clock.h"
#include "container.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

#define SPAN_BYTES (8u << 20) /* of a tensor at most, coded */
#define LATENCY_READS 64

struct read {
    struct efs_disk_request request;
    struct efs_measure *measure;
};

static void read_done(struct efs_disk_request *request, errint_t error)
{
    struct read *r = EFS_CONTAINER(request, struct read, request);
    struct efs_measure *m = r->measure;
    pthread_mutex_lock(&m->lock);
    if (error < 0 && m->read_error == 0)
        m->read_error = error;
    if (--m->pending == 0)
        pthread_cond_signal(&m->idle);
    pthread_mutex_unlock(&m->lock);
    free(r);
}

static errint_t measure_submit(struct efs_measure *m, const struct efs_block *block, uint64_t offset)
{
    struct read *r = efs_sys_calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->measure = m;
    r->request = (struct efs_disk_request){.offset = offset,
                                           .bytes = (size_t)block->granules * EFS_GRANULE,
                                           .data = block->data,
                                           .segment = block->segment,
                                           .complete = read_done};
    pthread_mutex_lock(&m->lock);
    m->pending++;
    pthread_mutex_unlock(&m->lock);
    efs_disk_submit(m->disk, &r->request);
    return 0;
}

static errint_t measure_wait(struct efs_measure *m)
{
    pthread_mutex_lock(&m->lock);
    while (m->pending > 0)
        pthread_cond_wait(&m->idle, &m->lock);
    errint_t error = m->read_error;
    pthread_mutex_unlock(&m->lock);
    return error;
}

/* Whether a chunk comes right behind what ends there; *end: its own end then. One without bytes has no place. */
static bool span_append_chunk(uint64_t offset, uint32_t bytes, uint64_t *end)
{
    if (bytes == 0)
        return true;
    if (*end != 0 && (offset < *end || offset - *end >= EFS_ALIGN))
        return false;
    *end = offset + bytes;
    return true;
}

/* From the object's first shard on: those that lie side by side; *e, *sm: bytes of the pages that their chunks touch.
 * false: it has none. */
static bool span_lay(const struct efs_store *store, uint32_t object, struct efs_measured_span *span, uint64_t *e,
                     uint64_t *sm)
{
    const struct efs_disk_object *o = &store->objects[object];
    const struct efs_disk_shard *first = &store->shards[o->shard_first];
    uint64_t e_end = 0, sm_end = 0;
    *span = (struct efs_measured_span){.object = object, .first = o->shard_first};
    *e = *sm = 0;
    for (; span->count < o->shard_count; span->count++) {
        const struct efs_disk_shard *s = first + span->count;
        if ((s->e_bytes != 0) != (first->e_bytes != 0) || (s->sm_bytes != 0) != (first->sm_bytes != 0) ||
            !span_append_chunk(s->e_offset, s->e_bytes, &e_end) ||
            !span_append_chunk(s->sm_offset, s->sm_bytes, &sm_end))
            break;
        uint64_t e_span = first->e_bytes ? efs_page_span(first->e_offset, e_end) : 0;
        uint64_t sm_span = first->sm_bytes ? efs_page_span(first->sm_offset, sm_end) : 0;
        if (span->count > 0 && e_span + sm_span > SPAN_BYTES)
            break;
        *e = e_span;
        *sm = sm_span;
    }
    return span->count > 0 && *e + *sm > 0;
}

void efs_measure_drop(struct efs_measure *m)
{
    for (uint32_t i = 0; i < m->span_count; i++) {
        efs_arena_free(&m->arena, &m->spans[i].e);
        efs_arena_free(&m->arena, &m->spans[i].sm);
    }
    m->span_count = 0;
}

errint_t efs_measure_round(struct efs_measure *m, uint64_t *bytes)
{
    errint_t rc = 0;
    efs_measure_drop(m);
    for (uint32_t tried = 0; tried < m->object_count && rc == 0; tried++) {
        struct efs_measured_span *span = &m->spans[m->span_count];
        uint64_t e, sm;
        uint32_t object = m->objects[m->object_next++ % m->object_count];
        if (!span_lay(m->store, object, span, &e, &sm))
            continue;
        const struct efs_disk_shard *first = &m->store->shards[span->first];
        if ((e && !efs_arena_alloc(&m->arena, e, false, &span->e)) ||
            (sm && !efs_arena_alloc(&m->arena, sm, true, &span->sm))) {
            efs_arena_free(&m->arena, &span->e);
            break;
        }
        m->span_count++;
        if (e)
            rc = measure_submit(m, &span->e, efs_page_down(first->e_offset));
        if (rc == 0 && sm)
            rc = measure_submit(m, &span->sm, efs_page_down(first->sm_offset));
        *bytes += e + sm;
    }
    errint_t error = measure_wait(m);
    return rc < 0 ? rc : error;
}

/* The first round warms up (and pins the memory), unless it is all there is time for. */
errint_t efs_measure_disk(struct efs_measure *m, double seconds)
{
    uint64_t bytes = 0, began = efs_now_ns(), start = began;
    errint_t rc = efs_measure_round(m, &bytes);
    for (bool first = true; rc == 0 && efs_now_ns() - began < (uint64_t)(seconds * 1e9); first = false) {
        if (first) {
            start = efs_now_ns();
            bytes = 0;
        }
        rc = efs_measure_round(m, &bytes);
    }
    m->profile->disk_bytes_per_second = (double)bytes * 1e9 / (double)(efs_now_ns() - start + 1);
    return rc;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The median of lone reads of a page, at the begin of tensors. */
errint_t efs_measure_latency(struct efs_measure *m, double seconds)
{
    uint64_t times[LATENCY_READS], end = efs_now_ns() + (uint64_t)(seconds * 1e9);
    struct efs_block block = {0};
    uint32_t count = 0;
    errint_t rc = 0;
    efs_measure_drop(m);
    if (!efs_arena_alloc(&m->arena, EFS_GRANULE, false, &block))
        return -ENOMEM;
    while (rc == 0 && count < LATENCY_READS && (count == 0 || efs_now_ns() < end)) {
        const struct efs_disk_object *o = &m->store->objects[m->objects[m->object_next++ % m->object_count]];
        const struct efs_disk_shard *shard = &m->store->shards[o->shard_first];
        uint64_t began = efs_now_ns();
        rc = measure_submit(m, &block, efs_page_down(shard->sm_bytes ? shard->sm_offset : shard->e_offset));
        if (rc == 0)
            rc = measure_wait(m);
        times[count++] = efs_now_ns() - began;
    }
    efs_arena_free(&m->arena, &block);
    qsort(times, count, sizeof(*times), compare_u64);
    m->profile->read_latency_ns = (double)times[count / 2];
    return rc;
}
