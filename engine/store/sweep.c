/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - threads that each take the next shards, read their chunks with one or two large reads, hand them on. */
#include "sweep.h"

#include "sweep_read.h"
#include "parallel.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 256u
#define READING_THREADS 2u /* some wait for the disk */
#define MEMORY_BYTES (192u << 20)
#define BUFFER_BYTES_MAX (8u << 20)

struct sweep {
    const struct efs_sweep *asked;
    uint64_t total_bytes;
    size_t raw_bytes, buffer_bytes; /* of each thread, the former twice */
    struct efs_parallel parallel;   /* its lock guards cursor */
    struct efs_sweep_cursor cursor;
};

struct thread {
    struct sweep *sweep;
    uint8_t *buffer, *raw;
    struct efs_codec_scratch *scratch;
    struct efs_sweep_batch batch;
};

static bool sweep_take(struct sweep *s, struct efs_sweep_batch *batch)
{
    pthread_mutex_lock(&s->parallel.lock);
    bool taken = !s->parallel.stop && efs_sweep_take(s->asked->store, &s->cursor, s->buffer_bytes, batch);
    pthread_mutex_unlock(&s->parallel.lock);
    return taken;
}

static errint_t sweep_work(void *arg, struct efs_error *err)
{
    struct thread *t = arg;
    struct sweep *s = t->sweep;
    while (sweep_take(s, &t->batch)) {
        uint64_t bytes = 0;
        bool all = efs_sweep_read(s->asked->store, &t->batch, t->buffer);
        for (uint32_t i = 0; i < t->batch.count; i++) {
            struct efs_sweep_shard shard;
            efs_sweep_shard_at(s->asked->store, &t->batch, i, t->buffer, &shard);
            if (!all)
                efs_sweep_read_again(s->asked->store, &shard);
            errint_t rc = s->asked->each(s->asked->arg, &shard, t->scratch, t->raw, t->raw + s->raw_bytes, err);
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

/* Memory for the largest shard, and as much to read at once as MEMORY_BYTES leaves to each thread. */
static unsigned size_threads(struct sweep *s, unsigned asked)
{
    const struct efs_store *store = s->asked->store;
    size_t chunks = 1, raw = 1;
    for (uint32_t o = 0; o < store->object_count; o++) {
        const struct efs_disk_object *object = &store->objects[o];
        s->total_bytes += object->bytes;
        for (uint32_t i = object->shard_first; i < object->shard_first + object->shard_count; i++) {
            size_t room = efs_sweep_room(&store->shards[i]);
            size_t bytes =
                efs_store_shard_elements(store, object, i) * efs_format_bytes((enum efs_format)object->format);
            chunks = room > chunks ? room : chunks;
            raw = bytes > raw ? bytes : raw;
        }
    }
    s->raw_bytes = ((raw + EFS_ALIGN - 1) & ~(size_t)(EFS_ALIGN - 1)) + EFS_ALIGN;
    size_t fixed = 2 * s->raw_bytes + efs_codec_scratch_bytes(store->sb.shard_elements);
    unsigned threads = asked > THREADS_MAX ? THREADS_MAX : asked;
    s->buffer_bytes = chunks;
    return efs_parallel_fit(MEMORY_BYTES, fixed, &s->buffer_bytes, BUFFER_BYTES_MAX, threads + READING_THREADS);
}

static errint_t sweep_start(struct sweep *s, struct thread *threads, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        threads[i].sweep = s;
        threads[i].buffer = efs_sys_aligned_alloc(EFS_ALIGN, s->buffer_bytes);
        threads[i].raw = efs_sys_aligned_alloc(EFS_ALIGN, 2 * s->raw_bytes);
        errint_t rc = efs_codec_scratch_new(s->asked->store->sb.shard_elements, &threads[i].scratch);
        if (rc < 0 || !threads[i].buffer || !threads[i].raw)
            return -ENOMEM;
    }
    return efs_parallel_start(&s->parallel, "efs-sweep", sweep_work, threads, sizeof(*threads), count);
}

errint_t efs_sweep_run(const struct efs_sweep *asked, struct efs_error *err)
{
    struct sweep s = {.asked = asked};
    efs_parallel_begin(&s.parallel, NULL, NULL);
    unsigned count = size_threads(&s, asked->threads ? asked->threads : efs_cores());
    struct thread *threads = efs_sys_calloc(count, sizeof(*threads));
    errint_t rc = threads ? efs_sweep_cursor_init(asked->store, asked->part, &s.cursor) : -ENOMEM;
    if (rc == 0)
        rc = sweep_start(&s, threads, count);
    if (rc < 0)
        efs_parallel_fail(&s.parallel, rc, strerror(-rc));
    rc = efs_parallel_end(&s.parallel, asked->progress, asked->progress_arg, s.total_bytes, asked->phase, err);
    for (unsigned i = 0; threads && i < count; i++) {
        efs_codec_scratch_free(threads[i].scratch);
        free(threads[i].buffer);
        free(threads[i].raw);
    }
    free(threads);
    efs_sweep_cursor_free(&s.cursor);
    return rc;
}
