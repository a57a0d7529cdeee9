/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffers.h - the fixed pool of reply buffers; the first of them are blocks of decode_ahead.h.
 */
#ifndef EFSD_BUFFERS_H
#define EFSD_BUFFERS_H

#include <pthread.h>

#include "decode_ahead.h"
#include "mount.h"

struct efsd_open;

#define EFSD_CUT_BYTES (128u << 10) /* of this length a request may be one that was cut */

/* A buffer and the read that it answers; owned by whoever took it. */
struct efsd_buffer {
    uint8_t *data;  /* EFSD_IO_BYTES, page-aligned */
    uint8_t *begin; /* of the answer, in data */
    struct efsd_buffer *next;
    struct efsd *daemon;
    struct efsd_open *open;
    _Atomic(fuse_req_t) req; /* who takes it answers; NULL: was answered, the buffer is not free yet */
};

struct efsd_buffers {
    pthread_mutex_t lock; /* guards free, the slots of ahead, and guesses */
    pthread_cond_t given;
    struct efsd_buffer *free; /* last given first: it is warm */
    struct efsd_buffer *all;
    uint8_t *memory;
    size_t count; /* with those of ahead */
    struct efsd_decode_ahead ahead[EFSD_DECODE_AHEADS];
    size_t ahead_count;
    uint64_t turn;
    const struct efsd_open *reader; /* of the last large read; maybe gone: only compared */
};

/*
 * Where the answer to a request begins in a buffer. The kernel cuts a long read where a page of the reader's buffer
 * ends: the length tells how far behind a page that begins. An answer that begins as far behind one is copied whole
 * pages at a time; else each is copied in two parts, which is slow where they are a byte or two apart. Any place is
 * right.
 */
static inline size_t efsd_answer_begin(size_t bytes)
{
    return bytes < EFSD_CUT_BYTES ? 0 : (EFSD_PAGE_BYTES - bytes % EFSD_PAGE_BYTES) % EFSD_PAGE_BYTES;
}

errint_t efsd_buffers_open(struct efsd_buffers *buffers, size_t count);
void efsd_buffers_close(struct efsd_buffers *buffers);
/* Waits while all are taken; *waited says whether it did. Who holds a buffer never waits for a receiving thread, so
 * the wait ends. Meanwhile further requests stay in the kernel's queue, where a killed reader can take them back. */
struct efsd_buffer *efsd_buffer_take(struct efsd_buffers *buffers, bool *waited);
void efsd_buffer_give(struct efsd_buffers *buffers, struct efsd_buffer *buffer);

#endif
