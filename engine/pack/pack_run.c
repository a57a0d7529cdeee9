/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack_run.c - the pipeline. Coding threads each take a batch, read it, code it; a few more of them than may code at a
 * time, so that some wait for the disk meanwhile. One thread writes finished runs. The caller's thread watches.
 */
#include "hash.h"
#include "kernels.h"
#include "pack.h"
#include "sweep.h"
#include "sys.h"
#include "tick.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 256u
#define READING_THREADS 4u          /* more than may code: what keeps the disk busy while it is written, too */
#define BUFFER_BYTES_MAX (4u << 20) /* of one read */

struct thread {
    struct efs_pack_pipe *pipe;
    unsigned long id;
    bool started;
    uint8_t *buffer;
    struct efs_codec_scratch *scratch;
    struct efs_pack_batch batch;
};

/* false: stopped. */
static bool pass_gate(struct efs_pack_pipe *p)
{
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->may_code == 0)
        pthread_cond_wait(&p->gate, &p->lock);
    bool go = !p->stop;
    if (go)
        p->may_code--;
    pthread_mutex_unlock(&p->lock);
    return go;
}

static void leave_gate(struct efs_pack_pipe *p)
{
    pthread_mutex_lock(&p->lock);
    p->may_code++;
    pthread_cond_signal(&p->gate);
    pthread_mutex_unlock(&p->lock);
}

static errint_t code_part(struct thread *t, const struct efs_pack_part *part, const uint8_t *raw, struct efs_error *err)
{
    struct efs_pack_plan *plan = t->pipe->plan;
    const struct efs_disk_object *o = &plan->objects[part->object];
    const struct efs_pack_slot *slot = &part->run->slots[part->shard - part->run->shard_first];
    struct efs_disk_shard *shard = &plan->shards[part->shard];
    enum efs_format format = (enum efs_format)o->format;
    size_t elements = efs_pack_shard_elements(plan, part->object, part->shard);
    struct efs_shard_coded coded;
    errint_t rc = efs_shard_encode(format, plan->codec, raw, elements, slot->e, slot->sm, &coded, t->scratch);
    enum efs_format field = efs_pack_field(plan, part->object);
    if (rc == 0 && field != EFS_FORMAT_BYTES) {
        if (field != format)
            efs_exponent_counts(field, raw, (size_t)o->bytes / efs_format_bytes(field), coded.counts, t->scratch);
        rc = efs_pack_tally(t->pipe->tallies, part->object, o->shard_count, coded.counts);
    }
    if (rc < 0)
        return efs_fail(err, rc, "cannot code a shard: %s", strerror(-rc));
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
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < batch->count; i++)
        if (--batch->parts[i].run->left == 0)
            pthread_cond_signal(&p->coded);
    p->done_bytes += batch->bytes;
    pthread_mutex_unlock(&p->lock);
}

static errint_t pack_work(struct thread *t, struct efs_error *err)
{
    struct efs_pack_pipe *p = t->pipe;
    const struct efs_pack_batch *batch = &t->batch;
    while (efs_pack_take(p, &t->batch)) {
        const uint8_t *data;
        errint_t rc = efs_pack_source_read(p->source, batch->file, batch->begin, (size_t)(batch->end - batch->begin),
                                           batch->bytes, t->buffer, &data, err);
        if (rc < 0)
            return rc;
        if (!pass_gate(p))
            return 0;
        for (uint32_t i = 0; rc == 0 && i < batch->count; i++)
            rc = code_part(t, &batch->parts[i], data + (batch->parts[i].offset - batch->begin), err);
        leave_gate(p);
        if (rc < 0)
            return rc;
        count_coded(p, batch);
    }
    return 0;
}

static void *code_thread(void *arg)
{
    struct thread *t = arg;
    struct efs_error err = {""};
    errint_t rc = pack_work(t, &err);
    if (rc < 0)
        efs_pack_pipe_fail(t->pipe, rc, &err);
    pthread_mutex_lock(&t->pipe->lock);
    t->pipe->running--;
    pthread_cond_broadcast(&t->pipe->changed);
    pthread_mutex_unlock(&t->pipe->lock);
    return NULL;
}

