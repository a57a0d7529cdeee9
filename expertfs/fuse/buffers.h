/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffers.h - the fixed pool of reply buffers. The slots of decode_ahead.h are taken from it at the start.
 */
#ifndef EFSD_BUFFERS_H
#define EFSD_BUFFERS_H

#include <pthread.h>

#include "decode_ahead.h"
#include "mount.h"

struct efsd_open;

#define EFSD_CUT_BYTES (128u << 10) /* a request of at least this length may be part of a longer read */

/* A reply buffer and the read that it answers. The read that took it owns it. */
struct efsd_buffer {
    uint8_t *data;  /* EFSD_IO_BYTES, page-aligned */
    uint8_t *begin; /* start of the reply, in data */
    struct efsd_buffer *next;
    struct efsd *daemon;
    struct efsd_open *open;
    _Atomic(fuse_req_t) req; /* the thread that takes it replies; NULL: answered, buffer still in use */
};

struct efsd_buffers {
    pthread_mutex_t lock; /* guards free, ahead, sequence, reader, and each open's struct efsd_read_prediction */
    pthread_cond_t available;
    struct efsd_buffer *free; /* a stack: the buffer used last is in the processor's cache */
    struct efsd_buffer *all;
    uint8_t *memory;
    size_t count; /* all buffers, including those of ahead */
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

errint_t efsd_buffers_open(struct efsd_buffers *buffers, size_t count);
void efsd_buffers_close(struct efsd_buffers *buffers);
/* Takes a buffer, and blocks while none is free; *waited: it did block. A read that holds a buffer never waits for a
 * receiving thread, so the wait ends. Meanwhile further requests stay in the kernel's queue, from which the kernel
 * removes those of killed readers. */
struct efsd_buffer *efsd_buffer_get(struct efsd_buffers *buffers, bool *waited);
void efsd_buffer_put(struct efsd_buffers *buffers, struct efsd_buffer *buffer);

#endif
