/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - threads that each take the next shards, read their chunks with one or two large reads, hand them on. */
#include "sweep.h"

#include "sweep_read.h"
#include "sys.h"
#include "tick.h"
#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
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
    pthread_mutex_t lock;           /* guards all that follows */
    pthread_cond_t changed;         /* a thread ended */
    struct efs_sweep_cursor cursor;
    uint64_t done_bytes;
    unsigned running;
    bool stop;
    errint_t rc;
    struct efs_error err;
};

struct thread {
    struct sweep *sweep;
    unsigned long id;
    bool started;
    uint8_t *buffer, *raw;
    struct efs_codec_scratch *scratch;
    struct efs_sweep_batch batch;
};

unsigned efs_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (unsigned)n : 1;
}

static void sweep_fail(struct sweep *s, errint_t rc, const char *text)
{
    pthread_mutex_lock(&s->lock);
    if (s->rc == 0) {
        s->rc = rc;
        efs_fail(&s->err, rc, "%s", text);
    }
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static bool sweep_take(struct sweep *s, struct efs_sweep_batch *batch)
{
    pthread_mutex_lock(&s->lock);
    bool taken = !s->stop && efs_sweep_take(s->asked->store, &s->cursor, s->buffer_bytes, batch);
    pthread_mutex_unlock(&s->lock);
    return taken;
}

static errint_t sweep_work(struct thread *t, struct efs_error *err)
{
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
        pthread_mutex_lock(&s->lock);
        s->done_bytes += bytes;
        pthread_mutex_unlock(&s->lock);
    }
    return 0;
}

static void *sweep_thread(void *arg)
{
    struct thread *t = arg;
    struct efs_error err = {""};
    errint_t rc = sweep_work(t, &err);
    if (rc < 0)
        sweep_fail(t->sweep, rc, err.text);
    pthread_mutex_lock(&t->sweep->lock);
    t->sweep->running--;
    pthread_cond_broadcast(&t->sweep->changed);
    pthread_mutex_unlock(&t->sweep->lock);
    return NULL;
}

static void sweep_watch(struct sweep *s)
{
    const struct efs_sweep *asked = s->asked;
    pthread_mutex_lock(&s->lock);
    while (s->running > 0) {
        if (!efs_tick_wait(&s->changed, &s->lock) || !asked->progress || s->stop)
            continue;
        uint64_t done = s->done_bytes;
        pthread_mutex_unlock(&s->lock);
        if (asked->progress(asked->progress_arg, done, s->total_bytes, asked->phase))
            sweep_fail(s, -ECANCELED, "interrupted");
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
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
    size_t most = MEMORY_BYTES / (fixed + chunks);
    unsigned threads = asked > THREADS_MAX ? THREADS_MAX : asked;
    threads += READING_THREADS;
    if (threads > most)
        threads = most > 1 ? (unsigned)most : 1;
    size_t each = MEMORY_BYTES / threads, buffer = each > fixed ? (each - fixed) & ~(size_t)(EFS_ALIGN - 1) : 0;
    if (buffer > BUFFER_BYTES_MAX)
        buffer = BUFFER_BYTES_MAX;
    s->buffer_bytes = buffer > chunks ? buffer : chunks;
    return threads;
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
    for (unsigned i = 0; i < count; i++) {
        pthread_mutex_lock(&s->lock);
        s->running++;
        pthread_mutex_unlock(&s->lock);
        errint_t rc = efs_thread_start(sweep_thread, &threads[i], "efs-sweep", &threads[i].id);
        if (rc < 0) {
            pthread_mutex_lock(&s->lock);
            s->running--;
            pthread_mutex_unlock(&s->lock);
            return i > 0 ? 0 : rc; /* fewer will do */
        }
        threads[i].started = true;
    }
    return 0;
}

errint_t efs_sweep_run(const struct efs_sweep *asked, struct efs_error *err)
{
    struct sweep s = {.asked = asked};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    unsigned count = size_threads(&s, asked->threads ? asked->threads : efs_cores());
    struct thread *threads = efs_sys_calloc(count, sizeof(*threads));
    errint_t rc = threads ? efs_sweep_cursor_init(asked->store, asked->part, &s.cursor) : -ENOMEM;
    if (rc == 0)
        rc = sweep_start(&s, threads, count);
    if (rc < 0)
        sweep_fail(&s, rc, strerror(-rc));
    sweep_watch(&s);
    for (unsigned i = 0; threads && i < count; i++) {
        if (threads[i].started)
            pthread_join(threads[i].id, NULL);
        efs_codec_scratch_free(threads[i].scratch);
        free(threads[i].buffer);
        free(threads[i].raw);
    }
    free(threads);
    efs_sweep_cursor_free(&s.cursor);
    pthread_mutex_destroy(&s.lock);
    pthread_cond_destroy(&s.changed);
    return s.rc < 0 ? efs_fail(err, s.rc, "%s", s.err.text) : 0;
}
