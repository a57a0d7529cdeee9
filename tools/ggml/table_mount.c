/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table_mount.c - rows of a table in a file of a mount: their pages are read with O_DIRECT, all at once, so that the
 * daemon serves them as small reads and caches them. Through the mapping each row is a page fault that waits for the
 * daemon alone.
 */
#include "table_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 64u /* reads in flight */
#define PAGE 4096u

struct efsg_mount_rows {
    int fd;
    pthread_mutex_t lock; /* guards ring */
    struct io_uring ring;
    bool ring_open; /* false: io_uring is refused here, reads follow each other */
};

struct efsg_mount_rows *efsg_mount_rows_open(const struct efsg_file *file)
{
    struct efsg_mount_rows *r = calloc(1, sizeof(*r));
    struct stat st;
    if (!r)
        return NULL;
    r->fd = efsg_file_open(file, O_DIRECT, &st);
    if (r->fd < 0) {
        free(r);
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    r->ring_open = io_uring_queue_init(DEPTH, &r->ring, 0) == 0;
    return r;
}

void efsg_mount_rows_close(struct efsg_mount_rows *r)
{
    if (!r)
        return;
    if (r->ring_open)
        io_uring_queue_exit(&r->ring);
    pthread_mutex_destroy(&r->lock);
    close(r->fd);
    free(r);
}

/* The pages of a row. */
struct span {
    off_t offset;
    size_t bytes, least; /* least: up to the row's end; the file may end in the last page */
};

static struct span span_of(uint64_t offset, size_t bytes)
{
    const size_t skip = (size_t)(offset % PAGE);
    return (struct span){(off_t)(offset - skip), (skip + bytes + PAGE - 1) / PAGE * PAGE, skip + bytes};
}

static errint_t result_of(ssize_t result, const struct span *span)
{
    return result < 0 ? (errint_t)result : (size_t)result < span->least ? -EIO : 0;
}

/* Submits the reads of `count` rows and waits for all. Returns the first error. */
static errint_t wait_all(struct efsg_mount_rows *r, uint32_t count, size_t bytes)
{
    errint_t rc = 0;
    int ready;
    do
        ready = io_uring_submit_and_wait(&r->ring, count);
    while (ready == -EINTR || ready == -EAGAIN || ready == -EBUSY);
    for (uint32_t i = 0; i < count; i++) {
        struct io_uring_cqe *cqe;
        while ((ready = io_uring_wait_cqe(&r->ring, &cqe)) == -EINTR)
            ;
        if (ready < 0)
            return ready;
        const struct efs_row *row = io_uring_cqe_get_data(cqe);
        const struct span span = span_of(row->offset, bytes);
        rc = rc < 0 ? rc : result_of(cqe->res, &span);
        io_uring_cqe_seen(&r->ring, cqe);
    }
    return rc;
}

static errint_t read_some(struct efsg_mount_rows *r, const struct efs_row *rows, uint32_t count, size_t bytes,
                          uint8_t *pages)
{
    errint_t rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        const struct span span = span_of(rows[i].offset, bytes);
        uint8_t *to = pages + i * efsg_mount_pages_bytes(bytes);
        if (!r->ring_open) {
            const ssize_t got = pread(r->fd, to, span.bytes, span.offset);
            rc = result_of(got < 0 ? -errno : got, &span);
            continue;
        }
        struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring); /* there are DEPTH, and none is in use */
        io_uring_prep_read(sqe, r->fd, to, (unsigned)span.bytes, (uint64_t)span.offset);
        io_uring_sqe_set_data(sqe, (void *)(uintptr_t)&rows[i]); // NOLINT: const of efs_row
    }
    if (r->ring_open)
        rc = wait_all(r, count, bytes);
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        memcpy(rows[i].dst, pages + i * efsg_mount_pages_bytes(bytes) + rows[i].offset % PAGE, bytes);
    return rc;
}

errint_t efsg_mount_rows_read(struct efsg_mount_rows *r, const struct efs_row *rows, uint32_t count, size_t bytes,
                              void *scratch)
{
    uint8_t *pages = (uint8_t *)(((uintptr_t)scratch + PAGE - 1) / PAGE * PAGE); // NOLINT
    errint_t rc = 0;
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0, n; rc == 0 && i < count; i += n) {
        n = count - i < DEPTH ? count - i : DEPTH;
        rc = read_some(r, rows + i, n, bytes, pages);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}
