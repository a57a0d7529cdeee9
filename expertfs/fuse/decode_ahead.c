/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_ahead.c - for a sequential uncached reader: the thread that answered with a block decodes the next one into
 * one of a few slots, while the reader copies the first. The next request is answered from the slot or, if it arrives
 * before the block is decoded, by the decoding thread. This is done only while blocks come from memory: the engine does
 * read-ahead from the disk.
 *
 * Small requests, as of cp and of C and C++ streams, share a block that is larger than a request: for each of them the
 * engine's locks and tables would take longer than the decoding.
 *
 * Slots are never invalidated, because files never change.
 */
#include "decode_ahead.h"

#include <errno.h>

#include "caller.h"
#include "daemon.h"

#define LARGE_BYTES (128u << 10) /* a read of at least this size has its own block; smaller ones share blocks */
#define BLOCK_BYTES (256u << 10) /* most for small reads; the next one is decoded when half of this one was read */
#define SMALL_SEQUENTIAL 4u      /* consecutive small reads that make a reader sequential */

enum state {
    BLOCK_FREE,     /* unused */
    BLOCK_DECODING, /* being decoded */
    BLOCK_AWAITED,  /* being decoded, and requested: the thread that decodes it replies */
    BLOCK_READY     /* decoded, not yet sent to the end */
};

/* True: the current request was answered on this thread, possibly inside efs_read(). */
static _Thread_local bool answered;

void efsd_decode_ahead_answered(void)
{
    answered = true;
}

/* Lock held. The slot whose block contains the whole range, or NULL. */
static struct efsd_decode_ahead *ahead_find(struct efsd_buffers *buffers, uint32_t node, uint64_t offset, size_t bytes)
{
    for (size_t i = 0; i < buffers->ahead_count; i++) {
        struct efsd_decode_ahead *a = &buffers->ahead[i];
        if (a->state != BLOCK_FREE && a->node == node && offset >= a->offset && offset - a->offset <= a->bytes &&
            bytes <= a->bytes - (offset - a->offset))
            return a;
    }
    return NULL;
}

/* Address in the slot of the byte at offset in the file. */
static const uint8_t *ahead_bytes_at(const struct efsd_decode_ahead *a, uint64_t offset)
{
    return a->data + efsd_reply_offset(a->bytes) + (offset - a->offset);
}

/* Lock held. A reply up to end was sent. Frees the slot if the end of the block was sent and no reply is in flight. */
static void ahead_sent(struct efsd_decode_ahead *a, uint64_t end)
{
    a->sending--;
    a->end_sent |= end == a->offset + a->bytes;
    if (a->end_sent && !a->sending)
        a->state = BLOCK_FREE;
}

/* Returns bytes, limited to the end of the file. */
static size_t file_bytes_within(const struct efsd *daemon, uint32_t node, uint64_t offset, size_t bytes)
{
    uint64_t size = daemon->tree.nodes[node].bytes, left = offset < size ? size - offset : 0;
    return left < bytes ? (size_t)left : bytes;
}

/* The caller of the request that waits for a block was interrupted. If it is being killed, replies EINTR: the block may
 * wait for the disk without limit. */
static void ahead_interrupted(fuse_req_t req, void *arg)
{
    struct efsd *daemon = arg;
    struct efsd_buffers *buffers = &daemon->buffers;
    bool waited = false;
    if (!efsd_caller_is_killed(req))
        return;
    pthread_mutex_lock(&buffers->lock);
    for (size_t i = 0; i < buffers->ahead_count && !waited; i++) {
        struct efsd_decode_ahead *a = &buffers->ahead[i];
        waited = a->state == BLOCK_AWAITED && a->req == req;
        a->state = waited ? BLOCK_DECODING : a->state;
    }
    pthread_mutex_unlock(&buffers->lock);
    if (waited) {
        efsd_count(&daemon->counters.read_interrupts, 1);
        fuse_reply_err(req, EINTR);
    }
}

