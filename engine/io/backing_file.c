/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing_file.c - local files as a backing: read by io_uring, with the files and the segments of the chunk pool
 * registered. The fallbacks are pread(2) and reads through the page cache.
 */
#include "backing.h"

#include "container.h"
#include "layout.h"
#include "stats.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/ioprio.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH EFS_IO_DEPTH_MAX /* reads in flight; the ring has twice as many entries, for the read of wake_fd */
#define TOGETHER_BYTES (32u << 10)
#define DRAIN_MS 60000 /* timeout: a forked child may keep the ring open after its reads have completed */

/* Files in the ring: two of each part, FILE_DIRECT and FILE_BUFFERED, then the write end of the pipe. */
enum { FILE_DIRECT, FILE_BUFFERED, FILES_OF_PART };

struct backing_file {
    struct efs_backing b;
    struct efs_backing_file_options o;
    struct io_uring ring;
    bool uring, wake_armed, direct;
    errint_t refused; /* error with which io_uring was rejected; 0: in use, or rejected at the start */
    int drained;      /* read end of a pipe; only the ring holds the write end: POLLHUP after its last read */
    uint64_t wake_value;
    unsigned inflight;
    struct efs_backing_read *reads[DEPTH]; /* the reads in flight; own: their file in the ring */
    unsigned part_count;
    struct efs_backing_part parts[];
};

static struct backing_file *file_of(struct efs_backing *b)
{
    return EFS_CONTAINER(b, struct backing_file, b);
}

/* ---- fallbacks ---- */

/* rc: result of an io_uring call. After a failure other than EINTR, for example by a seccomp filter, the ring is closed
 * by the next wait(). Until then no read is submitted if one is in flight. */
static bool file_is_refused(struct backing_file *f, int rc)
{
    if (rc < 0 && rc != -EINTR && !f->refused) {
        f->refused = rc;
        f->b.info.depth = 1;
    }
    return f->refused < 0;
}

static const struct efs_backing_part *file_part(const struct backing_file *f, const struct efs_backing_read *read)
{
    return &f->parts[read->own / FILES_OF_PART];
}

static bool file_is_direct(const struct efs_backing_read *read)
{
    return read->own % FILES_OF_PART == FILE_DIRECT;
}

/* Whether a failed read is to be retried by the next fallback: through the page cache, then by pread(2). FUSE file
 * systems accept O_DIRECT at open(2) and reject the reads; kernels before 5.6 lack IORING_OP_READ. */
static bool file_fall_back(struct backing_file *f, const struct efs_backing_read *read, ssize_t result)
{
    if (!efs_sys_no_direct(result))
        return false;
    if (file_is_direct(read) && file_part(f, read)->fd != file_part(f, read)->buffered_fd) {
        if (f->direct)
            atomic_store(&f->b.stats->direct_io, 0);
        if (f->direct && f->o.fell_back)
            f->o.fell_back(f->o.arg, "O_DIRECT", (errint_t)result);
        f->direct = false;
        atomic_store(&f->b.direct_fd, -1);
        return true;
    }
    return f->uring && file_is_refused(f, (int)result);
}

/* Writes zeros over the buffers from byte `from` of the read on. */
static void file_zero(const struct efs_backing_read *read, size_t from)
{
    for (unsigned i = 0; i < read->buffer_count; i++) {
        const struct iovec *buffer = &read->buffers[i];
        if (from < buffer->iov_len)
            memset((uint8_t *)buffer->iov_base + from, 0, buffer->iov_len - from);
        from -= from < buffer->iov_len ? from : buffer->iov_len;
    }
}

/* The result of a read that may reach over the end of its file, which the last page does. */
static ssize_t file_result(const struct backing_file *f, const struct efs_backing_read *read, ssize_t result)
{
    const struct efs_backing_part *part = file_part(f, read);
    uint64_t at = read->offset - part->address, left = at < part->bytes ? part->bytes - at : 0;
    if (result < 0)
        return result;
    if (f->o.check && f->o.check(f->o.check_arg, (unsigned)(part - f->parts)) < 0)
        return -EIO;
    if (left >= read->bytes || (uint64_t)result < left)
        return result;
    file_zero(read, (size_t)left);
    return (ssize_t)read->bytes;
}

static void file_read_ended(struct backing_file *f, struct efs_backing_read *read, ssize_t result)
{
    unsigned i = 0;
    while (f->reads[i] != read)
        i++;
    f->reads[i] = f->reads[--f->inflight];
    efs_backing_read_ended(&f->b, read, file_fall_back(f, read, result) ? -EAGAIN : file_result(f, read, result));
}

