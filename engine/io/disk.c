/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.c - see disk.h. Demand precedes read-ahead, and read-ahead precedes speculative reads. At most
 * about EFS_DISK_WINDOW_BYTES are in flight, so that a late demand read does not queue behind a long read-ahead.
 */
#include "disk_queue.h"

#include "clock.h"
#include "estimator.h"
#include "stats.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEPTH 64
#define DRAIN_MS 60000 /* timeout: a forked child may keep the ring open after its reads have completed */
#define BURST_BYTES (4u * EFS_DISK_WINDOW_BYTES) /* limit of a burst on a disk that is never idle */

enum { FILE_DIRECT, FILE_BUFFERED, FILE_DRAINED, FILES }; /* index of the file in the ring */

struct efs_disk {
    struct efs_disk_options o;
    pthread_mutex_t lock; /* guards incoming, sleeping, stop, changed */
    struct efs_disk_queue incoming;
    bool sleeping, stop, changed;
    int event_fd;
    unsigned long thread;
    /* used by the I/O thread only: */
    struct io_uring ring;
    bool uring, can_register, joins, wake_armed, direct;
    errint_t refused; /* error with which io_uring was rejected; 0: in use */
    int drained;      /* read end of a pipe; only the ring holds the write end: POLLHUP after its last read */
    uint64_t wake_value, busy_since_ns;
    struct efs_disk_queue demand, ahead, speculative;
    size_t inflight_bytes, speculative_bytes; /* speculative_bytes: bytes of speculative reads among them */
    unsigned inflight, speculative_inflight;
    struct efs_disk_request *in_flight[DEPTH / 2]; /* the reads in flight */
    struct efs_rates_burst burst;                  /* measured since busy_since_ns */
    bool burst_discarded;
    struct iovec buffers[EFS_DISK_JOIN_READS]; /* of the joined read being submitted */
};

