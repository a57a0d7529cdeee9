/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - see queue.h. Demand precedes read-ahead, and read-ahead precedes idle reads. At most about a window of
 * bytes is in flight, so that a late demand read does not queue behind a long read-ahead.
 */
#include "queue_join.h"

#include "expertfs-clock-private.h"
#include "container.h"
#include "estimator.h"
#include "layout.h"
#include "stats.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WINDOW_READS 8u  /* of info.best_bytes */
#define BURST_WINDOWS 4u /* limit of a burst on a disk that is never idle */

struct efs_io_queue {
    struct efs_io_options o;
    struct efs_backing *b;
    pthread_mutex_t lock; /* guards incoming, sleeping, stop, keep_backing, changed */
    struct efs_io_list incoming;
    bool sleeping, stop, changed;
    bool keep_backing; /* it is not closed at the end */
    unsigned long thread;
    int wake_fd;
    /* used by the I/O thread only: */
    bool may_sleep; /* sleeping was set since the thread last reset it */
    struct efs_io_list classes[EFS_IO_CLASSES];
    size_t window_bytes, inflight_bytes, idle_bytes; /* idle_bytes: bytes of idle reads among inflight_bytes */
    unsigned inflight, idle_inflight;
    _Atomic bool ends;     /* set by other threads: reads that no thread waits for are cancelled */
    _Atomic bool has_idle; /* for other threads: idle reads were queued or in flight */
    uint64_t busy_since_ns;
    struct efs_rates_burst burst; /* measured since busy_since_ns */
    bool burst_discarded;
    unsigned burst_depth;                             /* info.depth at the start */
    struct efs_backing_read *slots[EFS_IO_DEPTH_MAX]; /* the first `inflight` are in flight, the rest is free */
    struct efs_backing_read reads[EFS_IO_DEPTH_MAX];
};

/* ---- order ---- */

/* The list for a read. A read raised before it was queued is demand from the start. */
static struct efs_io_list *queue_list_of(struct efs_io_queue *q, struct efs_io *io)
{
    if (atomic_load(&io->change) == EFS_IO_RAISE)
        io->class = EFS_IO_DEMAND;
    return &q->classes[io->class];
}

static void queue_finish(struct efs_io_queue *q, struct efs_io *io, errint_t error)
{
    if (error < 0 && error != -ECANCELED)
        efs_count(q->o.stats, disk_errors, 1);
    io->end_ns = efs_now_ns();
    io->complete(io, error);
}

/* Whether the read was cancelled, perhaps before it was queued, or by the end of the queue. Demand is not cancelled. */
static bool io_is_cancelled(const struct efs_io_queue *q, const struct efs_io *io)
{
    const enum efs_io_change change = atomic_load(&io->change);
    return io->class != EFS_IO_DEMAND && (change == EFS_IO_CANCEL || (atomic_load(&q->ends) && change != EFS_IO_RAISE));
}

/* Applies changes to the reads of a list: raised reads are appended to the demand list, cancelled reads complete. */
static void queue_apply_list(struct efs_io_queue *q, struct efs_io_list *list)
{
    struct efs_io_list all = *list;
    struct efs_io *io;
    all.tail = all.head ? all.tail : &all.head;
    efs_io_list_init(list);
    while ((io = efs_io_pop(&all)))
        if (io_is_cancelled(q, io))
            queue_finish(q, io, -ECANCELED);
        else
            efs_io_push(queue_list_of(q, io), io);
}

/* Cancels reads in flight, where the backing can. */
static void queue_apply_in_flight(struct efs_io_queue *q)
{
    for (unsigned i = q->b->ops->cancel ? q->inflight : 0; i-- > 0;)
        if (io_is_cancelled(q, q->slots[i]->first) && q->b->ops->cancel(q->b, q->slots[i]))
            efs_backing_read_ended(q->b, q->slots[i], -ECANCELED);
}