/* ---- io_uring ---- */

static void file_prepare(struct backing_file *f, struct efs_backing_read *read)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&f->ring);
    const uint64_t offset = read->offset - file_part(f, read)->address;
    int file = (int)read->own;
    const struct iovec *buffer = read->buffers;
    if (!sqe) { /* impossible: there are more entries than reads */
        file_is_refused(f, -EBUSY);
        return;
    }
    if (read->buffer_count > 1)
        io_uring_prep_readv(sqe, file, buffer, read->buffer_count, offset);
    else if (read->segment != EFS_NONE)
        io_uring_prep_read_fixed(sqe, file, buffer->iov_base, (unsigned)buffer->iov_len, offset, (int)read->segment);
    else
        io_uring_prep_read(sqe, file, buffer->iov_base, (unsigned)buffer->iov_len, offset);
    sqe->flags |= IOSQE_FIXED_FILE;
    if (read->idle)
        sqe->ioprio = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0);
    io_uring_sqe_set_data(sqe, read);
}

/* The part with this address: the last one that begins at or before it. */
static unsigned file_at(const struct backing_file *f, uint64_t address)
{
    unsigned low = 0, high = f->part_count;
    while (high - low > 1) {
        unsigned mid = low + (high - low) / 2;
        if (f->parts[mid].address <= address)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void file_submit(struct efs_backing *b, struct efs_backing_read *read)
{
    struct backing_file *f = file_of(b);
    read->own = file_at(f, read->offset) * FILES_OF_PART + (f->direct ? FILE_DIRECT : FILE_BUFFERED);
    f->reads[f->inflight++] = read;
    if (!f->uring)
        return; /* wait() reads it */
    file_prepare(f, read);
    /* Submits large reads separately: the kernel would merge adjacent ones, and all would complete at the end. wait()
     * submits the small ones together, with one notification of the device. */
    if (!f->refused && read->bytes > TOGETHER_BYTES)
        file_is_refused(f, efs_sys_uring_submit(&f->ring));
}

static errint_t file_memory(struct efs_backing *b, uint32_t segment, void *base, size_t bytes)
{
    struct backing_file *f = file_of(b);
    if (!f->uring)
        return 0; /* closing the ring has forgotten all memory */
    int rc = efs_sys_uring_register(&f->ring, segment, base, bytes);
    if (base)
        f->b.info.registers = rc == 0;
    else if (file_is_refused(f, rc))
        return f->refused;
    return base ? rc : 0;
}

static void file_arm_wake(struct backing_file *f)
{
    struct io_uring_sqe *sqe = f->wake_armed ? NULL : io_uring_get_sqe(&f->ring);
    if (!sqe)
        return;
    io_uring_prep_read(sqe, f->b.wake_fd, &f->wake_value, sizeof(f->wake_value), 0);
    io_uring_sqe_set_data(sqe, NULL);
    f->wake_armed = true;
}

/* Closes the ring and has the reads in flight retried. Reads that the kernel has started still write to memory: waits
 * for them by the pipe, because entering the ring may be what is rejected. */
static void file_close_ring(struct backing_file *f)
{
    bool in_flight = f->inflight + f->wake_armed > io_uring_sq_ready(&f->ring);
    struct pollfd drained = {.fd = f->drained, .events = POLLIN};
    io_uring_queue_exit(&f->ring);
    while (in_flight && poll(&drained, 1, DRAIN_MS) < 0 && errno == EINTR)
        ;
    f->uring = f->b.info.registers = false;
    atomic_store(&f->b.stats->io_uring, 0);
    while (f->inflight > 0)
        file_read_ended(f, f->reads[f->inflight - 1], -EAGAIN);
    if (f->o.fell_back)
        f->o.fell_back(f->o.arg, "io_uring", f->refused);
}

static void file_wait_ring(struct backing_file *f)
{
    struct io_uring_cqe *cqe;
    file_arm_wake(f);
    if (!f->refused)
        file_is_refused(f, efs_sys_uring_wait(&f->ring, 1));
    while (io_uring_peek_cqe(&f->ring, &cqe) == 0) {
        struct efs_backing_read *read = io_uring_cqe_get_data(cqe);
        int result = read ? efs_sys_uring_result(cqe->res) : 0;
        io_uring_cqe_seen(&f->ring, cqe);
        if (read)
            file_read_ended(f, read, result);
        else
            f->wake_armed = false;
    }
    if (f->refused)
        file_close_ring(f);
}

/* ---- pread(2) ---- */

static void file_wait(struct efs_backing *b)
{
    struct backing_file *f = file_of(b);
    struct efs_backing_read *next = f->reads[0];
    if (f->uring) {
        file_wait_ring(f);
        return;
    }
    if (f->inflight == 0) {
        ssize_t n = read(b->wake_fd, &f->wake_value, sizeof(f->wake_value));
        (void)n; /* EINTR: the queue waits again */
        return;
    }
    const struct efs_backing_part *part = file_part(f, next);
    const int fd = file_is_direct(next) ? part->fd : part->buffered_fd;
    const uint64_t offset = next->offset - part->address;
    file_read_ended(f, next,
                    next->buffer_count > 1 ? efs_sys_preadv(fd, next->buffers, (int)next->buffer_count, offset)
                                           : efs_sys_pread(fd, next->buffers->iov_base, next->bytes, offset));
}

/* ---- open and close ---- */

static bool file_register_files(struct backing_file *f)
{
    int ends[2], rc = -ENOMEM;
    unsigned count = FILES_OF_PART * f->part_count;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return false;
    f->drained = ends[0];
    int *files = efs_sys_calloc(count + 1, sizeof(*files));
    for (unsigned i = 0; files && i < f->part_count; i++) {
        files[FILES_OF_PART * i + FILE_DIRECT] = f->parts[i].fd;
        files[FILES_OF_PART * i + FILE_BUFFERED] = f->parts[i].buffered_fd;
    }
    if (files) {
        files[count] = ends[1];
        rc = efs_sys_uring_files(&f->ring, files, count + 1);
    }
    free(files);
    close(ends[1]);
    return rc >= 0;
}

static void file_leave_ring(struct backing_file *f)
{
    if (f->uring)
        io_uring_queue_exit(&f->ring);
    if (f->drained >= 0)
        close(f->drained);
    f->uring = f->wake_armed = false;
    f->drained = -1;
}

/* Opens the ring, which belongs to the thread that creates it: another thread opens another one. */
static void file_start(struct efs_backing *b)
{
    struct backing_file *f = file_of(b);
    file_leave_ring(f);
    if (efs_sys_uring_init(&f->ring, 2 * DEPTH, false) >= 0) {
        f->uring = file_register_files(f);
        if (!f->uring)
            io_uring_queue_exit(&f->ring);
    }
    b->info.depth = f->uring ? DEPTH : 1;
    b->info.registers = f->uring && efs_sys_uring_slots(&f->ring, b->segments) == 0;
    if (f->uring)
        atomic_store(&f->b.stats->io_uring, 1);
}

static void file_close(struct efs_backing *b, bool in_child)
{
    struct backing_file *f = file_of(b);
    if (f->uring && !in_child) {
        /* otherwise the kernel unpins the pages and closes the files some ms after the process exits: a mount started
         * at once has less memory, and the filesystem of the store cannot be unmounted */
        io_uring_unregister_buffers(&f->ring);
        io_uring_unregister_files(&f->ring);
    }
    file_leave_ring(f);
    free(f);
}

struct efs_backing *efs_backing_file_new(const struct efs_backing_file_options *options)
{
    static const struct efs_backing_ops ops = {
        .start = file_start, .submit = file_submit, .wait = file_wait, .memory = file_memory, .close = file_close};
    const struct efs_backing_part only = {.fd = options->fd, .buffered_fd = options->buffered_fd, .bytes = UINT64_MAX};
    unsigned count = options->parts ? options->part_count : 1;
    struct backing_file *f = efs_sys_calloc(1, sizeof(*f) + count * sizeof(f->parts[0]));
    if (!f)
        return NULL;
    /* best_bytes: with 4 MiB a request of 8 experts took 4 % longer, because fewer reads are in flight at its end */
    f->b = (struct efs_backing){.ops = &ops,
                                .info = {.align = 4096, .best_bytes = 2u << 20, .depth = DEPTH, .joins = true}};
    f->o = *options;
    f->o.parts = NULL;
    f->part_count = count;
    memcpy(f->parts, options->parts ? options->parts : &only, count * sizeof(f->parts[0]));
    for (unsigned i = 0; i < count; i++)
        f->direct = f->direct || f->parts[i].fd != f->parts[i].buffered_fd;
    f->drained = -1;
    f->b.direct_fd = count == 1 && !options->check ? f->parts[0].fd : -1;
    return &f->b;
}