bool efsd_decode_ahead_serve(struct efsd *daemon, fuse_req_t req, uint32_t node, uint64_t offset, size_t bytes)
{
    struct efsd_buffers *buffers = &daemon->buffers;
    bytes = file_bytes_within(daemon, node, offset, bytes);
    fuse_req_interrupt_func(req, ahead_interrupted, daemon);
    pthread_mutex_lock(&buffers->lock);
    struct efsd_decode_ahead *a = bytes ? ahead_find(buffers, node, offset, bytes) : NULL;
    /* a request for part of a block does not wait, the rest may be damaged; nor does one already interrupted */
    bool decoding = a && a->state == BLOCK_DECODING && a->bytes == bytes && !fuse_req_interrupted(req),
         ready = a && a->state == BLOCK_READY;
    if (decoding) {
        a->state = BLOCK_AWAITED;
        a->req = req;
    } else if (ready) {
        a->sending++; /* keeps the slot until the reply was sent */
    }
    pthread_mutex_unlock(&buffers->lock);
    if (!decoding && !ready)
        return false;
    efsd_count(&daemon->counters.ahead_hits, 1);
    efsd_count(&daemon->counters.ahead_hit_bytes, ready ? bytes : 0);
    answered = true; /* or will be: decode the next block meanwhile */
    if (ready) {
        efsd_reply_read(daemon, req, 0, ahead_bytes_at(a, offset), bytes);
        pthread_mutex_lock(&buffers->lock);
        ahead_sent(a, offset + bytes);
        pthread_mutex_unlock(&buffers->lock);
    }
    return true;
}

static void ahead_done(void *arg, errint_t error, size_t bytes)
{
    struct efsd_decode_ahead *a = arg;
    struct efsd *daemon = a->daemon;
    struct efsd_buffers *buffers = &daemon->buffers;
    pthread_mutex_lock(&buffers->lock);
    bool awaited = a->state == BLOCK_AWAITED;
    fuse_req_t req = a->req;
    a->req = NULL; /* ahead_interrupted() can no longer find it */
    if (!awaited)
        a->state = error ? BLOCK_FREE : BLOCK_READY; /* after an error the reader's request goes to the engine */
    pthread_mutex_unlock(&buffers->lock);
    efsd_count(&daemon->counters.ahead_bytes, bytes);
    if (!awaited) {
        efsd_count(&daemon->counters.ahead_errors, error != 0);
        return;
    }
    efsd_count(&daemon->counters.ahead_hit_bytes, bytes);
    answered = true;
    efsd_reply_read(daemon, req, error, ahead_bytes_at(a, a->offset), bytes);
    pthread_mutex_lock(&buffers->lock);
    a->state = BLOCK_FREE;
    pthread_mutex_unlock(&buffers->lock);
}

/* Lock held. The predicted range, if no slot has it. false: no prediction. */
static bool ahead_expected(struct efsd *daemon, const struct efsd_open *open, uint64_t *offset, size_t *bytes)
{
    const struct efsd_read_prediction *g = &open->prediction;
    const struct efsd_decode_ahead *a;
    if (!g->small) {
        *offset = g->offset;
        *bytes = g->bytes;
        return g->certain && *bytes && !ahead_find(&daemon->buffers, open->node, *offset, *bytes);
    }
    if (g->small_bytes == 0)
        return false;
    *offset = g->small_end;
    while (*offset - g->small_end <= BLOCK_BYTES / 2 && (a = ahead_find(&daemon->buffers, open->node, *offset, 1)))
        *offset = a->offset + a->bytes;
    /* whole reads: one that continued in the next block would be decoded again */
    *bytes = file_bytes_within(daemon, open->node, *offset, BLOCK_BYTES / g->small_bytes * g->small_bytes);
    return *bytes && *offset - g->small_end <= BLOCK_BYTES / 2;
}

/* Lock held. Whether the next small read of this open is in the block. */
static bool ahead_is_read(const struct efsd_decode_ahead *a, const struct efsd_open *open)
{
    const struct efsd_read_prediction *g = &open->prediction;
    return g->small && a->node == open->node && g->small_end >= a->offset && g->small_end - a->offset < a->bytes;
}

/* Takes a slot for the predicted range: a free one, else the decoded block that was started first. NULL: no slot, or no
 * prediction. */
