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

/* Control files: from the text that was made when the file was opened. */
static void read_text(fuse_req_t req, const struct efsd_open *open, size_t bytes, uint64_t offset)
{
    size_t at = offset < open->text_bytes ? (size_t)offset : open->text_bytes;
    size_t left = open->text_bytes - at;
    fuse_reply_buf(req, open->text + at, left < bytes ? left : bytes);
}

static void read_file(struct efsd *daemon, fuse_req_t req, struct efsd_open *open, size_t bytes, uint64_t offset)
{
    bool waited;
    struct efsd_buffer *buffer = efsd_buffer_take(&daemon->buffers, &waited);
    if (waited) {
        efsd_count(&daemon->counters.reply_waits, 1);
    }
    buffer->daemon = daemon;
    buffer->open = open;
    buffer->req = req;
    efsd_pagecache_read(daemon, open->node, offset, bytes);
    efs_read(daemon->fs, daemon->tree.nodes[open->node].id, &open->stream, offset, buffer->data, bytes, read_done,
             buffer);
}

void efsd_read(struct efsd *daemon, fuse_req_t req, const struct fuse_file_info *file, size_t bytes, uint64_t offset)
{
    if (bytes > EFSD_IO_BYTES) { /* max_read forbids it; a short answer would look like the end of the file */
        fuse_reply_err(req, EINVAL);
        return;
    }
    /* One reference for the read in flight, given up by read_done(), and one for us: read_done() may be called inside
     * efs_read(), and the file may be closed at once. */
    struct efsd_open *open = efsd_open_ref(file, 2);
    efsd_count(open->text ? &daemon->counters.reads_control : &daemon->counters.reads, 1);
    if (open->text) {
        read_text(req, open, bytes, offset);
        efsd_open_unref(open);
    } else {
        read_file(daemon, req, open, bytes, offset);
    }
    efsd_open_unref(open);
}
