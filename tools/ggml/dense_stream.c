/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dense_stream.c - reads of rows that are not kept, in the order in which products will use them: the matrix that
 * followed another one the last time follows it again. Parts are a ring: each is read as soon as the rows before it in
 * the same memory were used, by io_uring with O_DIRECT, so that the disk reads while products are computed. Where
 * io_uring is refused, a part is read when a product waits for it.
 */
#include "dense.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PART_BYTES ((size_t)2 << 20)
#define PARTS_MAX 16u
#define PARTS_MIN 4u
#define READS_SHARE 4u /* reads take at most 1/4 of a limit */

static struct efsg_dense_part parts[PARTS_MAX];
static unsigned count;            /* of parts; 0: not open */
static uint64_t submitted, taken; /* parts since the last drop; part i is parts[i % count] */
static struct efsg_dense *at;     /* the matrix of the next read; NULL: not known */
static uint32_t at_row;           /* and its row */
static struct efsg_dense *last;   /* the matrix of the last product; NULL: none since the last drop */
static struct io_uring ring;
static bool ring_open;

static unsigned parts_for(uint64_t limit_bytes)
{
    const uint64_t fit = limit_bytes / READS_SHARE / PART_BYTES;
    return fit > PARTS_MAX ? PARTS_MAX : fit < PARTS_MIN ? PARTS_MIN : (unsigned)fit;
}

size_t efsg_dense_stream_bytes(uint64_t limit_bytes)
{
    return parts_for(limit_bytes) * PART_BYTES;
}

errint_t efsg_dense_stream_open(uint64_t limit_bytes)
{
    if (count)
        return 0;
    const unsigned n = parts_for(limit_bytes);
    uint8_t *pages = mmap(NULL, n * PART_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++)
        parts[i].pages = pages + i * PART_BYTES;
    count = n;
    ring_open = io_uring_queue_init(PARTS_MAX, &ring, 0) == 0;
    return 0;
}

/* ---- reads ---- */

static uint64_t offset_of(const struct efsg_dense_part *p)
{
    return p->weight->offset + (uint64_t)p->begin * p->weight->row_bytes - (uint64_t)(p->rows - p->pages);
}

static void read_now(struct efsg_dense_part *p)
{
    p->error = efsg_dense_read(p->weight->file, p->pages, p->bytes, p->least, offset_of(p));
    p->state = EFSG_PART_READ;
}

/* Waits for one read and records its result. -errno: io_uring fails. */
static errint_t reap(void)
{
    struct io_uring_cqe *cqe;
    errint_t rc = io_uring_peek_cqe(&ring, &cqe);
    while (rc == -EAGAIN || rc == -EINTR || rc == -EBUSY) {
        rc = io_uring_submit_and_wait(&ring, 1);
        rc = rc < 0 ? rc : io_uring_peek_cqe(&ring, &cqe);
    }
    if (rc < 0)
        return rc;
    struct efsg_dense_part *p = io_uring_cqe_get_data(cqe);
    const int read = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    p->error = 0;
    p->state = EFSG_PART_READ;
    if (read < 0 || (size_t)read < p->least)
        read_now(p); /* again, by pread(), which finds the reason */
    return 0;
}

/* Sets the rows of a part: those after the last one that was submitted. False: which these are is not known. */
static bool choose(struct efsg_dense_part *p)
{
    if (at && at_row == at->rows) {
        at = at->after;
        at_row = at ? at->keep : 0;
    }
    if (!at || at_row == at->rows)
        return false;
    uint32_t rows = (uint32_t)((PART_BYTES - 2 * DENSE_PAGE) / at->row_bytes);
    rows = rows > DENSE_ROWS ? rows / DENSE_ROWS * DENSE_ROWS : rows;
    rows = rows < at->rows - at_row ? rows : at->rows - at_row;
    const uint64_t offset = at->offset + (uint64_t)at_row * at->row_bytes;
    const size_t skip = (size_t)(offset % DENSE_PAGE);
    p->weight = at;
    p->begin = at_row;
    p->end = at_row + rows;
    p->rows = p->pages + skip;
    p->least = skip + rows * at->row_bytes;
    p->bytes = (p->least + DENSE_PAGE - 1) / DENSE_PAGE * DENSE_PAGE;
    at_row += rows;
    return true;
}

/* Begins to read into all free memory. */
static void fill(void)
{
    bool queued = false;
    for (struct efsg_dense_part *p; (p = &parts[submitted % count])->state == EFSG_PART_FREE && choose(p);
         submitted++) {
        p->state = EFSG_PART_READING;
        if (!ring_open)
            continue;
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring); /* there are PARTS_MAX */
        io_uring_prep_read(sqe, p->weight->file->fd, p->pages, (unsigned)p->bytes, offset_of(p));
        io_uring_sqe_set_data(sqe, p);
        queued = true;
    }
    if (queued)
        (void)io_uring_submit(&ring); /* reap() submits the reads that the ring does not take now */
}

void efsg_dense_stream_drop(void)
{
    for (unsigned i = 0; i < count; i++) {
        errint_t rc = 0;
        while (ring_open && parts[i].state == EFSG_PART_READING && rc == 0)
            rc = reap();
        if (rc < 0) { /* the kernel may still write to this memory: it is not used again */
            ring_open = false;
            count = 0;
        }
        parts[i].state = EFSG_PART_FREE;
    }
    submitted = taken = 0;
    at = last = NULL;
}

errint_t efsg_dense_stream_seek(struct efsg_dense *w)
{
    const struct efsg_dense_part *p = &parts[taken % count];
    if (last)
        last->after = w;
    if (w->kept < w->rows && (taken == submitted || p->weight != w || p->begin != w->kept)) {
        efsg_dense_stream_drop();
        at = w;
        at_row = w->kept;
    }
    if (count == 0)
        return -EIO;
    last = w;
    if (w->kept < w->rows)
        fill();
    return 0;
}

bool efsg_dense_stream_ready(void)
{
    return taken < submitted;
}

struct efsg_dense_part *efsg_dense_stream_next(errint_t *error)
{
    struct efsg_dense_part *p = &parts[taken++ % count];
    *error = 0;
    while (ring_open && p->state == EFSG_PART_READING && *error == 0)
        *error = reap();
    if (!ring_open)
        read_now(p);
    *error = *error ? *error : p->error;
    return p;
}

void efsg_dense_stream_done(struct efsg_dense_part *p)
{
    p->state = EFSG_PART_FREE;
    fill();
}
