/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.c - see disk.h. Demand goes before read-ahead, and that before what only uses spare time; at most
 * EFS_DISK_WINDOW_BYTES are under way, so that a late demand read does not queue behind a long read-ahead.
 */
#include "disk_queue.h"

#include "clock.h"
#include "estimator.h"
#include "stats.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEPTH 64
#define BURST_BYTES (4u * EFS_DISK_WINDOW_BYTES) /* of one burst; while there is always more to read */

struct efs_disk {
    struct efs_disk_options o;
    pthread_mutex_t lock; /* guards incoming, sleeping, stop, changed */
    struct efs_disk_queue incoming;
    bool sleeping, stop, changed;
    int event_fd;
    unsigned long thread;
    /* the I/O thread's own */
    struct io_uring ring;
    bool uring, pins, joins, wake_armed;
    uint64_t wake_value, busy_since_ns;
    struct efs_disk_queue demand, ahead, spare;
    size_t inflight_bytes, spare_bytes; /* spare_bytes: of these, in spare time */
    unsigned inflight, spare_inflight;
    struct efs_rates_burst burst; /* since busy_since_ns */
    bool burst_untold;
    struct iovec buffers[EFS_DISK_JOIN_READS]; /* of the read that is begun */
};

/* Where a read waits. One that was raised before it came in is demand from the start. */
static struct efs_disk_queue *disk_queue_of(struct efs_disk *d, struct efs_disk_request *r)
{
    if (atomic_load(&r->change) == EFS_DISK_RAISE)
        r->ahead = r->spare_time = false;
    return r->spare_time ? &d->spare : r->ahead ? &d->ahead : &d->demand;
}

static void disk_finish(struct efs_disk *d, struct efs_disk_request *r, errint_t error)
{
    if (error < 0 && error != -ECANCELED)
        efs_count(d->o.stats, disk_errors, 1);
    r->end_ns = efs_now_ns();
    r->complete(r, error);
}

static void disk_cancel(struct efs_disk *d, struct efs_disk_request *r)
{
    r->begin_ns = efs_now_ns();
    disk_finish(d, r, -ECANCELED);
}

/* The first of the queue; it may have been cancelled before it came in. */
static bool disk_is_cancelled(const struct efs_disk *d, const struct efs_disk_queue *q)
{
    return q != &d->demand && atomic_load(&q->head->change) == EFS_DISK_CANCEL;
}

/* What is demand now goes behind the demand that is there, and before what comes in; what is cancelled ends. */
static void disk_look_through(struct efs_disk *d, struct efs_disk_queue *q)
{
    struct efs_disk_queue all = *q;
    struct efs_disk_request *r;
    all.tail = all.head ? all.tail : &all.head;
    q->head = NULL;
    q->tail = &q->head;
    while ((r = efs_disk_take(&all)))
        if (atomic_load(&r->change) == EFS_DISK_CANCEL)
            disk_cancel(d, r);
        else
            efs_disk_put(disk_queue_of(d, r), r);
}

/* Move what came in to its queue. Returns true when the thread may end. will_sleep: tell submitters to wake it. */
static bool disk_collect(struct efs_disk *d, bool will_sleep)
{
    struct efs_disk_request *r;
    pthread_mutex_lock(&d->lock);
    while (d->changed) {
        d->changed = false;
        pthread_mutex_unlock(&d->lock);
        disk_look_through(d, &d->ahead);
        disk_look_through(d, &d->spare);
        pthread_mutex_lock(&d->lock);
    }
    while ((r = efs_disk_take(&d->incoming)))
        efs_disk_put(disk_queue_of(d, r), r);
    bool idle = !d->demand.head && !d->ahead.head && !d->spare.head && d->inflight == 0;
    d->sleeping = will_sleep;
    bool end = d->stop && idle;
    pthread_mutex_unlock(&d->lock);
    return end;
}

/* What of it is read now. */
static size_t disk_piece(const struct efs_disk_request *r)
{
    size_t left = r->bytes - r->done;
    return r->spare_time && left > EFS_DISK_PIECE_BYTES ? EFS_DISK_PIECE_BYTES : left;
}

/* The queue whose first read is the next to begin; NULL: none is. */
static struct efs_disk_queue *disk_next(struct efs_disk *d)
{
    if (d->demand.head || d->ahead.head)
        return d->demand.head ? &d->demand : &d->ahead;
    bool alone = d->inflight == d->spare_inflight;
    bool fits = !d->spare_inflight || (d->spare.head && d->spare_bytes + d->spare.head->bytes <= EFS_DISK_SPARE_BYTES);
    return d->spare.head && alone && fits ? &d->spare : NULL;
}