static struct efsd_decode_ahead *ahead_begin(struct efsd *daemon, const struct efsd_open *open)
{
    struct efsd_buffers *buffers = &daemon->buffers;
    struct efsd_decode_ahead *slot = NULL;
    uint64_t offset;
    size_t bytes;
    pthread_mutex_lock(&buffers->lock);
    for (size_t i = 0; i < buffers->ahead_count; i++) {
        struct efsd_decode_ahead *a = &buffers->ahead[i];
        bool idle = a->state == BLOCK_READY && !a->sending && !ahead_is_read(a, open);
        if (a->state == BLOCK_FREE || (idle && (!slot || (slot->state == BLOCK_READY && a->sequence < slot->sequence))))
            slot = slot && slot->state == BLOCK_FREE ? slot : a;
    }
    if (slot && ahead_expected(daemon, open, &offset, &bytes)) {
        *slot = (struct efsd_decode_ahead){.data = slot->data,
                                           .daemon = daemon,
                                           .node = open->node,
                                           .offset = offset,
                                           .bytes = bytes,
                                           .state = BLOCK_DECODING,
                                           .sequence = ++buffers->sequence};
    } else {
        slot = NULL;
    }
    pthread_mutex_unlock(&buffers->lock);
    return slot;
}

/* Lock held. True after SMALL_SEQUENTIAL small reads, each adjacent to the last one, with no other reader in between.
 */
static bool predict_small(struct efsd_read_prediction *g, bool alone, uint64_t offset, size_t bytes)
{
    bool follows = alone && offset == g->small_end;
    g->small_run = follows ? g->small_run + (g->small_run < SMALL_SEQUENTIAL) : 0;
    g->small_end = offset + bytes;
    g->small_bytes = bytes;
    g->small = g->small_run >= SMALL_SEQUENTIAL;
    g->certain &= !g->small;
    return g->small;
}

/*
 * Lock held. The next large read is predicted to have the length of this one, and to start as far after its end as this
 * one started after the end of the last one: for a buffer that is not page-aligned the kernel alternates between
 * requests of almost 1 MiB and of a few bytes. The prediction is used only if the last one was right and there is only
 * one reader: several readers keep the processors busy.
 */
static bool predict_large(const struct efsd *daemon, struct efsd_open *open, bool alone, uint64_t offset, size_t bytes)
{
    struct efsd_read_prediction *g = &open->prediction;
    uint64_t gap = offset - g->end; /* wraps around for a seek backwards */
    bool begins = offset == 0 && g->end == 0 && bytes % 4096 == 0;
    bool came = alone && offset == g->offset && file_bytes_within(daemon, open->node, offset, bytes) == g->bytes;
    g->end = offset + bytes;
    g->offset = gap < LARGE_BYTES ? g->end + gap : g->end;
    g->bytes = file_bytes_within(daemon, open->node, g->offset, bytes);
    g->certain = begins || came;
    g->small = false;
    return g->certain;
}

bool efsd_decode_ahead_predict(struct efsd *daemon, struct efsd_open *open, uint64_t offset, size_t bytes)
{
    answered = false;
    pthread_mutex_lock(&daemon->buffers.lock);
    bool alone = daemon->buffers.reader == open;
    bool follows = bytes < LARGE_BYTES ? predict_small(&open->prediction, alone, offset, bytes)
                                       : predict_large(daemon, open, alone, offset, bytes);
    daemon->buffers.reader = open;
    pthread_mutex_unlock(&daemon->buffers.lock);
    return follows;
}

void efsd_decode_ahead_start_next(struct efsd *daemon, struct efsd_open *open)
{
    struct efsd_decode_ahead *a;
    while (answered && (a = ahead_begin(daemon, open))) {
        answered = false;
        efsd_count(&daemon->counters.aheads, 1);
        efs_read(daemon->fs, daemon->tree.nodes[open->node].id, daemon->streams[0][0][EFS_STREAM_SEQUENTIAL], a->offset,
                 a->data + efsd_reply_offset(a->bytes), a->bytes, ahead_done, a);
    }
}