/* Moves incoming requests to their lists. Returns true if the thread may exit; otherwise, submitters must wake it. */
static bool queue_collect(struct efs_io_queue *q)
{
    struct efs_io *io;
    pthread_mutex_lock(&q->lock);
    while (q->changed) {
        q->changed = false;
        pthread_mutex_unlock(&q->lock);
        queue_apply_list(q, &q->classes[EFS_IO_AHEAD]);
        queue_apply_list(q, &q->classes[EFS_IO_IDLE]);
        queue_apply_in_flight(q);
        pthread_mutex_lock(&q->lock);
    }
    while ((io = efs_io_pop(&q->incoming)))
        efs_io_push(queue_list_of(q, io), io);
    bool idle = q->inflight == 0 && !q->classes[EFS_IO_DEMAND].head && !q->classes[EFS_IO_AHEAD].head &&
                !q->classes[EFS_IO_IDLE].head;
    q->sleeping = q->may_sleep = true;
    atomic_store_explicit(&q->has_idle, q->idle_inflight > 0 || q->classes[EFS_IO_IDLE].head, memory_order_relaxed);
    bool end = q->stop && idle;
    pthread_mutex_unlock(&q->lock);
    return end;
}

/* The list whose first read is next; NULL: none may be submitted now. */
static struct efs_io_list *queue_next(struct efs_io_queue *q)
{
    if (q->classes[EFS_IO_DEMAND].head || q->classes[EFS_IO_AHEAD].head)
        return &q->classes[q->classes[EFS_IO_DEMAND].head ? EFS_IO_DEMAND : EFS_IO_AHEAD];
    struct efs_io_list *idle = &q->classes[EFS_IO_IDLE];
    bool alone = q->inflight == q->idle_inflight;
    bool fits = !q->idle_inflight || (idle->head && q->idle_bytes + idle->head->bytes <= EFS_IO_IDLE_BYTES);
    return idle->head && alone && fits ? idle : NULL;
}

/* ---- bursts: from the first read on an idle disk until it is idle again, or until BURST_WINDOWS ---- */

static void burst_read(struct efs_io_queue *q, size_t bytes, bool discard)
{
    struct efs_rates_burst *b = &q->burst;
    if (b->reads++ == 0) {
        b->first_bytes = bytes;
        b->first_ns = efs_now_ns() - q->busy_since_ns;
    }
    b->bytes += bytes;
    q->burst_discarded = q->burst_discarded || discard;
}

static void burst_end(struct efs_io_queue *q)
{
    uint64_t now = efs_now_ns(), by_bytes = (q->burst.bytes + q->window_bytes - 1) / q->window_bytes;
    uint64_t by_reads = (q->burst.reads + q->burst_depth - 1) / q->burst_depth;
    q->burst.ns = now - q->busy_since_ns;
    q->burst.waves = by_bytes > by_reads ? by_bytes : by_reads;
    q->busy_since_ns = now;
    efs_count(q->o.stats, disk_ns, q->burst.ns);
    if (q->o.estimator && !q->burst_discarded)
        efs_estimator_burst(q->o.estimator, &q->burst);
    q->burst = (struct efs_rates_burst){0};
    q->burst_discarded = false;
}

/* ---- reads of the backing ---- */

/* Registers the segment at its first read. Failure (RLIMIT_MEMLOCK) costs speed only. Returns whether it is
 * registered. */
static bool queue_register(struct efs_io_queue *q, uint32_t segment)
{
    if (!q->o.arena || segment == EFS_NONE)
        return false;
    struct efs_segment *s = &q->o.arena->segments[segment];
    if (s->registered || !q->b->info.registers || atomic_load(&s->populating))
        return s->registered;
    if (efs_arena_populate(q->o.arena, segment) < 0)
        return false; /* retried at the next read */
    s->registered = q->b->ops->memory(q->b, segment, s->base, q->o.arena->segment_bytes) == 0;
    return s->registered;
}