/* ---- bursts: from the first read that finds the disk idle until it is idle again, or has done much ---- */

static void burst_read(struct efs_disk *d, size_t bytes, bool untold)
{
    struct efs_rates_burst *b = &d->burst;
    if (b->reads++ == 0) {
        b->first_bytes = bytes;
        b->first_ns = efs_now_ns() - d->busy_since_ns;
    }
    b->bytes += bytes;
    d->burst_untold = d->burst_untold || untold;
}

static void burst_end(struct efs_disk *d)
{
    uint64_t now = efs_now_ns(), by_bytes = (d->burst.bytes + EFS_DISK_WINDOW_BYTES - 1) / EFS_DISK_WINDOW_BYTES;
    uint64_t by_reads = (d->burst.reads + DEPTH / 2 - 1) / (DEPTH / 2);
    d->burst.ns = now - d->busy_since_ns;
    d->burst.waves = by_bytes > by_reads ? by_bytes : by_reads;
    d->busy_since_ns = now;
    efs_count(d->o.stats, disk_ns, d->burst.ns);
    if (d->o.estimator && !d->burst_untold)
        efs_estimator_burst(d->o.estimator, &d->burst);
    d->burst = (struct efs_rates_burst){0};
    d->burst_untold = false;
}

static void disk_unpin(struct efs_disk *d, struct efs_disk_request *r)
{
    struct efs_segment *s = &d->o.arena->segments[r->segment];
    if (s->pinned)
        efs_sys_uring_pin(&d->ring, r->segment, NULL, 0);
    s->pinned = false;
    disk_finish(d, r, 0);
}

/* Register the segment at its first read. Failing (RLIMIT_MEMLOCK) costs speed only. */
static void disk_pin(struct efs_disk *d, uint32_t segment)
{
    struct efs_segment *s = &d->o.arena->segments[segment];
    if (!d->pins || s->pinned || atomic_load(&s->populating))
        return;
    if (efs_arena_populate(d->o.arena, segment) < 0)
        return; /* it may later */
    if (efs_sys_uring_pin(&d->ring, segment, s->base, d->o.arena->segment_bytes) == 0) {
        s->pinned = true;
    } else {
        d->pins = false;
        atomic_store(&d->o.stats->registered_buffers, 0);
    }
}

/* ---- io_uring ---- */

static bool disk_prepare(struct efs_disk *d, struct efs_disk_request *r)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&d->ring);
    if (!sqe)
        return false;
    unsigned bytes = (unsigned)disk_piece(r);
    if (r->joined)
        io_uring_prep_readv(sqe, 0, d->buffers, efs_disk_joined_buffers(r, d->buffers), r->offset);
    else if (d->o.arena->segments[r->segment].pinned)
        io_uring_prep_read_fixed(sqe, 0, r->data + r->done, bytes, r->offset + r->done, (int)r->segment);
    else
        io_uring_prep_read(sqe, 0, r->data + r->done, bytes, r->offset + r->done);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, r);
    return true;
}

static void disk_begun(struct efs_disk *d, struct efs_disk_request *r)
{
    uint64_t now = efs_now_ns();
    if (d->inflight++ == 0)
        d->busy_since_ns = now;
    d->spare_inflight += r->spare_time;
    d->spare_bytes += r->spare_time ? r->bytes : 0;
    for (; r; r = r->joined) {
        r->begin_ns = now;
        r->begun = r->done;
        d->inflight_bytes += r->bytes;
    }
    efs_count(d->o.stats, disk_reads, 1);
}

static void start_reads(struct efs_disk *d)
{
    while (d->inflight < DEPTH / 2 && (d->inflight == 0 || d->inflight_bytes < EFS_DISK_WINDOW_BYTES)) {
        struct efs_disk_queue *q = disk_next(d);
        if (!q)
            return;
        struct efs_disk_request *r = q->head;
        if (r->bytes == 0) {
            disk_unpin(d, efs_disk_take(q));
            continue;
        }
        if (disk_is_cancelled(d, q)) {
            disk_cancel(d, efs_disk_take(q));
            continue;
        }
        disk_pin(d, r->segment);
        if (io_uring_sq_space_left(&d->ring) == 0)
            return;
        /* the kernel copies the list of buffers when it takes the read, so there is one list: in use as long as
         * reads wait for being taken */
        if (d->joins && io_uring_sq_ready(&d->ring) == 0)
            efs_disk_take_joined(q);
        else
            efs_disk_take(q);
        disk_prepare(d, r);
        /* each by itself: the kernel would make one large read of neighbours, done at its end */
        efs_sys_uring_submit(&d->ring);
        disk_begun(d, r);
    }
}

