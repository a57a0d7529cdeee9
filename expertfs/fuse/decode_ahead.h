/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_ahead.h - decodes blocks before they are requested, for sequential uncached readers. All functions are called
 * on the thread that received the request, except efsd_decode_ahead_answered(), which has no effect on other threads.
 */
#ifndef EFSD_DECODE_AHEAD_H
#define EFSD_DECODE_AHEAD_H

#include "mount.h"

struct efsd_open;

/* A slot for one block; guarded by efsd_buffers.lock. */
struct efsd_decode_ahead {
    uint8_t *data; /* EFSD_IO_BYTES; constant */
    struct efsd *daemon;
    uint64_t offset, sequence;
    size_t bytes;
    uint32_t node;
    unsigned state, sending; /* sending: replies from the slot in flight */
    bool end_sent;           /* the end of the block was sent: no more requests are expected */
    fuse_req_t req;          /* the request that waits for the whole block */
};
#define EFSD_DECODE_AHEAD_SLOTS 4u

/* Prediction of a reader's next request; guarded by efsd_buffers.lock. */
struct efsd_read_prediction {
    uint64_t offset, end; /* end: of the last large read */
    size_t bytes;         /* expected length; less at the end of the file */
    bool certain;         /* the last prediction was right, or the last read was the first one, at offset 0 */
    bool small;           /* the reader is one of small reads: the fields below predict the next one. Not for a single
                           * one, such as the end of a large read that the kernel cuts */
    uint64_t small_end;   /* of the last small read */
    size_t small_bytes;   /* its length */
    uint32_t small_run;   /* consecutive adjacent small reads, up to a limit */
};

/* Updates the prediction with an uncached read. True if the read was predicted. */
bool efsd_decode_ahead_predict(struct efsd *daemon, struct efsd_open *open, uint64_t offset, size_t bytes);
/* Answers from a decoded block, or registers the request with a block that is being decoded, which answers it later.
 * false: no such block. */
bool efsd_decode_ahead_serve(struct efsd *daemon, fuse_req_t req, uint32_t node, uint64_t offset, size_t bytes);
/* Records that the current request was answered on this thread. */
void efsd_decode_ahead_answered(void);
/* If it was: decodes the blocks that follow, each only if the previous one was requested before it was decoded. The
 * caller holds a reference on open. */
void efsd_decode_ahead_start_next(struct efsd *daemon, struct efsd_open *open);

#endif