/* The queue for a read. A read raised before it was queued is demand from the start. */
static struct efs_disk_queue *disk_queue_of(struct efs_disk *d, struct efs_disk_request *r)
{
    if (atomic_load(&r->change) == EFS_DISK_RAISE)
        r->ahead = r->speculative = false;
    return r->speculative ? &d->speculative : r->ahead ? &d->ahead : &d->demand;
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

/* Whether the first read of the queue was cancelled, perhaps before it was queued. */
static bool disk_is_cancelled(const struct efs_disk *d, const struct efs_disk_queue *q)
{
    return q != &d->demand && atomic_load(&q->head->change) == EFS_DISK_CANCEL;
}

/* Applies changes to the reads of a queue: raised reads are appended to the demand queue, cancelled reads complete. */
static void disk_apply_queue(struct efs_disk *d, struct efs_disk_queue *q)
{
    struct efs_disk_queue all = *q;
    struct efs_disk_request *r;
    all.tail = all.head ? all.tail : &all.head;
    q->head = NULL;
    q->tail = &q->head;
    while ((r = efs_disk_pop(&all)))
        if (atomic_load(&r->change) == EFS_DISK_CANCEL)
            disk_cancel(d, r);
        else
            efs_disk_push(disk_queue_of(d, r), r);
}

/* Moves incoming requests to their queues. Returns true if the thread may exit. will_sleep: submitters must wake the
 * thread. */
static bool disk_collect(struct efs_disk *d, bool will_sleep)
{
    struct efs_disk_request *r;
    pthread_mutex_lock(&d->lock);
    while (d->changed) {
        d->changed = false;
        pthread_mutex_unlock(&d->lock);
        disk_apply_queue(d, &d->ahead);
        disk_apply_queue(d, &d->speculative);
        pthread_mutex_lock(&d->lock);
    }
    while ((r = efs_disk_pop(&d->incoming)))
        efs_disk_push(disk_queue_of(d, r), r);
    bool idle = !d->demand.head && !d->ahead.head && !d->speculative.head && d->inflight == 0;
    d->sleeping = will_sleep;
    bool end = d->stop && idle;
    pthread_mutex_unlock(&d->lock);
    return end;
}

/* Bytes of the request to read next. */
static size_t disk_piece(const struct efs_disk_request *r)
{
    size_t left = r->bytes - r->done;
    return r->speculative && left > EFS_DISK_PIECE_BYTES ? EFS_DISK_PIECE_BYTES : left;
}

/* The queue whose first read is next; NULL: none may be submitted now. */
static struct efs_disk_queue *disk_next(struct efs_disk *d)
{
    if (d->demand.head || d->ahead.head)
        return d->demand.head ? &d->demand : &d->ahead;
    bool alone = d->inflight == d->speculative_inflight;
    bool fits = !d->speculative_inflight || (d->speculative.head && d->speculative_bytes + d->speculative.head->bytes <=
                                                                        EFS_DISK_SPECULATIVE_BYTES);
    return d->speculative.head && alone && fits ? &d->speculative : NULL;
}

/* ---- bursts: from the first read on an idle disk until it is idle again, or until BURST_BYTES ---- */

static void burst_read(struct efs_disk *d, size_t bytes, bool discard)
{
    struct efs_rates_burst *b = &d->burst;
    if (b->reads++ == 0) {
        b->first_bytes = bytes;
        b->first_ns = efs_now_ns() - d->busy_since_ns;
    }
    b->bytes += bytes;
    d->burst_discarded = d->burst_discarded || discard;
}

static void burst_end(struct efs_disk *d)
{
    uint64_t now = efs_now_ns(), by_bytes = (d->burst.bytes + EFS_DISK_WINDOW_BYTES - 1) / EFS_DISK_WINDOW_BYTES;
    uint64_t by_reads = (d->burst.reads + DEPTH / 2 - 1) / (DEPTH / 2);
    d->burst.ns = now - d->busy_since_ns;
    d->burst.waves = by_bytes > by_reads ? by_bytes : by_reads;
    d->busy_since_ns = now;
    efs_count(d->o.stats, disk_ns, d->burst.ns);
    if (d->o.estimator && !d->burst_discarded)
        efs_estimator_burst(d->o.estimator, &d->burst);
    d->burst = (struct efs_rates_burst){0};
    d->burst_discarded = false;
}

/* ---- fallbacks ---- */

static void disk_notify_refused(struct efs_disk *d, const char *what, errint_t why)
{
    if (d->o.fell_back)
        d->o.fell_back(d->o.arg, what, why);
}

/* rc: result of an io_uring call. After a failure other than EINTR, for example by a seccomp filter, the thread
 * stops using the ring. */
static bool disk_is_refused(struct efs_disk *d, int rc)
{
    if (rc < 0 && rc != -EINTR && !d->refused)
        d->refused = rc;
    return d->refused < 0;
}

/* Whether a failed read is to be retried by the next fallback: through the page cache, then by pread(2). FUSE file
 * systems accept O_DIRECT at open(2) and reject the reads; kernels before 5.6 lack IORING_OP_READ. */
static bool disk_fall_back(struct efs_disk *d, const struct efs_disk_request *r, int result)
{
    if (!efs_sys_no_direct(result))
        return false;
    if (r->direct) {
        if (d->direct) {
            atomic_store(&d->o.stats->direct_io, 0);
            disk_notify_refused(d, "O_DIRECT", result);
        }
        d->direct = false;
        return true;
    }
    return d->uring && disk_is_refused(d, result);
}

static int disk_file(const struct efs_disk *d)
{
    return d->direct ? d->o.fd : d->o.buffered_fd;
}

/* The first request of the queue unregisters a segment. If that fails, the segment is unregistered when the ring is
 * closed. */
static void disk_unregister(struct efs_disk *d, struct efs_disk_queue *q)
{
    struct efs_segment *s = &d->o.arena->segments[q->head->segment];
    if (s->registered && disk_is_refused(d, efs_sys_uring_register(&d->ring, q->head->segment, NULL, 0)))
        return;
    s->registered = false;
    disk_finish(d, efs_disk_pop(q), 0);
}

/* Registers the segment at its first read. Failure (RLIMIT_MEMLOCK) costs speed only. */
static void disk_register(struct efs_disk *d, uint32_t segment)
{
    struct efs_segment *s = &d->o.arena->segments[segment];
    if (!d->can_register || s->registered || atomic_load(&s->populating))
        return;
    if (efs_arena_populate(d->o.arena, segment) < 0)
        return; /* retried at the next read */
    if (efs_sys_uring_register(&d->ring, segment, s->base, d->o.arena->segment_bytes) == 0)
        s->registered = true;
    else
        d->can_register = false;
}

/* ---- io_uring ---- */

static bool disk_prepare(struct efs_disk *d, struct efs_disk_request *r)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&d->ring);
    if (!sqe)
        return false;
    unsigned bytes = (unsigned)disk_piece(r);
    int file = d->direct ? FILE_DIRECT : FILE_BUFFERED;
    r->direct = d->direct;
    if (r->joined)
        io_uring_prep_readv(sqe, file, d->buffers, efs_disk_joined_buffers(r, d->buffers), r->offset);
    else if (d->o.arena->segments[r->segment].registered)
        io_uring_prep_read_fixed(sqe, file, r->data + r->done, bytes, r->offset + r->done, (int)r->segment);
    else
        io_uring_prep_read(sqe, file, r->data + r->done, bytes, r->offset + r->done);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, r);
    return true;
}

