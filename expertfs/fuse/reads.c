/* SPDX-License-Identifier: Apache-2.0 */
/* reads.c - a read request: takes a reply buffer, reads through the engine, replies on the thread that has the
 * bytes. */
#include <errno.h>

#include "caller.h"
#include "daemon.h"
#include "expertfs-private.h"
#include "ops.h"

#define FAULTS_GAP_BYTES (4u << 20)   /* maximum gap in a run: faults of threads and read-ahead are out of order */
#define FAULTS_SCAN_BYTES (64u << 20) /* longer than contiguous data of a layer: the file is read sequentially */
/* The same for a run that begins at the start of the file, where there are no experts yet: longer than a header with
 * its vocabulary. */
#define FAULTS_SCAN_FROM_START_BYTES (16u << 20)

/* State of fuse_req_interrupt_func() on this thread, which may call read_interrupted(). A request that is answered
 * inside is freed, and then unlocked by libfuse: so the reply is sent after it returns. */
static _Thread_local enum { ARMED, ARMING, INTERRUPTED } arming;

/* If the caller is being killed, replies EINTR, because the disk may never respond. The read in flight still writes to
 * its buffer. */
static void read_interrupted(fuse_req_t req, void *arg)
{
    struct efsd_buffer *buffer = arg;
    fuse_req_t waiting = req;
    if (arming != ARMED) {
        arming = INTERRUPTED;
        return;
    }
    if (efsd_caller_is_killed(req) && atomic_compare_exchange_strong(&buffer->req, &waiting, NULL)) {
        efsd_count(&buffer->daemon->counters.read_interrupts, 1);
        fuse_reply_err(req, EINTR);
    }
}

static void read_done(void *arg, errint_t error, size_t bytes)
{
    struct efsd_buffer *buffer = arg;
    struct efsd *daemon = buffer->daemon;
    struct efsd_open *open = buffer->open;
    efsd_reply_read(daemon, atomic_exchange(&buffer->req, NULL), error, buffer->begin, bytes);
    if (!error)
        efsd_decode_ahead_answered();
    efsd_buffer_put(&daemon->buffers, buffer);
    efsd_open_unref(open);
}

/* Control files: replies from the text that was generated at open. */
static void read_text(fuse_req_t req, const struct efsd_open *open, size_t bytes, uint64_t offset)
{
    size_t at = offset < open->text_bytes ? (size_t)offset : open->text_bytes;
    size_t left = open->text_bytes - at;
    fuse_reply_buf(req, open->text + at, left < bytes ? left : bytes);
}

/*
 * Hint for a read for the page cache. Such reads are caused by faults in mappings, where the kernel reads around each
 * fault and a little ahead: three consecutive reads do not predict the next 32 MiB, and a read at the edge of an expert
 * does not predict the rest of the expert. So the engine does read-ahead only after a long run. Before, the stream is
 * EFS_STREAM_NO_READAHEAD, which loads only the bytes of each read.
 */
static enum efs_stream_hint open_hint(struct efsd_open *open, size_t bytes, uint64_t offset)
{
    struct efsd_faults *faults = &open->faults;
    uint64_t next = atomic_load_explicit(&faults->next, memory_order_relaxed), end = offset + bytes;
    uint64_t distance = offset > next ? offset - next : next - offset;
    if (distance > FAULTS_GAP_BYTES) {
        atomic_store_explicit(&faults->begin, offset, memory_order_relaxed);
        atomic_store_explicit(&faults->next, end, memory_order_relaxed);
    } else if (end > next) {
        atomic_store_explicit(&faults->next, end, memory_order_relaxed);
    }
    uint64_t begin = atomic_load_explicit(&faults->begin, memory_order_relaxed);
    bool scan = end > begin + (begin < FAULTS_GAP_BYTES ? FAULTS_SCAN_FROM_START_BYTES : FAULTS_SCAN_BYTES);
    return scan ? EFS_STREAM_SEQUENTIAL : EFS_STREAM_NO_READAHEAD;
}

