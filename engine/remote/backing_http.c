/* SPDX-License-Identifier: Apache-2.0 */
/* backing_http.c - see http.h: the operations of the backing. */
#include "http.h"

#include "expertfs-clock-private.h"
#include "container.h"
#include "expertfs-private.h"
#include "layout.h"
#include "stats.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct efs_http *http_of(struct efs_backing *b)
{
    return EFS_CONTAINER(b, struct efs_http, b);
}

/* ---- progress ---- */

/* A read of whole pages may reach over the end of its file, up to the end of the page, where zeros are read. */
static ssize_t read_result(const struct efs_http_request *r)
{
    const struct efs_backing_read *read = r->read;
    const uint64_t end = r->file->known.bytes;
    if (r->result <= 0 || r->begin + (uint64_t)r->result != end || r->begin + read->bytes > efs_page_up(end))
        return r->result;
    size_t from = (size_t)r->result;
    for (unsigned i = 0; i < read->buffer_count; i++) {
        const struct iovec *buffer = &read->buffers[i];
        if (from < buffer->iov_len)
            memset((char *)buffer->iov_base + from, 0, buffer->iov_len - from);
        from -= from < buffer->iov_len ? from : buffer->iov_len;
    }
    return (ssize_t)read->bytes;
}

static unsigned report(struct efs_http *h)
{
    unsigned count = 0;
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++) {
        struct efs_http_request *r = &h->requests[i];
        struct efs_backing_read *read = r->read;
        if (!read || !r->over)
            continue;
        const ssize_t result = read_result(r);
        CURL *easy = r->easy;
        r->easy = NULL; /* for the next request in this place */
        efs_http_request_drop(r);
        r->easy = easy;
        count++;
        efs_backing_read_ended(&h->b, read, result);
    }
    return count;
}

static void http_wait(struct efs_backing *b)
{
    struct efs_http *h = http_of(b);
    struct curl_waitfd wake = {.fd = b->wake_fd, .events = CURL_WAIT_POLLIN};
    uint64_t value;
    for (;;) {
        int wait_ms = EFS_HTTP_WAIT_MS;
        efs_http_perform(h);
        if (report(h) > 0)
            return;
        for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++) {
            int left_ms = h->requests[i].read ? efs_http_request_due(&h->requests[i], efs_now_ns()) : EFS_HTTP_WAIT_MS;
            wait_ms = left_ms < wait_ms ? left_ms : wait_ms;
        }
        wake.revents = 0;
        h->curl.multi_poll(h->multi, &wake, 1, wait_ms, NULL);
        struct pollfd ready = {.fd = b->wake_fd, .events = POLLIN};
        if (poll(&ready, 1, 0) > 0) {
            ssize_t n = read(b->wake_fd, &value, sizeof(value));
            (void)n;
            return;
        }
    }
}

/* ---- the other operations ---- */

/* Each queue has counters of its own, which include the bytes that were fetched before it started. */
static void http_start(struct efs_backing *b)
{
    efs_count(b->stats, fetched_bytes, http_of(b)->fetched_bytes);
}

/* The file with this address: the last one that begins at or before it. */
static struct efs_http_file *file_at(const struct efs_http *h, uint64_t address)
{
    unsigned low = 0, high = h->file_count;
    while (high - low > 1) {
        unsigned mid = low + (high - low) / 2;
        if (h->files[mid]->base <= address)
            low = mid;
        else
            high = mid;
    }
    return h->files[low];
}

static void http_submit(struct efs_backing *b, struct efs_backing_read *read)
{
    struct efs_http *h = http_of(b);
    unsigned i = 0;
    while (h->requests[i].read)
        i++;
    struct efs_http_request *r = &h->requests[i];
    struct efs_http_file *file = file_at(h, read->offset);
    const uint64_t begin = read->offset - file->base;
    const uint64_t left = begin < file->known.bytes ? file->known.bytes - begin : 0;
    CURL *easy = r->easy;
    *r = (struct efs_http_request){.http = h,
                                   .file = file,
                                   .read = read,
                                   .easy = easy,
                                   .tries = efs_http_tries(h),
                                   .begin = begin,
                                   .bytes = read->bytes < left ? read->bytes : (size_t)left,
                                   .buffers = read->buffers,
                                   .buffer_count = read->buffer_count};
    read->own = i;
    r->over = r->bytes == 0; /* result: 0, the end */
}

static bool http_cancel(struct efs_backing *b, struct efs_backing_read *read)
{
    struct efs_http_request *r = &http_of(b)->requests[read->own];
    if (r->read != read || r->over)
        return false;
    efs_http_request_drop(r);
    return true;
}

/* A forked child must not end the connections, which it shares with its parent: it leaves libcurl's memory as it is. */
static void http_close(struct efs_backing *b, bool in_child)
{
    if (!in_child)
        efs_http_free(http_of(b));
}

const struct efs_backing_ops efs_http_ops = {
    .start = http_start, .submit = http_submit, .wait = http_wait, .cancel = http_cancel, .close = http_close};