static void disk_submitted(struct efs_disk *d, struct efs_disk_request *r)
{
    uint64_t now = efs_now_ns();
    if (d->inflight == 0)
        d->busy_since_ns = now;
    d->in_flight[d->inflight++] = r;
    d->speculative_inflight += r->speculative;
    d->speculative_bytes += r->speculative ? r->bytes : 0;
    for (; r; r = r->joined) {
        r->begin_ns = now;
        r->submitted = r->done;
        d->inflight_bytes += r->bytes;
    }
    efs_count(d->o.stats, disk_reads, 1);
}

static void start_reads(struct efs_disk *d)
{
    while (!d->refused && d->inflight < DEPTH / 2 && (d->inflight == 0 || d->inflight_bytes < EFS_DISK_WINDOW_BYTES)) {
        struct efs_disk_queue *q = disk_next(d);
        if (!q)
            return;
        struct efs_disk_request *r = q->head;
        if (r->bytes == 0) {
            disk_unregister(d, q);
            continue;
        }
        if (disk_is_cancelled(d, q)) {
            disk_cancel(d, efs_disk_pop(q));
            continue;
        }
        disk_register(d, r->segment);
        if (io_uring_sq_space_left(&d->ring) == 0)
            return;
        /* d->buffers is in use until the kernel has taken the submitted read (IORING_FEAT_SUBMIT_STABLE), so a read
         * is joined only if the submission queue is empty */
        if (d->joins && io_uring_sq_ready(&d->ring) == 0)
            efs_disk_pop_joined(q);
        else
            efs_disk_pop(q);
        disk_prepare(d, r);
        /* submit each read separately: the kernel would merge adjacent reads into one, and all would complete at its
         * end */
        int rc = efs_sys_uring_submit(&d->ring);
        disk_submitted(d, r);
        disk_is_refused(d, rc);
    }
}

/* Removes a completed read from those in flight. */
static void disk_read_ended(struct efs_disk *d, const struct efs_disk_request *r, size_t bytes, bool discard)
{
    unsigned i = 0;
    burst_read(d, bytes, discard);
    while (d->in_flight[i] != r)
        i++;
    d->in_flight[i] = d->in_flight[d->inflight - 1];
    if (--d->inflight == 0 || d->burst.bytes >= BURST_BYTES)
        burst_end(d);
}

/* Completes the requests that were read in full; retries the rest separately, so that none fails because of a
 * different one. */