/* false: to be repeated after the next wait(). */
static bool queue_unregister(struct efs_io_queue *q, uint32_t segment)
{
    struct efs_segment *s = &q->o.arena->segments[segment];
    if (s->registered && q->b->ops->memory(q->b, segment, NULL, 0) < 0)
        return false;
    s->registered = false;
    return true;
}

/* Bytes of the request to read next. */
static size_t queue_piece(const struct efs_io_queue *q, const struct efs_io *io)
{
    size_t left = io->bytes - io->done, most = q->b->info.max_bytes ? q->b->info.max_bytes : left;
    if (io->class == EFS_IO_IDLE && most > EFS_IO_PIECE_BYTES)
        most = EFS_IO_PIECE_BYTES;
    return left < most ? left : most;
}

static void queue_start_read(struct efs_io_queue *q, struct efs_io *io)
{
    bool idle = io->class == EFS_IO_IDLE, registered = queue_register(q, io->segment);
    struct efs_backing_read *read = q->slots[q->inflight];
    read->first = io;
    read->idle = idle;
    read->offset = io->offset + io->done;
    read->segment = registered && !io->joined ? io->segment : EFS_NONE;
    read->buffer_count = 0;
    if (io->joined) {
        efs_io_joined_buffers(io, read);
    } else {
        read->bytes = queue_piece(q, io);
        read->buffers[read->buffer_count++] = (struct iovec){io->data + io->done, read->bytes};
    }
    q->b->ops->submit(q->b, read);
    uint64_t now = efs_now_ns();
    if (q->inflight++ == 0)
        q->busy_since_ns = now;
    q->idle_inflight += idle;
    q->idle_bytes += idle ? io->bytes : 0;
    for (; io; io = io->joined) {
        io->begin_ns = now;
        q->inflight_bytes += io->bytes;
    }
    efs_count(q->o.stats, disk_reads, 1);
}

/* true: requests were completed without a read. */
static bool queue_start_reads(struct efs_io_queue *q)
{
    const struct efs_backing_info *info = &q->b->info;
    struct efs_io_list *list;
    bool completed = false;
    while (q->inflight_bytes < q->window_bytes && q->inflight < info->depth && (list = queue_next(q))) {
        if (list->head->bytes == 0) {
            if (!queue_unregister(q, list->head->segment))
                return completed;
            queue_finish(q, efs_io_pop(list), 0);
            completed = true;
        } else if (io_is_cancelled(q, list->head)) {
            queue_finish(q, efs_io_pop(list), -ECANCELED);
            completed = true;
        } else {
            queue_start_read(q, info->joins ? efs_io_pop_joined(list, info->best_bytes) : efs_io_pop(list));
        }
    }
    return completed;
}

/* Removes a read from those in flight. Idle reads and failed ones do not count for the estimator. */
static void queue_read_ended(struct efs_io_queue *q, struct efs_backing_read *read, size_t bytes, bool failed)
{
    const struct efs_io *first = read->first;
    bool idle = first->class == EFS_IO_IDLE;
    unsigned i = 0;
    efs_count(q->o.stats, disk_bytes, bytes);
    for (const struct efs_io *io = first; io; io = io->joined)
        q->inflight_bytes -= io->bytes;
    q->idle_inflight -= idle;
    q->idle_bytes -= idle ? first->bytes : 0;
    burst_read(q, bytes, failed || idle);
    while (q->slots[i] != read)
        i++;
    q->slots[i] = q->slots[--q->inflight];
    q->slots[q->inflight] = read;
    if (q->inflight == 0 || q->burst.bytes >= BURST_WINDOWS * q->window_bytes)
        burst_end(q);
}

/* Completes the requests that were read in full. Those of a joined read that were not are retried separately, so that
 * none fails because of a different one. */