/* The read may wait for the disk on this thread, except on the last receiving thread: an interrupt must be received
 * when the disk does not respond. */
static void read_by_engine(struct efsd *daemon, fuse_req_t req, struct efsd_open *open, enum efs_stream_hint hint,
                           bool stays, size_t bytes, uint64_t offset)
{
    bool waited, may_block = atomic_fetch_add(&daemon->blocking, 1) + 1 < daemon->threads;
    struct efsd_buffer *buffer = efsd_buffer_get(&daemon->buffers, bytes, &waited);
    if (waited)
        efsd_count(&daemon->counters.reply_waits, 1);
    buffer->daemon = daemon;
    buffer->open = open;
    buffer->begin = buffer->data + efsd_reply_offset(bytes);
    atomic_store(&buffer->req, req);
    arming = ARMING;
    fuse_req_interrupt_func(req, read_interrupted, buffer);
    bool interrupted = arming == INTERRUPTED;
    arming = ARMED;
    if (interrupted)
        read_interrupted(req, buffer);
    efs_read(daemon->fs, daemon->tree.nodes[open->node].id, daemon->streams[stays][may_block][hint], offset,
             buffer->begin, bytes, read_done, buffer);
    atomic_fetch_sub(&daemon->blocking, 1);
}

/* Counts bytes that are read for the page cache. Returns whether they stay there: the file fits, and no byte of it was
 * read a second time, which shows that pages were reclaimed, as for readers with a memory limit of their own. */
static bool pages_stay(struct efsd *daemon, const struct efsd_open *open, size_t bytes)
{
    uint64_t before = atomic_fetch_add_explicit(&daemon->opens.cached_bytes[open->node], bytes, memory_order_relaxed);
    return open->fits && before < daemon->tree.nodes[open->node].bytes;
}

/* Drops one reference on open, now or when the read in flight is answered. */
static void read_file(struct efsd *daemon, fuse_req_t req, struct efsd_open *open, size_t bytes, uint64_t offset,
                      bool cached)
{
    uint64_t file_bytes = daemon->tree.nodes[open->node].bytes, left = offset < file_bytes ? file_bytes - offset : 0;
    atomic_fetch_add_explicit(&open->read_bytes, left < bytes ? left : bytes, memory_order_relaxed);
    efs_note_file_read(daemon->fs, bytes, cached);
    if (cached) {
        read_by_engine(daemon, req, open, open_hint(open, bytes, offset), pages_stay(daemon, open, bytes), bytes,
                       offset);
        return;
    }
    bool follows = efsd_decode_ahead_predict(daemon, open, offset, bytes);
    if (efsd_decode_ahead_serve(daemon, req, open->node, offset, bytes))
        efsd_open_unref(open);
    else
        read_by_engine(daemon, req, open, EFS_STREAM_SEQUENTIAL, false, bytes, offset);
    if (follows)
        efsd_decode_ahead_start_next(daemon, open);
}

void efsd_read(struct efsd *daemon, fuse_req_t req, const struct fuse_file_info *file, size_t bytes, uint64_t offset)
{
    if (bytes > EFSD_IO_BYTES) { /* more than max_read; a short reply would look like the end of the file */
        fuse_reply_err(req, EINVAL);
        return;
    }
    /* One reference for the read in flight, dropped by read_done(), and one for this function: read_done() may be
     * called inside efs_read(), and the reader may close the file at once. */
    struct efsd_open *open = efsd_open_ref(file, 2);
    efsd_count(&daemon->counters.reads, !open->text);
    if (!open->text && efs_file_holds_expert(daemon->fs, daemon->tree.nodes[open->node].id, offset, bytes))
        efsd_count(&daemon->counters.reads_experts, 1);
    if (open->text) {
        read_text(req, open, bytes, offset);
        efsd_open_unref(open);
    } else {
        /* an uncached read() has a lock owner, a read for the page cache has none */
        read_file(daemon, req, open, bytes, offset, file->lock_owner == 0);
    }
    efsd_open_unref(open);
}