static void disk_reap_joined(struct efs_disk *d, struct efs_disk_request *first, int result)
{
    struct efs_disk_request *again[EFS_DISK_JOIN_READS];
    size_t bytes = result > 0 ? (size_t)result : 0;
    unsigned count = 0;
    disk_fall_back(d, first, result);
    efs_disk_joined_done(first, bytes);
    efs_count(d->o.stats, disk_bytes, bytes);
    for (const struct efs_disk_request *r = first; r; r = r->joined)
        d->inflight_bytes -= r->bytes;
    disk_read_ended(d, first, bytes, result < 0);
    for (struct efs_disk_request *r = first, *next; r; r = next) {
        next = r->joined;
        if (r->done == r->bytes) {
            disk_finish(d, r, 0);
        } else {
            r->separate = true;
            again[count++] = r;
        }
    }
    while (count > 0) {
        count--;
        efs_disk_push_front(disk_queue_of(d, again[count]), again[count]);
    }
}

static void disk_reap(struct efs_disk *d, struct efs_disk_request *r, int result)
{
    if (r->joined) {
        disk_reap_joined(d, r, result);
        return;
    }
    if (result == -EAGAIN || result == -EINTR || disk_fall_back(d, r, result))
        result = 0;
    else if (result == -EFAULT) /* pages of the buffer could not be allocated */
        result = -ENOMEM;
    else if (result == 0)
        result = -EIO; /* end of file, although the size was checked at open */
    if (result > 0) {
        r->done += (size_t)result;
        efs_count(d->o.stats, disk_bytes, result);
    }
    bool more = result >= 0 && r->done < r->bytes;
    if (more && d->uring && !d->refused && !r->speculative) { /* short read: submit the rest */
        if (disk_prepare(d, r))
            return;
        result = -EIO;
        more = false;
    }
    d->inflight_bytes -= r->bytes;
    d->speculative_inflight -= r->speculative;
    d->speculative_bytes -= r->speculative ? r->bytes : 0;
    disk_read_ended(d, r, r->done - r->submitted, result < 0 || r->speculative);
    if (more)
        efs_disk_push_front(disk_queue_of(d, r), r);
    else
        disk_finish(d, r, result < 0 ? result : 0);
}

/* Called before the thread sleeps or starts an operation that may take long. */
static void disk_notify_completed(struct efs_disk *d)
{
    if (d->o.completed)
        d->o.completed(d->o.arg);
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

/* Closes the ring and queues again the reads in flight. Reads that the kernel has started still write to memory:
 * waits for them by the pipe, because entering the ring may be what is rejected. */
static void close_uring(struct efs_disk *d)
{
    bool in_flight = d->inflight + d->wake_armed > io_uring_sq_ready(&d->ring);
    struct pollfd drained = {.fd = d->drained, .events = POLLIN};
    io_uring_queue_exit(&d->ring);
    while (in_flight && poll(&drained, 1, DRAIN_MS) < 0 && errno == EINTR)
        ;
    d->uring = d->can_register = false;
    for (uint32_t s = 0; s < d->o.arena->segment_max; s++)
        d->o.arena->segments[s].registered = false;
    atomic_store(&d->o.stats->io_uring, 0);
    d->burst_discarded = true;
    while (d->inflight > 0)
        disk_reap(d, d->in_flight[d->inflight - 1], -EAGAIN);
    disk_notify_refused(d, "io_uring", d->refused);
}

static void run_uring(struct efs_disk *d)
{
    while (d->uring && !disk_collect(d, true)) {
        start_reads(d);
        disk_notify_completed(d); /* for reads that were cancelled */
        arm_wake(d);
        if (!d->refused)
            disk_is_refused(d, efs_sys_uring_wait(&d->ring));
        disk_collect(d, false);
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&d->ring, &cqe) == 0) {
            struct efs_disk_request *r = io_uring_cqe_get_data(cqe);
            int result = r ? efs_sys_uring_result(cqe->res) : 0;
            io_uring_cqe_seen(&d->ring, cqe);
            if (r)
                disk_reap(d, r, result);
            else
                d->wake_armed = false;
        }
        disk_notify_completed(d);
        if (d->refused)
            close_uring(d);
    }
    disk_notify_completed(d);
}

/* ---- pread(2) ---- */