static void queue_backing_ended(void *owner, struct efs_backing_read *read, ssize_t result)
{
    struct efs_io_queue *q = owner;
    struct efs_io *first = read->first, *again[EFS_IO_JOIN_READS];
    bool joined = first->joined;
    bool retry = joined || result > 0 || result == -EAGAIN || result == -EINTR;
    size_t bytes = result > 0 ? (size_t)result : 0;
    unsigned count = 0;
    if (q->may_sleep) { /* awake now: submitters need not wake it */
        q->may_sleep = false;
        pthread_mutex_lock(&q->lock);
        q->sleeping = false;
        pthread_mutex_unlock(&q->lock);
    }
    queue_read_ended(q, read, bytes, result < 0);
    if (joined)
        efs_io_joined_done(first, bytes);
    else
        first->done += bytes;
    for (struct efs_io *io = first, *next; io; io = next) {
        next = io->joined;
        if (io->done == io->bytes) {
            queue_finish(q, io, 0);
        } else if (retry) {
            io->separate = io->separate || joined;
            again[count++] = io;
        } else { /* 0: end of the source, although the size was checked at open; EFAULT: pages of the buffer could not
                  * be allocated */
            queue_finish(q, io, result == 0 ? -EIO : result == -EFAULT ? -ENOMEM : (errint_t)result);
        }
    }
    while (count-- > 0)
        efs_io_push_front(queue_list_of(q, again[count]), again[count]);
}

/* ---- the thread ---- */

/* Called before the thread sleeps or starts an operation that may take long. */
static void queue_notify_completed(struct efs_io_queue *q)
{
    if (q->o.completed)
        q->o.completed(q->o.arg);
}

static void *queue_run(void *arg)
{
    struct efs_io_queue *q = arg;
    if (q->b->ops->start)
        q->b->ops->start(q->b);
    while (!queue_collect(q)) {
        const bool completed = queue_start_reads(q);
        queue_notify_completed(q); /* for reads that were cancelled */
        if (completed && q->inflight == 0)
            continue; /* these may have been the last ones, and the end has woken this thread already */
        q->b->ops->wait(q->b);
        queue_notify_completed(q);
    }
    queue_notify_completed(q);
    if (!q->keep_backing)
        q->b->ops->close(q->b, false);
    return NULL;
}

errint_t efs_io_queue_start(const struct efs_io_options *options, struct efs_io_queue **out)
{
    struct efs_backing *b = options->backing;
    struct efs_io_queue *q = efs_sys_calloc(1, sizeof(*q));
    *out = NULL;
    if (!q || !b) {
        if (b)
            b->ops->close(b, false);
        free(q);
        return -ENOMEM;
    }
    q->o = *options;
    q->b = b;
    q->window_bytes = WINDOW_READS * (size_t)b->info.best_bytes;
    q->burst_depth = b->info.depth;
    efs_io_list_init(&q->incoming);
    for (unsigned c = 0; c < EFS_IO_CLASSES; c++)
        efs_io_list_init(&q->classes[c]);
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++)
        q->slots[i] = &q->reads[i];
    pthread_mutex_init(&q->lock, NULL);
    b->ended = queue_backing_ended;
    b->owner = q;
    b->say = options->say;
    b->say_arg = options->arg;
    b->stats = options->stats;
    b->segments = options->arena ? options->arena->segment_max : 0;
    b->wake_fd = q->wake_fd = eventfd(0, EFD_CLOEXEC);
    errint_t rc = q->wake_fd < 0 ? -errno : efs_thread_start(queue_run, q, "efs-disk", &q->thread);
    if (rc < 0) {
        b->ops->close(b, false);
        if (q->wake_fd >= 0)
            close(q->wake_fd);
        pthread_mutex_destroy(&q->lock);
        free(q);
        return rc;
    }
    *out = q;
    return 0;
}

void efs_io_wake(struct efs_io_queue *q)
{
    uint64_t one = 1;
    ssize_t n = write(q->wake_fd, &one, sizeof(one)); /* cannot fail: the counter stays far below its limit */
    (void)n;
}

/* With the lock, which it releases. */
static void queue_unlock_and_wake(struct efs_io_queue *q)
{
    bool asleep = q->sleeping;
    q->sleeping = false;
    pthread_mutex_unlock(&q->lock);
    if (asleep)
        efs_io_wake(q);
}