/* One of the disk's reads has ended. */
static void disk_read_ended(struct efs_disk *d, size_t bytes, bool untold)
{
    burst_read(d, bytes, untold);
    if (--d->inflight == 0 || d->burst.bytes >= BURST_BYTES)
        burst_end(d);
}

/* What is whole ends; the rest is read again, each by itself, so that none fails for another. */
static void disk_reap_joined(struct efs_disk *d, struct efs_disk_request *first, int result)
{
    struct efs_disk_request *again[EFS_DISK_JOIN_READS];
    size_t bytes = result > 0 ? (size_t)result : 0;
    unsigned count = 0;
    efs_disk_joined_done(first, bytes);
    efs_count(d->o.stats, disk_bytes, bytes);
    for (const struct efs_disk_request *r = first; r; r = r->joined)
        d->inflight_bytes -= r->bytes;
    disk_read_ended(d, bytes, result < 0);
    for (struct efs_disk_request *r = first, *next; r; r = next) {
        next = r->joined;
        if (r->done == r->bytes) {
            disk_finish(d, r, 0);
        } else {
            r->alone = true;
            again[count++] = r;
        }
    }
    while (count > 0) {
        count--;
        efs_disk_put_first(disk_queue_of(d, again[count]), again[count]);
    }
}

static void disk_reap(struct efs_disk *d, struct efs_disk_request *r, int result)
{
    if (r->joined) {
        disk_reap_joined(d, r, result);
        return;
    }
    if (result == -EAGAIN || result == -EINTR)
        result = 0;
    else if (result == -EFAULT) /* the memory to read into cannot have its pages */
        result = -ENOMEM;
    else if (result == 0)
        result = -EIO; /* the store ended early: it was checked to be long enough */
    if (result > 0) {
        r->done += (size_t)result;
        efs_count(d->o.stats, disk_bytes, result);
    }
    bool more = result >= 0 && r->done < r->bytes;
    if (more && d->uring && !r->spare_time) { /* short: ask for the rest */
        if (disk_prepare(d, r))
            return;
        result = -EIO;
        more = false;
    }
    d->inflight_bytes -= r->bytes;
    d->spare_inflight -= r->spare_time;
    d->spare_bytes -= r->spare_time ? r->bytes : 0;
    disk_read_ended(d, r->done - r->begun, result < 0 || r->spare_time);
    if (more)
        efs_disk_put_first(disk_queue_of(d, r), r);
    else
        disk_finish(d, r, result < 0 ? result : 0);
}

/* Before the thread sleeps, or begins what takes long. */
static void disk_tell_ended(struct efs_disk *d)
{
    if (d->o.ended)
        d->o.ended(d->o.arg);
}

static void arm_wake(struct efs_disk *d)
{
    struct io_uring_sqe *sqe = d->wake_armed ? NULL : io_uring_get_sqe(&d->ring);
    if (!sqe)
        return;
    io_uring_prep_read(sqe, d->event_fd, &d->wake_value, sizeof(d->wake_value), 0);
    io_uring_sqe_set_data(sqe, NULL);
    d->wake_armed = true;
}

static void run_uring(struct efs_disk *d)
{
    while (!disk_collect(d, true)) {
        start_reads(d);
        disk_tell_ended(d); /* some were cancelled */
        arm_wake(d);
        io_uring_submit_and_wait(&d->ring, 1);
        disk_collect(d, false);
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&d->ring, &cqe) == 0) {
            struct efs_disk_request *r = io_uring_cqe_get_data(cqe);
            int result = efs_sys_uring_result(cqe->res);
            io_uring_cqe_seen(&d->ring, cqe);
            if (r)
                disk_reap(d, r, result);
            else
                d->wake_armed = false;
        }
        disk_tell_ended(d);
    }
    disk_tell_ended(d);
}

/* ---- pread(2) ---- */