static ssize_t disk_pread(struct efs_disk *d, struct efs_disk_request *r)
{
    r->direct = d->direct;
    if (r->joined)
        return efs_sys_preadv(disk_file(d), d->buffers, (int)efs_disk_joined_buffers(r, d->buffers), r->offset);
    return efs_sys_pread(disk_file(d), r->data + r->done, disk_piece(r), r->offset + r->done);
}

static void run_pread(struct efs_disk *d)
{
    while (!disk_collect(d, true)) {
        disk_notify_completed(d);
        struct efs_disk_queue *q = disk_next(d);
        bool cancelled = q && disk_is_cancelled(d, q);
        if (!q) {
            uint64_t value;
            if (read(d->event_fd, &value, sizeof(value)) < 0 && errno != EINTR)
                return;
            continue;
        }
        if (q->head->bytes == 0) {
            disk_unregister(d, q);
            continue;
        }
        if (cancelled) {
            disk_cancel(d, efs_disk_pop(q));
            continue;
        }
        struct efs_disk_request *r = efs_disk_pop_joined(q);
        disk_submitted(d, r);
        disk_reap(d, r, (int)disk_pread(d, r));
    }
    disk_notify_completed(d);
}

static void open_ring(struct efs_disk *d)
{
    int ends[2];
    if (efs_sys_uring_init(&d->ring, DEPTH) < 0)
        return;
    d->uring = pipe2(ends, O_CLOEXEC) == 0;
    if (d->uring) {
        const int files[FILES] = {
            [FILE_DIRECT] = d->o.fd, [FILE_BUFFERED] = d->o.buffered_fd, [FILE_DRAINED] = ends[1]};
        d->drained = ends[0];
        d->uring = efs_sys_uring_files(&d->ring, files, FILES) >= 0;
        close(ends[1]);
    }
    if (!d->uring) {
        io_uring_queue_exit(&d->ring);
        return;
    }
    d->joins = d->ring.features & IORING_FEAT_SUBMIT_STABLE;
    d->can_register = efs_sys_uring_slots(&d->ring, d->o.arena->segment_max) == 0;
    atomic_store(&d->o.stats->io_uring, 1);
}

static void *disk_run(void *arg)
{
    struct efs_disk *d = arg;
    open_ring(d); /* the ring belongs to the thread that creates it */
    if (d->uring)
        run_uring(d);
    if (!d->uring)
        run_pread(d);
    if (d->uring) {
        /* otherwise the kernel unpins the pages some ms after the process exits, and a mount started at once has less
         * memory */
        io_uring_unregister_buffers(&d->ring);
        io_uring_queue_exit(&d->ring);
    }
    if (d->drained >= 0)
        close(d->drained);
    return NULL;
}

errint_t efs_disk_start(const struct efs_disk_options *options, struct efs_disk **out)
{
    *out = NULL;
    struct efs_disk *d = efs_sys_calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->o = *options;
    d->direct = options->fd != options->buffered_fd;
    d->drained = -1;
    d->incoming.tail = &d->incoming.head;
    d->demand.tail = &d->demand.head;
    d->ahead.tail = &d->ahead.head;
    d->speculative.tail = &d->speculative.head;
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
    ssize_t n = write(d->event_fd, &one, sizeof(one)); /* cannot fail: the counter never reaches its maximum */
    (void)n;
}

void efs_disk_submit(struct efs_disk *d, struct efs_disk_request *requests)
{
    pthread_mutex_lock(&d->lock);
    for (struct efs_disk_request *r = requests, *next; r; r = next) {
        next = r->next;
        r->done = 0;
        r->separate = false;
        efs_disk_push(&d->incoming, r);
    }
    bool asleep = d->sleeping;
    d->sleeping = false;
    pthread_mutex_unlock(&d->lock);
    if (asleep)
        disk_wake(d);
}

void efs_disk_apply_changes(struct efs_disk *d)
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

void efs_disk_close_in_child(struct efs_disk *d)
{
    if (!d)
        return;
    close(d->event_fd);
    if (d->uring)
        io_uring_queue_exit(&d->ring);
    if (d->drained >= 0)
        close(d->drained);
    free(d);
}
