/* SPDX-License-Identifier: Apache-2.0 */
/* direct.c - see direct.h. */
#include "direct.h"

#include "sys.h"

#include <errno.h>

static errint_t read_each(int fd, const struct efs_io *requests)
{
    for (const struct efs_io *io = requests; io; io = io->next) {
        ssize_t n = efs_sys_pread(fd, io->data, io->bytes, io->offset);
        if (n != (ssize_t)io->bytes)
            return n < 0 ? (errint_t)n : -EIO;
    }
    return 0;
}

static bool ring_is_ready(struct efs_direct *d)
{
    if (d->state == EFS_DIRECT_NEW)
        d->state = efs_sys_uring_init(&d->ring, EFS_DIRECT_MOST, true) < 0 ? EFS_DIRECT_PREAD : EFS_DIRECT_RING;
    return d->state == EFS_DIRECT_RING;
}

static errint_t completion_error(const struct io_uring_cqe *cqe)
{
    const struct efs_io *io = io_uring_cqe_get_data(cqe);
    int result = efs_sys_uring_result(cqe->res);
    return result < 0 ? result : (size_t)result == io->bytes ? 0 : -EIO;
}

/* The first call submits all requests, or fails without submitting any: then the ring is not used again. Later calls
 * only wait, and are repeated until no read is in flight. */
static errint_t ring_read(struct efs_direct *d, int fd, const struct efs_io *requests)
{
    struct io_uring_cqe *cqe;
    unsigned left = 0;
    errint_t error = 0;
    for (const struct efs_io *io = requests; io; io = io->next, left++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&d->ring);
        io_uring_prep_read(sqe, fd, io->data, (unsigned)io->bytes, io->offset);
        io_uring_sqe_set_data(sqe, (void *)(uintptr_t)io);
    }
    for (bool submitted = false; left > 0; submitted = true) {
        int rc = efs_sys_uring_wait(&d->ring, left);
        if (rc < 0 && !submitted) {
            efs_direct_close(d);
            d->state = EFS_DIRECT_PREAD;
            return rc;
        }
        while (io_uring_peek_cqe(&d->ring, &cqe) == 0) {
            errint_t rc_read = completion_error(cqe);
            error = rc_read < 0 ? rc_read : error;
            io_uring_cqe_seen(&d->ring, cqe);
            left--;
        }
    }
    return error;
}

errint_t efs_direct_read(struct efs_direct *d, int fd, const struct efs_io *requests)
{
    return requests->next && ring_is_ready(d) ? ring_read(d, fd, requests) : read_each(fd, requests);
}

void efs_direct_close(struct efs_direct *d)
{
    if (d->state == EFS_DIRECT_RING)
        io_uring_queue_exit(&d->ring);
    d->state = EFS_DIRECT_NEW;
}