static ssize_t disk_pread(struct efs_disk *d, struct efs_disk_request *r)
{
    if (r->joined)
        return efs_sys_preadv(d->o.fd, d->buffers, (int)efs_disk_joined_buffers(r, d->buffers), r->offset);
    return efs_sys_pread(d->o.fd, r->data + r->done, disk_piece(r), r->offset + r->done);
}

static void run_pread(struct efs_disk *d)
{
    while (!disk_collect(d, true)) {
        disk_tell_ended(d);
        struct efs_disk_queue *q = disk_next(d);
        bool cancelled = q && disk_is_cancelled(d, q);
        struct efs_disk_request *r = q ? efs_disk_take(q) : NULL;
        if (!r) {
            uint64_t value;
            if (read(d->event_fd, &value, sizeof(value)) < 0 && errno != EINTR)
                return;
            continue;
        }
        if (r->bytes == 0) {
            disk_unpin(d, r);
            continue;
        }
        if (cancelled) {
            disk_cancel(d, r);
            continue;
        }
        efs_disk_put_first(q, r);
        efs_disk_take_joined(q);
        disk_begun(d, r);
        disk_reap(d, r, (int)disk_pread(d, r));
    }
    disk_tell_ended(d);
}

static void open_ring(struct efs_disk *d)
{
    if (efs_sys_uring_init(&d->ring, DEPTH) < 0)
        return;
    if (io_uring_register_files(&d->ring, &d->o.fd, 1) < 0) {
        io_uring_queue_exit(&d->ring);
        return;
    }
    d->uring = true;
    d->joins = d->ring.features & IORING_FEAT_SUBMIT_STABLE;
    d->pins = io_uring_register_buffers_sparse(&d->ring, d->o.arena->segment_max) == 0;
    atomic_store(&d->o.stats->io_uring, 1);
    atomic_store(&d->o.stats->registered_buffers, d->pins);
}

static void *disk_run(void *arg)
{
    struct efs_disk *d = arg;
    open_ring(d); /* here, since the ring belongs to the thread that made it */
    if (d->uring)
        run_uring(d);
    else
        run_pread(d);
    if (d->uring) {
        /* else they stay pinned for some ms after the process has ended: who mounts again at once has less memory */
        io_uring_unregister_buffers(&d->ring);
        io_uring_queue_exit(&d->ring);
    }
    return NULL;
}

errint_t efs_disk_start(const struct efs_disk_options *options, struct efs_disk **out)
{
    *out = NULL;
    struct efs_disk *d = efs_sys_calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->o = *options;
    d->incoming.tail = &d->incoming.head;
    d->demand.tail = &d->demand.head;
    d->ahead.tail = &d->ahead.head;
    d->spare.tail = &d->spare.head;
    pthread_mutex_init(&d->lock, NULL);
    d->event_fd = eventfd(0, EFD_CLOEXEC);
    errint_t rc = d->event_fd < 0 ? -errno : efs_thread_start(disk_run, d, "efs-disk", &d->thread);
    if (rc < 0) {
        if (d->event_fd >= 0)
            close(d->event_fd);
        pthread_mutex_destroy(&d->lock);
        free(d);
        return rc;
    }
    *out = d;
    return 0;
}

static void disk_wake(struct efs_disk *d)
{
    uint64_t one = 1;
    ssize_t n = write(d->event_fd, &one, sizeof(one)); /* fails only when it is already readable */
    (void)n;
}

void efs_disk_submit(struct efs_disk *d, struct efs_disk_request *requests)
{
    pthread_mutex_lock(&d->lock);
    for (struct efs_disk_request *r = requests, *next; r; r = next) {
        next = r->next;
        r->done = 0;
        r->alone = false;
        efs_disk_put(&d->incoming, r);
    }
    bool asleep = d->sleeping;
    d->sleeping = false;
    pthread_mutex_unlock(&d->lock);
    if (asleep)
        disk_wake(d);
}

void efs_disk_look(struct efs_disk *d)
{
    pthread_mutex_lock(&d->lock);
    d->changed = true;
    bool asleep = d->sleeping;
    d->sleeping = false;
    pthread_mutex_unlock(&d->lock);
    if (asleep)
        disk_wake(d);
}

void efs_disk_stop(struct efs_disk *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_mutex_unlock(&d->lock);
    disk_wake(d);
    pthread_join(d->thread, NULL);
    close(d->event_fd);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void efs_disk_leave(struct efs_disk *d)
{
    if (!d)
        return;
    close(d->event_fd);
    if (d->uring)
        io_uring_queue_exit(&d->ring);
    free(d);
}
