/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffers.h - the two fixed pools of reply buffers: of EFSD_IO_BYTES, from which the slots of decode_ahead.h are taken
 * at the start, and of EFSD_SMALL_BYTES, so that many small reads are in flight while a few large ones are.
 */
#ifndef EFSD_BUFFERS_H
#define EFSD_BUFFERS_H

#include <pthread.h>

#include "decode_ahead.h"
#include "mount.h"

struct efsd_open;

#define EFSD_SMALL_BYTES (32u << 10) /* as large as a small read of the engine */
#define EFSD_SMALL_COUNT 16u         /* more than receiving threads: each may wait for the disk with one */
#define EFSD_CUT_BYTES (128u << 10)  /* a request of at least this length may be part of a longer read */

/* A reply buffer and the read that it answers. The read that took it owns it. */
struct efsd_buffer {
    uint8_t *data;  /* EFSD_IO_BYTES or EFSD_SMALL_BYTES, page-aligned */
    uint8_t *begin; /* start of the reply, in data */
    struct efsd_buffer *next;
    bool small;
    struct efsd *daemon;
    struct efsd_open *open;
    _Atomic(fuse_req_t) req; /* the thread that takes it replies; NULL: answered, buffer still in use */
};

struct efsd_buffers {
    pthread_mutex_t lock;        /* guards free, ahead, sequence, reader, and each open's struct efsd_read_prediction */
    pthread_cond_t available[2]; /* [small], as free */
    struct efsd_buffer *free[2]; /* a stack: the buffer used last is in the processor's cache */
    struct efsd_buffer *all;
    uint8_t *memory;
    size_t count; /* all large buffers, including those of ahead */
    struct efsd_decode_ahead ahead[EFSD_DECODE_AHEAD_SLOTS];
    size_t ahead_count;
    uint64_t sequence;
    const struct efsd_open *reader; /* open of the last uncached read; may be freed, only compared */
};

/*
 * Offset of the reply to a request in its buffer. The kernel cuts a long read where a page of the reader's buffer ends,
 * so the length of the request gives the offset in a page at which that buffer starts. If the reply has the same offset
 * in a page, the kernel copies whole pages; otherwise it copies each page in two parts, which is slow if the offsets
 * differ by a byte or two. Every offset is correct.
 */
static inline size_t efsd_reply_offset(size_t bytes)
{
    return bytes < EFSD_CUT_BYTES ? 0 : (EFSD_PAGE_BYTES - bytes % EFSD_PAGE_BYTES) % EFSD_PAGE_BYTES;
}

/* Memory of `count` large buffers and the small ones. */
static inline size_t efsd_buffers_bytes(size_t count)
{
    return count * EFSD_IO_BYTES + (size_t)EFSD_SMALL_COUNT * EFSD_SMALL_BYTES;
}

errint_t efsd_buffers_open(struct efsd_buffers *buffers, size_t count);
void efsd_buffers_close(struct efsd_buffers *buffers);
/* Takes a buffer for a reply of `bytes`, and blocks while none is free; *waited: it did block. A read that holds a
 * buffer never waits for a receiving thread, so the wait ends. Meanwhile further requests stay in the kernel's queue,
 * from which the kernel removes those of killed readers. */
struct efsd_buffer *efsd_buffer_get(struct efsd_buffers *buffers, size_t bytes, bool *waited);
void efsd_buffer_put(struct efsd_buffers *buffers, struct efsd_buffer *buffer);

#endif