/* Until all threads ended: tell the caller how far it is. */
static void pack_watch(struct efs_pack_pipe *p, const struct efs_pack_options *options)
{
    pthread_mutex_lock(&p->lock);
    while (p->running > 0) {
        if (!efs_tick_wait(&p->changed, &p->lock) || !options->progress || p->stop)
            continue;
        uint64_t done = p->done_bytes;
        pthread_mutex_unlock(&p->lock);
        if (options->progress(options->progress_arg, done, p->plan->source_bytes, "packing")) {
            struct efs_error err;
            efs_fail(&err, -ECANCELED, "interrupted");
            efs_pack_pipe_fail(p, -ECANCELED, &err);
        }
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

static size_t largest_shard_bytes(const struct efs_pack_plan *plan)
{
    size_t largest = 1;
    for (uint32_t o = 0; o < plan->object_count; o++) {
        size_t bytes = efs_pack_shard_elements(plan, o, plan->objects[o].shard_first) *
                       efs_format_bytes((enum efs_format)plan->objects[o].format);
        if (bytes > largest)
            largest = bytes;
    }
    return largest;
}

/* How many threads, and how much each reads at once, within EFS_PACK_WORK_BYTES. */
static unsigned size_threads(struct efs_pack_pipe *p, unsigned coding)
{
    size_t least = efs_pack_source_room(largest_shard_bytes(p->plan));
    size_t scratch = efs_codec_scratch_encoding_bytes(p->plan->shard_elements);
    size_t most = EFS_PACK_WORK_BYTES / (least + scratch); /* at least 4: a shard has at most 16 MiB */
    unsigned threads = coding + READING_THREADS;
    if (threads > most)
        threads = most > 1 ? (unsigned)most : 1;
    size_t each = EFS_PACK_WORK_BYTES / threads;
    size_t buffer = each > scratch ? (each - scratch) & ~(size_t)(EFS_ALIGN - 1) : 0;
    if (buffer > BUFFER_BYTES_MAX)
        buffer = BUFFER_BYTES_MAX;
    p->buffer_bytes = buffer > least ? buffer : least;
    return threads;
}

static errint_t pack_start(struct efs_pack_pipe *p, struct thread *threads, unsigned count, unsigned long *writer)
{
    for (unsigned i = 0; i < count; i++) {
        threads[i].pipe = p;
        threads[i].buffer = efs_sys_aligned_alloc(EFS_ALIGN, p->buffer_bytes);
        errint_t rc = efs_codec_scratch_new(p->plan->shard_elements, &threads[i].scratch);
        if (rc < 0 || !threads[i].buffer)
            return -ENOMEM;
    }
    p->running = 1;
    errint_t rc = efs_thread_start(efs_pack_write_thread, p, "efs-write", writer);
    if (rc < 0) {
        p->running = 0;
        return rc;
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_mutex_lock(&p->lock);
        p->running++;
        pthread_mutex_unlock(&p->lock);
        rc = efs_thread_start(code_thread, &threads[i], "efs-pack", &threads[i].id);
        if (rc < 0) {
            pthread_mutex_lock(&p->lock);
            p->running--;
            pthread_mutex_unlock(&p->lock);
            return i > 0 ? 0 : rc; /* fewer will do */
        }
        threads[i].started = true;
    }
    return 0;
}

errint_t efs_pack_state_begin(const struct efs_pack_plan *plan, double *entropy_bits, struct efs_pack_state *state)
{
    *state = (struct efs_pack_state){.done_bytes = plan->copied_bytes};
    efs_pack_cursor_begin(plan, &state->cursor);
    return efs_pack_tallies_init(&state->tallies, plan->object_count, entropy_bits);
}

void efs_pack_state_free(const struct efs_pack_plan *plan, struct efs_pack_state *state)
{
    efs_pack_tallies_free(&state->tallies, plan->object_count);
}

errint_t efs_pack_run(struct efs_pack_plan *plan, struct efs_pack_source *source, struct efs_store_writer *writer,
                      const struct efs_pack_options *options, struct efs_pack_state *state, uint64_t limit_bytes,
                      struct efs_error *err)
{
    struct efs_pack_pipe pipe = {.plan = plan,
                                 .source = source,
                                 .writer = writer,
                                 .tallies = &state->tallies,
                                 .cursor = state->cursor,
                                 .done_bytes = state->done_bytes,
                                 .limit_bytes = limit_bytes};
    unsigned coding = options->threads ? options->threads : efs_cores(), count;
    unsigned long write_id = 0;
    if (coding > THREADS_MAX)
        coding = THREADS_MAX;
    efs_pack_pipe_init(&pipe);
    pipe.may_code = coding;
    count = size_threads(&pipe, coding);
    struct thread *threads = efs_sys_calloc(count, sizeof(*threads));
    errint_t rc = efs_pack_ring_init(&pipe.ring, EFS_PACK_RING_BYTES);
    if (rc == 0)
        rc = threads ? pack_start(&pipe, threads, count, &write_id) : -ENOMEM;
    if (rc < 0) {
        efs_fail(&pipe.err, rc, "cannot start packing: %s", strerror(-rc));
        struct efs_error text = pipe.err;
        efs_pack_pipe_fail(&pipe, rc, &text);
    }
    pack_watch(&pipe, options);
    if (write_id)
        pthread_join(write_id, NULL);
    for (unsigned i = 0; threads && i < count; i++) {
        if (threads[i].started)
            pthread_join(threads[i].id, NULL);
        efs_codec_scratch_free(threads[i].scratch);
        free(threads[i].buffer);
    }
    free(threads);
    rc = pipe.rc;
    state->cursor = pipe.cursor;
    state->done_bytes = pipe.done_bytes;
    if (rc < 0)
        efs_fail(err, rc, "%s", pipe.err.text);
    efs_pack_pipe_destroy(&pipe);
    return rc;
}
