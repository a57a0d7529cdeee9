/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack_pipe.c - the pipeline. Each packing thread takes a batch, reads it, and encodes it. More threads run than may
 * encode at a time, so that some can wait for the disk. One thread writes encoded runs.
 */
#include "pack.h"

#include "checks.h"
#include "codec_table.h"
#include "hash.h"
#include "kernels.h"
#include "sweep.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- exponent counts of objects ---- */

struct efs_pack_tally {
    uint32_t left; /* shards not added yet */
    uint64_t counts[256];
};

static errint_t efs_pack_tallies_init(struct efs_pack_tallies *t, uint32_t object_count, double *entropy_bits)
{
    *t = (struct efs_pack_tallies){.entropy_bits = entropy_bits};
    t->by_object = efs_sys_calloc((size_t)object_count + 1, sizeof(*t->by_object));
    pthread_mutex_init(&t->lock, NULL);
    return t->by_object ? 0 : -ENOMEM;
}

static void efs_pack_tallies_free(struct efs_pack_tallies *t, uint32_t object_count)
{
    for (uint32_t o = 0; t->by_object && o < object_count; o++)
        free(t->by_object[o]);
    free(t->by_object);
    pthread_mutex_destroy(&t->lock);
}

bool efs_pack_tally_get(struct efs_pack_tallies *t, uint32_t object, uint64_t counts[256])
{
    pthread_mutex_lock(&t->lock);
    const struct efs_pack_tally *tally = t->by_object[object];
    if (tally)
        memcpy(counts, tally->counts, sizeof(tally->counts));
    pthread_mutex_unlock(&t->lock);
    return tally != NULL;
}

errint_t efs_pack_tally_set(struct efs_pack_tallies *t, uint32_t object, uint32_t left, const uint64_t counts[256])
{
    struct efs_pack_tally *tally = efs_sys_calloc(1, sizeof(*tally));
    if (!tally)
        return -ENOMEM;
    tally->left = left;
    memcpy(tally->counts, counts, sizeof(tally->counts));
    pthread_mutex_lock(&t->lock);
    free(t->by_object[object]);
    t->by_object[object] = tally;
    pthread_mutex_unlock(&t->lock);
    return 0;
}

