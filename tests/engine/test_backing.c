/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue on sources that are not a local file, by the interface of backing.h alone: bytes in memory; objects on
 * servers, where a read is split at the objects' borders and its parts complete on threads of the source, in any order;
 * a source that is slow, returns short reads and fails; a backing around one of them. Order, raising, cancelling, the
 * window and the bytes are the same on each, and a store is opened, verified, unpacked and served from each.
 */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "test.h"
#include "container.h"
#include "fixture.h"
#include "queue.h"
#include "stats.h"
#include "store.h"
#include "tree.h"

#define SOURCE_BYTES (8u << 20)
#define PARTS 1024u /* ring of parts that wait for a server */
#define SERVERS 3u
#define READS 200u

struct toy_read { /* a read in flight; its index is the slot's `own` */
    struct efs_backing_read *read;
    unsigned parts; /* not served yet */
    uint64_t end;   /* of the bytes that were read from its start on without a gap */
    errint_t error;
    struct toy_read *next;
};

struct toy {
    struct efs_backing b;
    const struct toy_kind *kind;
    const unsigned char *bytes;
    size_t size;
    uint64_t bad_begin, bad_end; /* reads of these bytes fail */
    pthread_mutex_t lock;        /* guards the rest */
    pthread_cond_t changed;
    bool held, closing;
    struct toy_read reads[EFS_IO_DEPTH_MAX], *ended;
    struct toy_part {
        struct toy_read *read;
        uint64_t offset;
        unsigned char *to;
        size_t bytes;
    } parts[PARTS];
    unsigned part_first, part_count, part_total, inflight, most_inflight, started_count;
    size_t inflight_bytes, most_bytes;
    uint64_t started[READS]; /* offsets of the first reads, in the order of submission */
    bool started_idle[READS];
    pthread_t servers[SERVERS];
};

