/* SPDX-License-Identifier: Apache-2.0 */
/* backing_http.c - see http.h: the operations of the backing, and its opening. */
#include "http.h"

#include "expertfs-clock-private.h"
#include "container.h"
#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEST_BYTES (4u << 20) /* of a range: at 10 Gbit/s a connection sends it in 3 ms */
#define MAX_BYTES (16u << 20)
#define WAIT_MS 60000
#define TIMEOUT_SECONDS 30u

static struct efs_http *http_of(struct efs_backing *b)
{
    return EFS_CONTAINER(b, struct efs_http, b);
}

/* ---- progress ---- */

static void note_flow(struct efs_http *h, const struct efs_http_request *r)
{
    curl_off_t begun_us = 0, first_us = 0;
    unsigned running = 0;
    h->curl.easy_getinfo(r->easy, CURLINFO_PRETRANSFER_TIME_T, &begun_us);
    h->curl.easy_getinfo(r->easy, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++)
        running += h->requests[i].running;
    uint64_t latency = first_us > begun_us ? (uint64_t)(first_us - begun_us) * 1000 : 1;
    efs_http_flow_note(&h->flow, efs_now_ns(), latency, r->done, running == 0);
    h->b.info.depth = efs_http_flow_depth(&h->flow);
}

/* Lets libcurl send and receive, and ends the tries that it has ended. */
static void http_perform(struct efs_http *h)
{
    int running, left;
    CURLMsg *message;
    h->curl.multi_perform(h->multi, &running);
    while ((message = h->curl.multi_info_read(h->multi, &left))) {
        struct efs_http_request *r = NULL;
        const CURLcode code = message->data.result;
        if (message->msg != CURLMSG_DONE)
            continue;
        h->curl.easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        efs_http_request_ended(r, code);
        if (r->over && r->result > 0)
            note_flow(h, r);
    }
}

/* Starts a request whose time has come. Returns how long it has to wait otherwise, in ms. */
static int request_due(struct efs_http_request *r, uint64_t now_ns)
{
    if (r->over || r->running)
        return WAIT_MS;
    if (r->due_ns > now_ns)
        return (int)((r->due_ns - now_ns) / 1000000) + 1;
    efs_http_request_start(r);
    return r->over ? 0 : WAIT_MS;
}

static unsigned report(struct efs_http *h)
{
    unsigned count = 0;
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++) {
        struct efs_http_request *r = &h->requests[i];
        struct efs_backing_read *read = r->read;
        if (!read || !r->over)
            continue;
        const ssize_t result = r->result;
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
        int wait_ms = WAIT_MS;
        http_perform(h);
        if (report(h) > 0)
            return;
        for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++) {
            int left_ms = h->requests[i].read ? request_due(&h->requests[i], efs_now_ns()) : WAIT_MS;
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

static void http_submit(struct efs_backing *b, struct efs_backing_read *read)
{
    struct efs_http *h = http_of(b);
    unsigned i = 0;
    while (h->requests[i].read)
        i++;
    struct efs_http_request *r = &h->requests[i];
    const uint64_t left = read->offset < h->known.bytes ? h->known.bytes - read->offset : 0;
    CURL *easy = r->easy;
    *r = (struct efs_http_request){.http = h,
                                   .read = read,
                                   .easy = easy,
                                   .tries = h->said ? EFS_HTTP_TRIES - 1 : 0,
                                   .begin = read->offset,
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
    struct efs_http *h = http_of(b);
    for (unsigned i = 0; !in_child && i < EFS_IO_DEPTH_MAX; i++)
        efs_http_request_drop(&h->requests[i]);
    if (!in_child && h->multi) {
        h->curl.multi_cleanup(h->multi);
        h->curl.global_cleanup();
    }
    efs_address_free(&h->address);
    free(h->target);
    free(h);
}

/* ---- opening ---- */

static errint_t seconds_from(const char *variable, unsigned *seconds, struct efs_error *err)
{
    const char *value = secure_getenv(variable);
    char *end;
    if (!value || !*value)
        return 0;
    unsigned long n = strtoul(value, &end, 10);
    if (*end || n < 1 || n > 3600)
        return efs_fail(err, -EINVAL, "%s: 1 to 3600 seconds", variable);
    *seconds = (unsigned)n;
    return 0;
}

static errint_t http_new(const char *address, struct efs_http **out, struct efs_error *err)
{
    static const struct efs_backing_ops ops = {
        .submit = http_submit, .wait = http_wait, .cancel = http_cancel, .close = http_close};
    struct efs_http *h = efs_sys_calloc(1, sizeof(*h));
    if (!h)
        return efs_fail(err, -ENOMEM, "no memory");
    h->b = (struct efs_backing){
        .ops = &ops,
        .info = {.align = 1, .best_bytes = BEST_BYTES, .max_bytes = MAX_BYTES, .depth = 8, .joins = true},
        .direct_fd = -1};
    h->timeout_s = TIMEOUT_SECONDS;
    h->modified = -1;
    h->ca_bundle = secure_getenv("CURL_CA_BUNDLE");
    h->ca_bundle = h->ca_bundle && *h->ca_bundle ? h->ca_bundle : NULL;
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++)
        h->requests[i].http = h;
    errint_t rc = efs_address_parse(address, &h->address, err);
    if (rc == 0)
        rc = seconds_from("EXPERTFS_HTTP_TIMEOUT", &h->timeout_s, err);
    if (rc == 0)
        rc = efs_curl_open(&h->curl, err);
    if (rc == 0 && !(h->multi = h->curl.multi_init())) {
        h->curl.global_cleanup();
        rc = efs_fail(err, -ENOMEM, "no memory");
    }
    if (rc < 0) {
        efs_address_free(&h->address);
        free(h);
        return rc;
    }
    h->curl.multi_setopt(h->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)EFS_HTTP_DEPTH);
    h->curl.multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)EFS_HTTP_DEPTH);
    h->curl.multi_setopt(h->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_MULTIPLEX);
    *out = h;
    return 0;
}

/* Waits for the first range, which says what the file is. */
static errint_t http_first(struct efs_http *h, void *head, size_t *head_bytes, struct efs_error *err)
{
    const struct iovec buffer = {.iov_base = head, .iov_len = *head_bytes};
    struct efs_http_request *r = &h->requests[0];
    *r = (struct efs_http_request){.http = h, .bytes = *head_bytes, .buffers = &buffer, .buffer_count = 1};
    while (!r->over) {
        int wait_ms = request_due(r, efs_now_ns());
        if (!r->over)
            h->curl.multi_poll(h->multi, NULL, 0, wait_ms, NULL);
        http_perform(h);
    }
    const errint_t rc = r->result < 0 ? (errint_t)r->result : 0;
    if (rc == 0) {
        curl_off_t modified = -1;
        h->curl.easy_getinfo(r->easy, CURLINFO_FILETIME_T, &modified);
        h->modified = modified;
        *head_bytes = (size_t)r->result;
    }
    efs_http_request_drop(r);
    return rc < 0 ? efs_fail(err, rc, "%s", h->fault) : 0;
}

errint_t efs_http_open(const char *address, struct efs_http **out, void *head, size_t *head_bytes,
                       struct efs_error *err)
{
    struct efs_http *h = NULL;
    *out = NULL;
    errint_t rc = http_new(address, &h, err);
    if (rc < 0)
        return rc;
    rc = http_first(h, head, head_bytes, err);
    if (rc < 0) {
        http_close(&h->b, false);
        return rc;
    }
    *out = h;
    return 0;
}