static errint_t efs_pack_tally(struct efs_pack_tallies *t, uint32_t object, uint32_t shard_count,
                               const uint64_t counts[256])
{
    if (shard_count == 1) {
        t->entropy_bits[object] = efs_entropy_bits(counts);
        return 0;
    }
    errint_t rc = 0;
    pthread_mutex_lock(&t->lock);
    struct efs_pack_tally *tally = t->by_object[object];
    if (!tally) {
        tally = t->by_object[object] = efs_sys_calloc(1, sizeof(*tally));
        if (tally)
            tally->left = shard_count;
        else
            rc = -ENOMEM;
    }
    if (rc == 0) {
        for (int i = 0; i < 256; i++)
            tally->counts[i] += counts[i];
        if (--tally->left == 0) {
            t->entropy_bits[object] = efs_entropy_bits(tally->counts);
            t->by_object[object] = NULL;
            free(tally);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* ---- shared state of the threads ---- */

static void pipe_wake(void *owner)
{
    struct efs_pack_pipe *p = owner;
    pthread_cond_broadcast(&p->room);
    pthread_cond_broadcast(&p->coded);
}

static void pipe_begin(struct efs_pack_pipe *p, unsigned coding)
{
    efs_parallel_begin(&p->parallel, pipe_wake, p);
    pthread_mutex_init(&p->cursor_lock, NULL);
    sem_init(&p->encoder_slots, 0, coding);
    pthread_cond_init(&p->room, NULL);
    pthread_cond_init(&p->coded, NULL);
    p->last = &p->first;
}

/* Call it after all threads have exited. */
static void pipe_end(struct efs_pack_pipe *p)
{
    while (p->first) {
        struct efs_pack_run *run = p->first;
        p->first = run->next;
        free(run);
    }
    efs_pack_ring_free(&p->ring);
    pthread_mutex_destroy(&p->cursor_lock);
    pthread_cond_destroy(&p->room);
    pthread_cond_destroy(&p->coded);
    sem_destroy(&p->encoder_slots);
}

/* ---- the writing thread: appends the chunks of runs in disk order ---- */

static errint_t pack_append(struct efs_store_writer *writer, const uint8_t *chunk, size_t bytes, uint64_t *offset,
                            struct efs_error *err)
{
    *offset = bytes ? writer->offset : 0;
    return bytes ? efs_store_writer_append(writer, chunk, bytes, err) : 0;
}

/* Appends the page checksums of a shard whose chunks are written. */
static errint_t append_checks(struct efs_store_writer *writer, struct efs_disk_shard *s,
                              const struct efs_pack_slot *slot, struct efs_error *err)
{
    uint32_t bytes = efs_checks_bytes(s);
    uint64_t distance = (writer->offset - (s->sm_bytes ? s->sm_offset : s->e_offset)) / EFS_CHECKS_BLOCK;
    uint8_t *checks = efs_sys_malloc(bytes);
    if (!checks)
        return efs_fail(err, -ENOMEM, "no memory for page checksums");
    s->checks = (uint32_t)distance; /* a run is far smaller than 2^32 blocks */
    efs_checks_make(s, slot->e, slot->sm, checks);
    errint_t rc = efs_store_writer_append(writer, checks, bytes, err);
    free(checks);
    return rc;
}

static errint_t write_run(const struct efs_pack_pipe *p, const struct efs_pack_run *run, struct efs_error *err)
{
    struct efs_disk_shard *shards = &p->plan->shards[run->shard_first];
    errint_t rc = 0;
    for (uint32_t i = 0; rc == 0 && i < run->shard_count; i++)
        rc = pack_append(p->writer, run->slots[i].e, shards[i].e_bytes, &shards[i].e_offset, err);
    for (uint32_t i = 0; rc == 0 && i < run->shard_count; i++)
        rc = pack_append(p->writer, run->slots[i].sm, shards[i].sm_bytes, &shards[i].sm_offset, err);
    for (uint32_t i = 0; rc == 0 && i < run->shard_count; i++)
        if (run->slots[i].has_checks)
            rc = append_checks(p->writer, &shards[i], &run->slots[i], err);
    return rc;
}

/* Waits until the first run is encoded and removes it from the queue. NULL: no more runs, or stopped. */
static struct efs_pack_run *next_encoded(struct efs_pack_pipe *p)
{
    struct efs_pack_run *run = NULL;
    pthread_mutex_lock(&p->parallel.lock);
    while (!p->parallel.stop && !(p->first && p->first->left == 0) && !(p->assigned_all && !p->first))
        pthread_cond_wait(&p->coded, &p->parallel.lock);
    if (!p->parallel.stop && p->first) {
        run = p->first;
        p->first = run->next;
        if (!p->first)
            p->last = &p->first;
    }
    pthread_mutex_unlock(&p->parallel.lock);
    return run;
}

static errint_t write_work(void *arg, struct efs_error *err)
{
    struct efs_pack_pipe *p = arg;
    struct efs_pack_run *run;
    while ((run = next_encoded(p))) {
        uint64_t ring_end = run->ring_end;
        errint_t rc = write_run(p, run, err);
        free(run);
        if (rc < 0)
            return rc;
        pthread_mutex_lock(&p->parallel.lock);
        efs_pack_ring_release(&p->ring, ring_end);
        pthread_cond_broadcast(&p->room);
        pthread_mutex_unlock(&p->parallel.lock);
    }
    return 0;
}

/* ---- the packing threads ---- */

#define THREADS_MAX 256u
#define READING_THREADS 4u          /* in addition to the encoding threads: keep the disk busy */
#define BUFFER_BYTES_MAX (4u << 20) /* limit of one read */

struct thread {
    struct efs_pack_pipe *pipe;
    uint8_t *buffer;
    struct efs_codec_scratch *scratch;
    struct efs_pack_batch batch;
};

static errint_t code_part(struct thread *t, const struct efs_pack_part *part, const uint8_t *raw, struct efs_error *err)
{
    struct efs_index *plan = t->pipe->plan;
    const struct efs_disk_object *o = &plan->objects[part->object];
    struct efs_pack_slot *slot = &part->run->slots[part->shard - part->run->shard_first];
    struct efs_disk_shard *shard = &plan->shards[part->shard];
    enum efs_format format = (enum efs_format)o->format;
    size_t elements = efs_index_shard_elements(plan, part->object, part->shard);
    struct efs_shard_coded coded;
    bool small = efs_index_for_small_reads(plan, part->object);
    errint_t rc =
        small ? efs_shard_encode_short(format, plan->codec, raw, elements, slot->e, slot->sm, &coded, t->scratch)
              : efs_shard_encode(format, plan->codec, raw, elements, slot->e, slot->sm, &coded, t->scratch);
    if (rc == 0 && format != EFS_FORMAT_BYTES)
        rc = efs_pack_tally(t->pipe->tallies, part->object, o->shard_count, coded.counts);
    if (rc < 0)
        return efs_fail(err, rc, "cannot code a shard: %s", strerror(-rc));
    slot->has_checks = small && efs_codec_of(coded.codec)->decode_range; /* only such codecs decode a part */
    shard->codec = coded.codec;
    shard->e_bytes = (uint32_t)coded.e_bytes;
    shard->sm_bytes = (uint32_t)coded.sm_bytes;
    shard->raw_hash = efs_hash(raw, elements * efs_format_bytes(format));
    shard->e_hash = coded.e_bytes ? efs_hash(slot->e, coded.e_bytes) : 0;
    shard->sm_hash = coded.sm_bytes ? efs_hash(slot->sm, coded.sm_bytes) : 0;
    return 0;
}

static void count_coded(struct efs_pack_pipe *p, const struct efs_pack_batch *batch)
{
    pthread_mutex_lock(&p->parallel.lock);
    for (uint32_t i = 0; i < batch->count; i++)
        if (--batch->parts[i].run->left == 0)
            pthread_cond_signal(&p->coded);
    p->parallel.done_bytes += batch->bytes;
    pthread_mutex_unlock(&p->parallel.lock);
}

static errint_t pack_work(void *arg, struct efs_error *err)
{
    struct thread *t = arg;
    struct efs_pack_pipe *p = t->pipe;
    const struct efs_pack_batch *batch = &t->batch;
    while (efs_pack_next_batch(p, &t->batch)) {
        const uint8_t *data;
        errint_t rc = efs_pack_source_read(p->source, batch->file, batch->begin, (size_t)(batch->end - batch->begin),
                                           batch->bytes, t->buffer, &data, err);
        if (rc < 0)
            return rc;
        while (sem_wait(&p->encoder_slots) < 0) /* retry on EINTR */
            ;
        for (uint32_t i = 0; rc == 0 && i < batch->count; i++)
            rc = code_part(t, &batch->parts[i], data + (batch->parts[i].offset - batch->begin), err);
        sem_post(&p->encoder_slots);
        if (rc < 0)
            return rc;
        count_coded(p, batch);
    }
    return 0;
}

static size_t largest_shard_bytes(const struct efs_index *plan)
{
    size_t largest = 1;
    for (uint32_t o = 0; o < plan->object_count; o++) {
        size_t bytes = efs_index_shard_elements(plan, o, plan->objects[o].shard_first) *
                       efs_format_bytes((enum efs_format)plan->objects[o].format);
        if (bytes > largest)
            largest = bytes;
    }
    return largest;
}

static errint_t pack_start(struct efs_pack_pipe *p, struct thread *threads, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        threads[i].pipe = p;
        threads[i].buffer = efs_sys_aligned_alloc(EFS_ALIGN, p->buffer_bytes);
        errint_t rc = efs_codec_scratch_new(p->plan->shard_elements, &threads[i].scratch);
        if (rc < 0 || !threads[i].buffer)
            return -ENOMEM;
    }
    errint_t rc = efs_parallel_start(&p->parallel, "efs-write", write_work, p, 0, 1);
    return rc < 0 ? rc : efs_parallel_start(&p->parallel, "efs-pack", pack_work, threads, sizeof(*threads), count);
}

errint_t efs_pack_state_begin(const struct efs_index *plan, double *entropy_bits, struct efs_pack_state *state)
{
    *state = (struct efs_pack_state){.done_bytes = plan->copied_bytes};
    efs_pack_cursor_begin(plan, &state->cursor);
    return efs_pack_tallies_init(&state->tallies, plan->object_count, entropy_bits);
}

void efs_pack_state_free(const struct efs_index *plan, struct efs_pack_state *state)
{
    efs_pack_tallies_free(&state->tallies, plan->object_count);
}

errint_t efs_pack_run(struct efs_index *plan, struct efs_pack_source *source, struct efs_store_writer *writer,
                      const struct efs_pack_options *options, struct efs_pack_state *state, uint64_t limit_bytes,
                      struct efs_error *err)
{
    struct efs_pack_pipe pipe = {.plan = plan,
                                 .source = source,
                                 .writer = writer,
                                 .tallies = &state->tallies,
                                 .cursor = state->cursor,
                                 .limit_bytes = limit_bytes};
    unsigned coding = options->threads ? options->threads : efs_cores();
    coding = coding < THREADS_MAX ? coding : THREADS_MAX;
    pipe_begin(&pipe, coding);
    pipe.parallel.done_bytes = state->done_bytes;
    pipe.buffer_bytes = efs_pack_source_room(largest_shard_bytes(plan)); /* at most 16 MiB: 4 threads fit */
    unsigned count = efs_parallel_fit(EFS_PACK_WORK_BYTES, efs_codec_scratch_encoding_bytes(plan->shard_elements),
                                      &pipe.buffer_bytes, BUFFER_BYTES_MAX, coding + READING_THREADS);
    struct thread *threads = efs_sys_calloc(count, sizeof(*threads));
    errint_t rc = efs_pack_ring_init(&pipe.ring, EFS_PACK_RING_BYTES);
    if (rc == 0)
        rc = threads ? pack_start(&pipe, threads, count) : -ENOMEM;
    if (rc < 0) {
        efs_fail(err, rc, "cannot start packing: %s", strerror(-rc));
        efs_parallel_fail(&pipe.parallel, rc, err ? err->text : "");
    }
    rc = efs_parallel_end(&pipe.parallel, options->progress, options->progress_arg, plan->source_bytes, "packing", err);
    for (unsigned i = 0; threads && i < count; i++) {
        efs_codec_scratch_free(threads[i].scratch);
        free(threads[i].buffer);
    }
    free(threads);
    state->cursor = pipe.cursor;
    state->done_bytes = pipe.parallel.done_bytes;
    pipe_end(&pipe);
    return rc;
}