static const struct toy_kind {
    const char *name;
    struct efs_backing_info info;
    size_t object_bytes; /* 0: one object */
    unsigned servers;    /* 0: wait() serves */
    bool slow_and_short;
    bool around; /* a backing around it is the queue's */
} kinds[] = {
    {"memory", {.align = 1, .best_bytes = 64u << 10, .depth = 8, .joins = true}, 0, 0, false, false},
    {"objects",
     {.align = 1, .best_bytes = 64u << 10, .max_bytes = 256u << 10, .depth = 64},
     96u << 10,
     SERVERS,
     false,
     false},
    {"slow", {.align = 1, .best_bytes = 32u << 10, .depth = 4, .joins = true}, 0, SERVERS, true, false},
    {"around slow", {.align = 1, .best_bytes = 32u << 10, .depth = 4, .joins = true}, 0, SERVERS, true, true},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct toy *toy_of(struct efs_backing *b)
{
    return EFS_CONTAINER(b, struct toy, b);
}

/* With the lock: cuts a buffer at the borders of objects. */
static void toy_cut(struct toy *t, struct toy_read *r, uint64_t offset, struct iovec buffer)
{
    size_t object = t->kind->object_bytes ? t->kind->object_bytes : SIZE_MAX;
    for (size_t done = 0, bytes; done < buffer.iov_len; done += bytes) {
        uint64_t left = object - (offset + done) % object;
        bytes = buffer.iov_len - done < left ? buffer.iov_len - done : (size_t)left;
        if (t->part_count == PARTS)
            abort();
        t->parts[(t->part_first + t->part_count++) % PARTS] =
            (struct toy_part){r, offset + done, (unsigned char *)buffer.iov_base + done, bytes};
        t->part_total++;
        r->parts++;
    }
}

static void toy_submit(struct efs_backing *b, struct efs_backing_read *read)
{
    struct toy *t = toy_of(b);
    uint64_t offset = read->offset;
    pthread_mutex_lock(&t->lock);
    unsigned i = 0;
    while (t->reads[i].read)
        i++;
    struct toy_read *r = &t->reads[i];
    *r = (struct toy_read){.read = read, .end = offset + read->bytes};
    read->own = i;
    for (unsigned n = 0; n < read->buffer_count; offset += read->buffers[n++].iov_len)
        toy_cut(t, r, offset, read->buffers[n]);
    if (offset != read->offset + read->bytes)
        abort();
    if (t->started_count < READS)
        t->started_idle[t->started_count] = read->idle, t->started[t->started_count++] = read->offset;
    t->inflight_bytes += read->bytes;
    t->most_bytes = t->inflight_bytes > t->most_bytes ? t->inflight_bytes : t->most_bytes;
    t->most_inflight = ++t->inflight > t->most_inflight ? t->inflight : t->most_inflight;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* With the lock. */
static struct toy_part toy_next_part(struct toy *t)
{
    t->part_count--;
    return t->parts[t->part_first++ % PARTS];
}

/* Without the lock. Returns the bytes read, or -errno. */
static ssize_t toy_serve(const struct toy *t, const struct toy_part *p)
{
    size_t left = p->offset < t->size ? t->size - (size_t)p->offset : 0, bytes = p->bytes < left ? p->bytes : left;
    if (t->kind->slow_and_short) {
        usleep(200);
        bytes = bytes > 10000 && p->offset % 3 == 0 ? bytes / 2 : bytes;
    }
    if (p->offset < t->bad_end && p->offset + bytes > t->bad_begin)
        return -EIO;
    if (bytes)
        memcpy(p->to, t->bytes + p->offset, bytes);
    return (ssize_t)bytes;
}

/* With the lock. A read ends at its first part that is short, also if later parts are complete. */
static void toy_part_ended(struct toy *t, const struct toy_part *p, ssize_t result)
{
    struct toy_read *r = p->read;
    if (result < 0)
        r->error = (errint_t)result;
    else if ((size_t)result < p->bytes && p->offset + (size_t)result < r->end)
        r->end = p->offset + (size_t)result;
    if (--r->parts > 0)
        return;
    r->next = t->ended;
    t->ended = r;
}

static void *toy_server(void *arg)
{
    struct toy *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->closing && (t->held || t->part_count == 0))
            pthread_cond_wait(&t->changed, &t->lock);
        if (t->closing)
            break;
        struct toy_part p = toy_next_part(t);
        if (!p.read) /* cancelled */
            continue;
        pthread_mutex_unlock(&t->lock);
        ssize_t result = toy_serve(t, &p);
        uint64_t one = 1;
        pthread_mutex_lock(&t->lock);
        toy_part_ended(t, &p, result);
        if (write(t->b.wake_fd, &one, sizeof(one)) != sizeof(one))
            abort();
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* With the lock, which is released for the report. */
static void toy_report(struct toy *t, struct toy_read *r)
{
    struct efs_backing_read *read = r->read;
    ssize_t result = r->error ? r->error : (ssize_t)(r->end - read->offset);
    r->read = NULL;
    t->inflight--;
    t->inflight_bytes -= read->bytes;
    pthread_mutex_unlock(&t->lock);
    efs_backing_read_ended(&t->b, read, result);
    pthread_mutex_lock(&t->lock);
}

static void toy_wait(struct efs_backing *b)
{
    struct toy *t = toy_of(b);
    uint64_t value;
    pthread_mutex_lock(&t->lock);
    while (t->kind->servers == 0 && t->part_count > 0) {
        struct toy_part p = toy_next_part(t);
        toy_part_ended(t, &p, toy_serve(t, &p));
    }
    if (!t->ended) {
        pthread_mutex_unlock(&t->lock);
        if (read(b->wake_fd, &value, sizeof(value)) != sizeof(value))
            abort();
        pthread_mutex_lock(&t->lock);
    }
    struct toy_read *ended = t->ended;
    t->ended = NULL;
    for (struct toy_read *next; ended; ended = next) {
        next = ended->next;
        toy_report(t, ended);
    }
    pthread_mutex_unlock(&t->lock);
}

/* Cancels a read whose parts all wait for a server. */
static bool toy_cancel(struct efs_backing *b, struct efs_backing_read *read)
{
    struct toy *t = toy_of(b);
    struct toy_read *r = &t->reads[read->own];
    unsigned waiting = 0;
    pthread_mutex_lock(&t->lock);
    for (unsigned i = 0; i < t->part_count; i++)
        waiting += t->parts[(t->part_first + i) % PARTS].read == r;
    bool cancelled = r->read == read && waiting > 0 && waiting == r->parts && t->kind->servers > 0;
    for (unsigned i = 0; cancelled && i < t->part_count; i++)
        if (t->parts[(t->part_first + i) % PARTS].read == r)
            t->parts[(t->part_first + i) % PARTS].read = NULL;
    if (cancelled) {
        r->read = NULL;
        t->inflight--;
        t->inflight_bytes -= read->bytes;
    }
    pthread_mutex_unlock(&t->lock);
    return cancelled;
}

static void toy_close(struct efs_backing *b, bool in_child)
{
    struct toy *t = toy_of(b);
    (void)in_child;
    pthread_mutex_lock(&t->lock);
    t->closing = true;
    if (t->inflight > 0)
        abort();
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < t->kind->servers; i++)
        pthread_join(t->servers[i], NULL);
}

/* ---- a backing around a second one, with reads of its own ---- */

struct around {
    struct efs_backing b, *inner;
    unsigned reported;
    struct around_read {
        struct efs_backing_read inner, *outer;
    } reads[EFS_IO_DEPTH_MAX];
};

static struct around *around_of(struct efs_backing *b)
{
    return EFS_CONTAINER(b, struct around, b);
}

static void around_ended(void *owner, struct efs_backing_read *read, ssize_t result)
{
    struct around *a = owner;
    struct around_read *r = EFS_CONTAINER(read, struct around_read, inner);
    struct efs_backing_read *outer = r->outer;
    r->outer = NULL;
    a->reported++;
    a->b.info.depth = a->inner->info.depth;
    if (result == -EIO && a->b.say)
        a->b.say(a->b.say_arg, "toy: out of order\nhint: play elsewhere");
    efs_backing_read_ended(&a->b, outer, result);
}

static void around_start(struct efs_backing *b)
{
    struct around *a = around_of(b);
    efs_backing_start_inner(a->inner, b, around_ended, a);
    b->info.depth = a->inner->info.depth;
}

static void around_submit(struct efs_backing *b, struct efs_backing_read *read)
{
    struct around *a = around_of(b);
    unsigned i = 0;
    while (a->reads[i].outer)
        i++;
    a->reads[i].inner = *read;
    a->reads[i].inner.segment = EFS_NONE;
    a->reads[i].outer = read;
    read->own = i;
    a->inner->ops->submit(a->inner, &a->reads[i].inner);
}

static void around_wait(struct efs_backing *b)
{
    struct around *a = around_of(b);
    a->inner->ops->wait(a->inner);
}

static bool around_cancel(struct efs_backing *b, struct efs_backing_read *read)
{
    struct around *a = around_of(b);
    struct around_read *r = &a->reads[read->own];
    bool cancelled = a->inner->ops->cancel && a->inner->ops->cancel(a->inner, &r->inner);
    if (cancelled)
        r->outer = NULL;
    return cancelled;
}

static void around_close(struct efs_backing *b, bool in_child)
{
    struct around *a = around_of(b);
    a->inner->ops->close(a->inner, in_child);
    free(a);
}

static struct efs_backing *around(struct efs_backing *inner)
{
    static const struct efs_backing_ops ops = {.start = around_start,
                                               .submit = around_submit,
                                               .wait = around_wait,
                                               .cancel = around_cancel,
                                               .close = around_close};
    struct around *a = calloc(1, sizeof(*a));
    assert_non_null(a);
    assert_non_null(inner);
    a->b = (struct efs_backing){.ops = &ops, .info = inner->info, .direct_fd = -1};
    a->b.info.registers = false;
    a->inner = inner;
    return &a->b;
}

/* ---- a queue on a source ---- */

struct line {
    struct toy toy; /* the test owns it: it looks at it after close() */
    struct efs_stats_counters stats;
    struct efs_io_queue *queue;
    sem_t ended, held, go; /* complete() of `holder` blocks */
    struct test_read {
        struct efs_io io;
        struct line *line;
        errint_t error;
        unsigned char *to;
    } holder, reads[READS];
};

static void toy_hold(struct toy *t, bool held)
{
    pthread_mutex_lock(&t->lock);
    t->held = held;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* A source of bytes; *backing: it, or one around it. Its servers must be started before it is read. */
static void toy_begin(struct toy *t, const struct toy_kind *kind, const unsigned char *bytes, size_t size,
                      struct efs_backing **backing)
{
    static const struct efs_backing_ops ops = {
        .submit = toy_submit, .wait = toy_wait, .cancel = toy_cancel, .close = toy_close};
    *t = (struct toy){
        .b = {.ops = &ops, .info = kind->info, .direct_fd = -1}, .kind = kind, .bytes = bytes, .size = size};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    for (unsigned i = 0; i < kind->servers; i++)
        assert_int_equal(pthread_create(&t->servers[i], NULL, toy_server, t), 0);
    *backing = kind->around ? around(&t->b) : &t->b;
}

static void toy_end(struct toy *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
}

static struct line *line_begin(const struct toy_kind *kind, const unsigned char *bytes, size_t size)
{
    struct line *l = calloc(1, sizeof(*l));
    struct efs_backing *backing;
    assert_non_null(l);
    toy_begin(&l->toy, kind, bytes, size, &backing);
    sem_init(&l->ended, 0, 0);
    sem_init(&l->held, 0, 0);
    sem_init(&l->go, 0, 0);
    const struct efs_io_options options = {.backing = backing, .stats = &l->stats};
    assert_int_equal(efs_io_queue_start(&options, &l->queue), 0);
    return l;
}

static void line_free(struct line *l)
{
    efs_io_queue_free(l->queue);
    toy_end(&l->toy);
    sem_destroy(&l->ended);
    sem_destroy(&l->held);
    sem_destroy(&l->go);
    for (unsigned i = 0; i < READS; i++)
        free(l->reads[i].to);
    free(l->holder.to);
    free(l);
}

static void line_end(struct line *l)
{
    efs_io_queue_stop(l->queue);
    line_free(l);
}

static void read_ended(struct efs_io *io, errint_t error)
{
    struct test_read *r = EFS_CONTAINER(io, struct test_read, io);
    struct line *l = r->line;
    r->error = error;
    if (r == &l->holder) {
        sem_post(&l->held);
        sem_wait(&l->go);
    } else {
        sem_post(&l->ended);
    }
}

static void submit(struct line *l, struct test_read *r, uint64_t offset, size_t bytes, enum efs_io_class class)
{
    *r = (struct test_read){.line = l, .to = malloc(bytes)};
    assert_non_null(r->to);
    r->io = (struct efs_io){
        .offset = offset, .bytes = bytes, .data = r->to, .segment = EFS_NONE, .class = class, .complete = read_ended};
    efs_io_submit(l->queue, &r->io);
}

static void change(struct line *l, unsigned i, enum efs_io_change to)
{
    atomic_store(&l->reads[i].io.change, to);
    efs_io_apply_changes(l->queue);
}

static void line_wait(struct line *l, unsigned reads)
{
    while (reads > 0)
        reads -= sem_wait(&l->ended) == 0;
}

static void check_bytes(const struct line *l, const struct test_read *r)
{
    assert_int_equal(r->error, 0);
    assert_memory_equal(r->to, l->toy.bytes + r->io.offset, r->io.bytes);
}

static unsigned char *source;

static int setup(void **state)
{
    (void)state;
    source = fixture_noise(SOURCE_BYTES);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(source);
    return 0;
}

/* The I/O thread is blocked while the reads are queued and changed. */
TEST(order_raise_and_cancel)
{
    for (unsigned k = 0; k < KINDS; k++) {
        struct line *l = line_begin(&kinds[k], source, SOURCE_BYTES);
        submit(l, &l->holder, 0, 10, EFS_IO_DEMAND);
        sem_wait(&l->held);
        submit(l, &l->reads[0], 1001, 500, EFS_IO_IDLE);
        submit(l, &l->reads[1], 2002, 500, EFS_IO_AHEAD);
        submit(l, &l->reads[2], 3003, 500, EFS_IO_DEMAND);
        submit(l, &l->reads[3], 4004, 500, EFS_IO_IDLE);
        submit(l, &l->reads[4], 5005, 500, EFS_IO_AHEAD);
        submit(l, &l->reads[5], 6006, 500, EFS_IO_IDLE);
        change(l, 3, EFS_IO_RAISE);
        change(l, 4, EFS_IO_CANCEL);
        change(l, 5, EFS_IO_CANCEL);
        sem_post(&l->go);
        line_wait(l, 6);
        static const unsigned order[] = {2, 3, 1, 0};
        assert_int_equal(l->toy.started_count, 1 + 4);
        for (unsigned i = 0; i < 4; i++) {
            assert_int_equal(l->toy.started[1 + i], l->reads[order[i]].io.offset);
            assert_int_equal(l->toy.started_idle[1 + i], order[i] == 0); /* not the one that was raised */
            check_bytes(l, &l->reads[order[i]]);
        }
        assert_int_equal(l->reads[4].error, -ECANCELED);
        assert_int_equal(l->reads[5].error, -ECANCELED);
        assert_true(l->reads[0].io.begin_ns >= l->reads[1].io.end_ns); /* idle reads start last */
        assert_int_equal(atomic_load(&l->stats.disk_errors), 0);
        line_end(l);
    }
}

/* A source that can cancel a read in flight does, and its other reads go on. */
TEST(cancel_in_flight)
{
    for (unsigned k = 0; k < KINDS; k++) {
        if (kinds[k].servers == 0)
            continue;
        struct line *l = line_begin(&kinds[k], source, SOURCE_BYTES);
        toy_hold(&l->toy, true);
        submit(l, &l->reads[0], 77, 100, EFS_IO_AHEAD);
        submit(l, &l->reads[1], 100000, 100, EFS_IO_DEMAND);
        pthread_mutex_lock(&l->toy.lock);
        while (l->toy.inflight < 2)
            pthread_cond_wait(&l->toy.changed, &l->toy.lock);
        pthread_mutex_unlock(&l->toy.lock);
        change(l, 1, EFS_IO_CANCEL); /* demand is not cancelled */
        change(l, 0, EFS_IO_CANCEL);
        line_wait(l, 1); /* while the source answers nothing */
        assert_int_equal(l->reads[0].error, -ECANCELED);
        toy_hold(&l->toy, false);
        line_wait(l, 1);
        check_bytes(l, &l->reads[1]);
        line_end(l);
    }
}

/* Reads that no thread waits for do not delay the end: one in flight of a silent source, two submitted later. */
TEST(cancel_at_the_end)
{
    for (unsigned k = 0; k < 2 * KINDS; k++) {
        const enum efs_io_class class = k % 2 ? EFS_IO_IDLE : EFS_IO_AHEAD;
        if (kinds[k / 2].servers == 0)
            continue;
        struct line *l = line_begin(&kinds[k / 2], source, SOURCE_BYTES);
        toy_hold(&l->toy, true);
        submit(l, &l->reads[0], 77, 100, class);
        pthread_mutex_lock(&l->toy.lock);
        while (l->toy.inflight == 0)
            pthread_cond_wait(&l->toy.changed, &l->toy.lock);
        pthread_mutex_unlock(&l->toy.lock);
        efs_io_queue_cancel(l->queue);
        submit(l, &l->reads[1], 5000, 100, EFS_IO_IDLE);
        submit(l, &l->reads[2], 10000, 100, EFS_IO_AHEAD);
        line_wait(l, 3);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(l->reads[i].error, -ECANCELED);
        toy_hold(&l->toy, false);
        line_end(l);
    }
}

/* The end comes while the last reads are cancelled: the I/O thread waits for nothing more. */
TEST(end_after_the_last_was_cancelled)
{
    for (unsigned round = 0; round < 100; round++) {
        struct line *l = line_begin(&kinds[round % KINDS], source, SOURCE_BYTES);
        efs_io_queue_cancel(l->queue);
        for (unsigned i = 0; i < round % 3 + 1; i++)
            submit(l, &l->reads[i], i * 5000, 100, EFS_IO_IDLE);
        efs_io_queue_stop(l->queue);
        for (unsigned i = 0; i < round % 3 + 1; i++)
            assert_int_equal(l->reads[i].error, -ECANCELED);
        line_free(l);
    }
}

/* Reads of any offset and length, many at once: right bytes, or the error of the source for exactly those that touch
 * the bad bytes. In flight: at most info.depth reads, and 8 times info.best_bytes before the last read starts. */
TEST(bytes_errors_and_window)
{
    for (unsigned k = 0; k < KINDS; k++) {
        struct line *l = line_begin(&kinds[k], source, SOURCE_BYTES);
        size_t largest = 0;
        uint64_t random = 7;
        unsigned failed = 0;
        l->toy.bad_begin = SOURCE_BYTES / 2;
        l->toy.bad_end = SOURCE_BYTES / 2 + 100000;
        for (unsigned i = 0; i < READS; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t bytes = 1 + (random >> 40) % (i % 8 ? 20000 : 300000);
            uint64_t offset = (random >> 20) % (SOURCE_BYTES - bytes);
            if (i % 5 == 4 && l->reads[i - 1].io.offset + l->reads[i - 1].io.bytes + bytes < SOURCE_BYTES)
                offset = l->reads[i - 1].io.offset + l->reads[i - 1].io.bytes; /* a neighbour */
            largest = bytes > largest ? bytes : largest;
            submit(l, &l->reads[i], offset, bytes,
                   i % 7 == 6   ? EFS_IO_IDLE
                   : i % 7 == 5 ? EFS_IO_AHEAD
                                : EFS_IO_DEMAND);
        }
        line_wait(l, READS);
        for (unsigned i = 0; i < READS; i++) {
            const struct efs_io *io = &l->reads[i].io;
            if (io->offset < l->toy.bad_end && io->offset + io->bytes > l->toy.bad_begin) {
                assert_int_equal(l->reads[i].error, -EIO);
                failed++;
            } else {
                check_bytes(l, &l->reads[i]);
            }
        }
        assert_in_range(failed, 1, READS / 4);
        assert_int_equal(atomic_load(&l->stats.disk_errors), failed);
        assert_true(l->toy.most_inflight <= kinds[k].info.depth);
        assert_true(l->toy.most_bytes <= 8 * (size_t)kinds[k].info.best_bytes + largest);
        assert_true(l->toy.part_total > atomic_load(&l->stats.disk_reads) || !kinds[k].object_bytes);
        line_end(l);
    }
}

/* The end of the source, and lengths that its align excludes. */
TEST(reads_that_block)
{
    for (unsigned k = 0; k < KINDS; k++) {
        struct line *l = line_begin(&kinds[k], source, SOURCE_BYTES);
        unsigned char to[3000];
        assert_int_equal(efs_io_read_sync(l->queue, 123457, to, sizeof(to)), 0);
        assert_memory_equal(to, source + 123457, sizeof(to));
        unsigned char *long_to = malloc(SOURCE_BYTES);
        assert_non_null(long_to);
        assert_int_equal(efs_io_read_sync(l->queue, 0, long_to, SOURCE_BYTES), 0); /* in pieces */
        assert_memory_equal(long_to, source, SOURCE_BYTES);
        assert_true(atomic_load(&l->stats.disk_reads) >= SOURCE_BYTES / kinds[k].info.best_bytes);
        assert_int_equal(efs_io_read_sync(l->queue, 1, long_to, SOURCE_BYTES), -EIO);
        free(long_to);
        assert_int_equal(efs_io_read_sync(l->queue, SOURCE_BYTES - 1, to, 2), -EIO);
        assert_int_equal(efs_io_read_sync(l->queue, 0, to, 0), 0);
        line_end(l);
    }
    struct toy_kind pages = kinds[0];
    pages.info.align = 4096;
    struct line *l = line_begin(&pages, source, SOURCE_BYTES);
    unsigned char to[4096];
    assert_int_equal(efs_io_read_sync(l->queue, 8192, to, sizeof(to)), 0);
    assert_memory_equal(to, source + 8192, sizeof(to));
    assert_int_equal(efs_io_read_sync(l->queue, 8192, to, 100), -EINVAL);
    assert_int_equal(efs_io_read_sync(l->queue, 100, to, 4096), -EINVAL);
    line_end(l);
}

/* Superblock, index and chunks of a store are read through the interface, and are what the file has. */
TEST(store_is_opened)
{
    struct fixture model;
    struct efs_error err = {""};
    struct efs_store *file, *store;
    struct efs_store_info a, b;
    size_t bytes;
    fixture_store(&model, 2, 3, 64, 128);
    unsigned char *image = fixture_read(model.store, &bytes);
    assert_int_equal(efs_store_open(model.store, &file, &err), 0);
    efs_store_info(file, &a);
    for (unsigned k = 0; k < KINDS; k++) {
        struct line *l = line_begin(&kinds[k], image, bytes);
        uint64_t damaged = 1;
        assert_int_equal(efs_store_open_from("toy", bytes, efs_io_read_sync, l->queue, &store, &err), 0);
        efs_store_info(store, &b);
        assert_int_equal(b.content_hash, a.content_hash);
        assert_int_equal(b.shards, a.shards);
        assert_int_equal(efs_store_verify(store, true, 2, NULL, NULL, NULL, &damaged, &err), 0);
        assert_int_equal(damaged, 0);
        efs_store_close(store);
        l->toy.bad_begin = file->sb.tables[0].offset;
        l->toy.bad_end = l->toy.bad_begin + 1;
        assert_int_equal(efs_store_open_from("toy", bytes, efs_io_read_sync, l->queue, &store, &err), -EIO);
        assert_non_null(strstr(err.text, "toy: cannot read the index"));
        assert_int_equal(efs_store_open_from("toy", 100, efs_io_read_sync, l->queue, &store, &err), -EUCLEAN);
        line_end(l);
    }
    efs_store_close(file);
    free(image);
    fixture_end(&model);
}

/* All readers of a store by one backing: superblock, tables, verify, unpack; then the engine, which takes the backing
 * over: whole files, small reads, experts. */
static void serve(const struct fixture *model, struct efs_backing *backing, size_t bytes)
{
    const struct stat st = {.st_mode = 0444, .st_dev = 77};
    const struct efs_options options = {.workers = 2, .budget_bytes = 64u << 20, .no_state = true};
    struct efs_error err = {""};
    struct efs_store *store;
    struct efs_store_info info;
    struct efs *fs;
    uint64_t damaged = 1;
    char out[400];
    assert_int_equal(efs_store_open_backing("toy", bytes, &st, backing, &store, &err), 0);
    efs_store_info(store, &info);
    assert_int_equal(info.device, 77);
    assert_int_equal(info.mode, 0444);
    assert_int_equal(efs_store_verify(store, true, 2, NULL, NULL, NULL, &damaged, &err), 0);
    assert_int_equal(damaged, 0);
    snprintf(out, sizeof(out), "%s/out", model->directory);
    assert_int_equal(efs_store_unpack(store, out, false, 2, NULL, NULL, &err), 0);
    assert_true(tree_same_bytes(model->source, out));
    tree_remove(out);
    assert_int_equal(efs_open_store(store, &options, &fs, &err), 0);
    assert_true(fixture_check_files(model, fs) > 0);
    assert_int_equal(
        efs_store_verify((struct efs_store *)(uintptr_t)efs_get_store(fs), true, 2, NULL, NULL, NULL, &damaged, &err),
        0); /* by the engine's queue */
    struct efs_stats stats = fixture_drain(fs);
    assert_true(stats.disk_reads > 0);
    efs_close(fs);
}

TEST(store_is_served)
{
    struct fixture model;
    size_t bytes;
    fixture_store(&model, 2, 3, 64, 128);
    unsigned char *image = fixture_read(model.store, &bytes);
    for (unsigned k = 0; k < KINDS; k++) {
        struct toy toy;
        struct efs_backing *backing;
        toy_begin(&toy, &kinds[k], image, bytes, &backing);
        serve(&model, backing, bytes);
        toy_end(&toy);
    }
    /* a file, whose reads are whole pages, alone and in another backing */
    int fd = open(model.store, O_RDONLY), direct = open(model.store, O_RDONLY | O_DIRECT);
    assert_true(fd >= 0);
    const struct efs_backing_file_options file = {.fd = direct >= 0 ? direct : fd, .buffered_fd = fd};
    serve(&model, efs_backing_file_new(&file), bytes);
    serve(&model, around(efs_backing_file_new(&file)), bytes);
    if (direct >= 0)
        close(direct);
    close(fd);
    free(image);
    fixture_end(&model);
}

/* What cannot be opened closes the backing. */
TEST(not_a_store)
{
    const struct stat st = {.st_mode = 0444};
    struct efs_store *store;
    struct efs_error err = {""};
    for (unsigned k = 0; k < KINDS; k++) {
        struct toy toy;
        struct efs_backing *backing;
        toy_begin(&toy, &kinds[k], source, SOURCE_BYTES, &backing);
        assert_int_equal(efs_store_open_backing("toy", SOURCE_BYTES, &st, backing, &store, &err), -EUCLEAN);
        assert_true(toy.closing);
        assert_null(store);
        toy_end(&toy);
        toy_begin(&toy, &kinds[k], source, SOURCE_BYTES, &backing);
        toy.bad_end = SOURCE_BYTES;
        assert_int_equal(efs_store_open_backing("toy", SOURCE_BYTES, &st, backing, &store, &err), -EIO);
        assert_int_equal(strcmp(err.text, "toy: out of order\nhint: play elsewhere") == 0, kinds[k].around);
        toy_end(&toy);
    }
    assert_int_equal(efs_store_open_backing("toy", SOURCE_BYTES, &st, NULL, &store, &err), -ENOMEM);
}

TEST_MAIN(setup, teardown)
