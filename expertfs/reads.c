/* reads.c - a read request: a reply buffer, the engine, the answer from the thread that has the bytes. */
#include "daemon.h"

#include <errno.h>

static void read_done(void *arg, errint_t error, size_t bytes)
{
    struct efsd_buffer *buffer = arg;
    struct efsd *daemon = buffer->daemon;
    struct efsd_open *open = buffer->open;
    if (error) {
        efsd_count(&daemon->counters.reply_errors, 1);
        fuse_reply_err(buffer->req, error == -ECANCELED ? EIO : -error);
    } else {
        efsd_count(&daemon->counters.reply_bytes, bytes);
        fuse_reply_buf(buffer->req, (const char *)buffer->data, bytes);
    }
    efsd_buffer_give(&daemon->buffers, buffer);
    efsd_open_unref(open);
}

void efsd_read(struct efsd *daemon, fuse_req_t req, struct efsd_open *open, size_t bytes, uint64_t offset)
{
    if (bytes > EFSD_IO_BYTES) { /* max_read forbids it; a short answer would look like the end of the file */
        fuse_reply_err(req, EINVAL);
        return;
    }
    bool waited;
    struct efsd_buffer *buffer = efsd_buffer_take(&daemon->buffers, &waited);
    if (waited) {
        efsd_count(&daemon->counters.reply_waits, 1);
    }
    buffer->daemon = daemon;
    buffer->open = open;
    buffer->req = req;
    /* One for the read in flight, one for us: done may be called inside efs_read(), and a release may follow at once.
     */
    atomic_fetch_add_explicit(&open->references, 2, memory_order_relaxed);
    pthread_mutex_lock(&open->lock);
    efs_read(daemon->fs, daemon->tree.nodes[open->node].id, &open->stream, offset, buffer->data, bytes, read_done,
             buffer);
    pthread_mutex_unlock(&open->lock);
    efsd_open_unref(open);
}
