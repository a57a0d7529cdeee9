/* SPDX-License-Identifier: Apache-2.0 */
/* write_behind.c - the ring buffer and the thread that writes it. */
#include "write_behind.h"

#include "layout.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

_Static_assert(EFS_WRITE_BEHIND_BYTES % EFS_WRITE_BEHIND_PIECE == 0 && EFS_WRITE_BEHIND_PIECE % EFS_ALIGN == 0,
               "a piece lies in one part of the ring");

struct efs_write_behind {
    efs_write_behind_fn *write;
    void *arg;
    uint8_t *ring;
    uint64_t base; /* file offset of the ring's first byte, page-aligned */
    bool threaded;
    unsigned long thread;
    pthread_mutex_t lock;   /* guards the following members */
    pthread_cond_t work;    /* signalled if a piece is full, and for flushing and stop */
    pthread_cond_t written; /* signalled after each write */
    uint64_t end;           /* file offset after the last byte appended */
    uint64_t done;          /* file offset up to which all is written, page-aligned */
    bool flushing, stop;
    errint_t rc; /* of the first failed write */
    struct efs_error err;
};

static uint8_t *behind_at(const struct efs_write_behind *b, uint64_t offset)
{
    return b->ring + (offset - b->base) % EFS_WRITE_BEHIND_BYTES;
}

/* End of the next write; b->done if no write is due. */
static uint64_t next_end(const struct efs_write_behind *b)
{
    uint64_t piece = b->done + EFS_WRITE_BEHIND_PIECE - (b->done - b->base) % EFS_WRITE_BEHIND_PIECE;
    if (b->rc < 0)
        return b->done;
    if (piece <= b->end)
        return piece;
    return b->flushing ? efs_page_down(b->end) : b->done;
}

/* Called with the lock held; releases it during the write. */
static void write_next(struct efs_write_behind *b, uint64_t end)
{
    uint64_t begin = b->done;
    struct efs_error err = {""};
    pthread_mutex_unlock(&b->lock);
    errint_t rc = b->write(b->arg, behind_at(b, begin), (size_t)(end - begin), begin, &err);
    pthread_mutex_lock(&b->lock);
    if (rc < 0) {
        b->rc = rc;
        b->err = err;
    } else
        b->done = end;
    pthread_cond_broadcast(&b->written);
}

static void *write_thread(void *arg)
{
    struct efs_write_behind *b = arg;
    pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        uint64_t end = next_end(b);
        if (end > b->done)
            write_next(b, end);
        else
            pthread_cond_wait(&b->work, &b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Lock held. Wakes the thread if a write is due; without a thread, performs the writes. */
static void start_writes(struct efs_write_behind *b)
{
    uint64_t end = next_end(b);
    if (end == b->done)
        return;
    if (b->threaded)
        pthread_cond_signal(&b->work);
    for (; !b->threaded && end > b->done; end = next_end(b)) {
        write_next(b, end);
        if (b->rc < 0)
            return;
    }
}

errint_t efs_write_behind_start(uint64_t begin, efs_write_behind_fn *write, void *arg, struct efs_write_behind **behind)
{
    struct efs_write_behind *b = efs_sys_calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    *b = (struct efs_write_behind){.write = write, .arg = arg, .base = efs_page_down(begin), .end = begin};
    b->done = b->base;
    b->ring = efs_sys_mmap(NULL, EFS_WRITE_BEHIND_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!b->ring) {
        free(b);
        return -ENOMEM;
    }
    efs_sys_madvise(b->ring, EFS_WRITE_BEHIND_BYTES,
                    MADV_HUGEPAGE); /* optional: fewer page faults, fewer pages to pin */
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    pthread_cond_init(&b->written, NULL);
    b->threaded = efs_thread_start(write_thread, b, "efs-behind", &b->thread) == 0;
    *behind = b;
    return 0;
}

/* Lock held. */
static errint_t behind_failure(const struct efs_write_behind *b, struct efs_error *err)
{
    return b->rc < 0 ? efs_fail(err, b->rc, "%s", b->err.text) : 0;
}

errint_t efs_write_behind_append(struct efs_write_behind *b, const uint8_t *data, size_t bytes, struct efs_error *err)
{
    errint_t rc = 0;
    pthread_mutex_lock(&b->lock);
    while (bytes > 0) {
        while (b->rc == 0 && b->end - b->done == EFS_WRITE_BEHIND_BYTES)
            pthread_cond_wait(&b->written, &b->lock);
        rc = behind_failure(b, err);
        if (rc < 0)
            break;
        uint64_t free_bytes = EFS_WRITE_BEHIND_BYTES - (b->end - b->done);
        uint64_t piece = EFS_WRITE_BEHIND_PIECE - (b->end - b->base) % EFS_WRITE_BEHIND_PIECE;
        size_t n = (size_t)(free_bytes < piece ? free_bytes : piece);
        n = n < bytes ? n : bytes;
        uint8_t *to = behind_at(b, b->end);
        pthread_mutex_unlock(&b->lock);
        if (data)
            memcpy(to, data, n);
        else
            memset(to, 0, n);
        data = data ? data + n : NULL;
        bytes -= n;
        pthread_mutex_lock(&b->lock);
        b->end += n;
        start_writes(b);
    }
    pthread_mutex_unlock(&b->lock);
    return rc;
}

errint_t efs_write_behind_flush(struct efs_write_behind *b, struct efs_error *err)
{
    pthread_mutex_lock(&b->lock);
    b->flushing = true;
    start_writes(b);
    while (b->rc == 0 && b->done < efs_page_down(b->end))
        pthread_cond_wait(&b->written, &b->lock);
    b->flushing = false;
    errint_t rc = behind_failure(b, err);
    pthread_mutex_unlock(&b->lock);
    return rc;
}

uint8_t *efs_write_behind_page(struct efs_write_behind *b)
{
    return behind_at(b, efs_page_down(b->end));
}

void efs_write_behind_seek(struct efs_write_behind *b, uint64_t begin)
{
    pthread_mutex_lock(&b->lock);
    b->base = b->done = b->end = begin;
    pthread_mutex_unlock(&b->lock);
}

void efs_write_behind_stop(struct efs_write_behind *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
    if (b->threaded)
        pthread_join(b->thread, NULL);
    pthread_cond_destroy(&b->written);
    pthread_cond_destroy(&b->work);
    pthread_mutex_destroy(&b->lock);
    efs_sys_munmap(b->ring, EFS_WRITE_BEHIND_BYTES);
    free(b);
}