void efs_io_submit(struct efs_io_queue *q, struct efs_io *requests)
{
    pthread_mutex_lock(&q->lock);
    for (struct efs_io *io = requests, *next; io; io = next) {
        next = io->next;
        io->done = 0;
        io->separate = false;
        efs_io_push(&q->incoming, io);
    }
    queue_unlock_and_wake(q);
}

void efs_io_apply_changes(struct efs_io_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->changed = true;
    queue_unlock_and_wake(q);
}

int efs_io_direct_fd(const struct efs_io_queue *q)
{
    return atomic_load_explicit(&q->has_idle, memory_order_relaxed) ? -1 : atomic_load(&q->b->direct_fd);
}

size_t efs_io_window_bytes(const struct efs_io_queue *q)
{
    return q->window_bytes;
}

void efs_io_queue_cancel(struct efs_io_queue *q)
{
    if (!q)
        return;
    atomic_store(&q->ends, true);
    efs_io_apply_changes(q);
}

static void queue_stop(struct efs_io_queue *q, bool keep_backing)
{
    efs_io_queue_cancel(q);
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    q->keep_backing = keep_backing;
    queue_unlock_and_wake(q);
    pthread_join(q->thread, NULL);
}

void efs_io_queue_stop(struct efs_io_queue *q)
{
    if (q)
        queue_stop(q, false);
}

void efs_io_queue_free(struct efs_io_queue *q)
{
    if (!q)
        return;
    close(q->wake_fd);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

struct efs_backing *efs_io_queue_end(struct efs_io_queue *q)
{
    struct efs_backing *b = q->b;
    queue_stop(q, true);
    efs_io_queue_free(q);
    return b;
}

void efs_io_queue_close_in_child(struct efs_io_queue *q)
{
    if (!q)
        return;
    close(q->wake_fd);
    q->b->ops->close(q->b, true);
    free(q);
}

/* ---- reads that block ---- */

#define SYNC_PIECES 16u

struct sync_read {
    sem_t ended;
    _Atomic errint_t error; /* of one of its pieces */
    struct efs_io pieces[SYNC_PIECES];
};

static void sync_piece_ended(struct efs_io *io, errint_t error)
{
    struct sync_read *r = io->owner;
    if (error < 0)
        atomic_store(&r->error, error);
    sem_post(&r->ended);
}

/* Reads as many pieces as fit, and waits for them. Returns their bytes. */
static size_t sync_read_pieces(struct efs_io_queue *q, struct sync_read *r, uint64_t offset, uint8_t *data,
                               size_t bytes)
{
    const size_t most = q->b->info.best_bytes;
    size_t done = 0;
    unsigned count = 0;
    for (size_t piece; done < bytes && count < SYNC_PIECES; done += piece, count++) {
        piece = bytes - done < most ? bytes - done : most;
        r->pieces[count] = (struct efs_io){.offset = offset + done,
                                           .bytes = piece,
                                           .data = data + done,
                                           .segment = EFS_NONE,
                                           .complete = sync_piece_ended,
                                           .owner = r};
        if (count > 0)
            r->pieces[count - 1].next = &r->pieces[count];
    }
    efs_io_submit(q, &r->pieces[0]);
    while (count > 0)
        count -= sem_wait(&r->ended) == 0;
    return done;
}

errint_t efs_io_read_sync(void *queue, uint64_t offset, void *data, size_t bytes)
{
    struct efs_io_queue *q = queue;
    const uint32_t align = q->b->info.align;
    struct sync_read r = {.error = 0};
    if (offset % align || bytes % align)
        return -EINVAL;
    sem_init(&r.ended, 0, 0);
    for (size_t done = 0; done < bytes && atomic_load(&r.error) == 0;)
        done += sync_read_pieces(q, &r, offset + done, (uint8_t *)data + done, bytes - done);
    sem_destroy(&r.ended);
    return atomic_load(&r.error);
}
