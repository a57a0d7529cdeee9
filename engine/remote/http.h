/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - files on HTTP servers as a backing: ranges by libcurl, several at once on one pool of connections.
 *
 * A file is identified by its strong ETag and its length. Each request requires them (If-Match), each answer is
 * compared with them before a byte of it is used, and after a difference all reads fail: bytes of two versions are
 * never mixed. One thread at a time.
 */
#ifndef EFS_HTTP_H
#define EFS_HTTP_H

#include "address.h"
#include "answer.h"
#include "backing.h"
#include "curl.h"

#define EFS_HTTP_DEPTH 32u /* requests at once; connections, where the server has no HTTP/2 */
#define EFS_HTTP_TRIES 5u  /* without progress; one after a fault, until a range arrives */

struct efs_http;

struct efs_http_file {
    struct efs_address address;
    struct efs_identity known;
    char *path;         /* in the checkpoint; NULL: it is a store */
    char *target;       /* where the last range came from; NULL: not known yet */
    bool changed;       /* it is another file now */
    long long modified; /* seconds since 1970; -1: unknown */
    uint64_t base;      /* address of its first byte in the backing, a multiple of EFS_ALIGN */
};

/* A range that is requested until it is here or has failed. */
struct efs_http_request {
    struct efs_http *http;
    struct efs_http_file *file;
    struct efs_backing_read *read; /* NULL: free, or the request of efs_http_open() */
    CURL *easy;
    struct curl_slist *headers;
    char *url;  /* of this try: where the last redirect led to */
    bool whole; /* a text of at most `bytes` bytes, which is no part of a file: neither Range nor ETag */
    uint64_t begin;
    size_t bytes, done;
    const struct iovec *buffers;
    unsigned buffer_count;
    unsigned hops, tries; /* redirects; tries that failed without progress */
    bool renewed;         /* a failure has led back to the first address */
    bool running;         /* in the multi handle */
    uint64_t due_ns;      /* time of the next try */
    bool over;
    ssize_t result; /* of a request that is over */
    /* of the current try: */
    struct efs_answer answer;
    bool judged;
    enum efs_verdict verdict;
    size_t before, ignored; /* done at its begin; bytes of a body that says why */
};

/* Measured rate and latency, which set the number of requests at once. */
struct efs_http_flow {
    uint64_t latency_ns, bytes_per_second, read_bytes; /* 0: not known yet */
    uint64_t since_ns, bytes;                          /* of the current window */
};

struct efs_http {
    struct efs_backing b;
    struct efs_curl curl;
    struct efs_http_file **files; /* by base */
    unsigned file_count;
    CURLM *multi;
    const char *ca_bundle; /* NULL: that of libcurl */
    unsigned timeout_s;
    uint64_t fetched_bytes; /* of bodies of all answers */
    bool said;              /* the fault was reported; until a range arrives */
    char fault[600];        /* why a request failed */
    struct efs_http_flow flow;
    struct efs_http_request requests[EFS_IO_DEPTH_MAX];
};

/* ---- http_request.c ---- */

/* Starts or repeats a request: its begin, bytes, buffers are set. After an error of libcurl it is over. */
void efs_http_request_start(struct efs_http_request *request);
/* libcurl has ended a try. The request is over, or to be started at due_ns. */
void efs_http_request_ended(struct efs_http_request *request, CURLcode code);
/* The tries that a new request has behind it: all but one while the last request has failed. */
unsigned efs_http_tries(const struct efs_http *http);
/* Ends a request in any state and frees what it has. */
void efs_http_request_drop(struct efs_http_request *request);

/* ---- http_run.c ---- */

#define EFS_HTTP_WAIT_MS 60000
/* Lets libcurl send and receive, and ends the tries that it has ended. */
void efs_http_perform(struct efs_http *http);
/* Starts a request whose time has come. Returns how long it has to wait otherwise, in ms. */
int efs_http_request_due(struct efs_http_request *request, uint64_t now_ns);

/* ---- http_flow.c ---- */

/* A range has arrived. */
void efs_http_flow_note(struct efs_http_flow *flow, uint64_t now_ns, uint64_t latency_ns, size_t bytes, bool last);
/* How many requests keep twice the bytes of a round trip in flight. */
uint32_t efs_http_flow_depth(const struct efs_http_flow *flow);

/* ---- http_open.c ---- */

/* A backing without files. -ENOSYS: no libcurl; -EINVAL, -ENOMEM. */
errint_t efs_http_new(const struct efs_backing_ops *ops, struct efs_http **http, struct efs_error *err);
/* Adds the file at an address. head: its first bytes, at most *head_bytes, which is set. Blocks. -ENOENT, -EACCES,
 * -EINVAL, -ENOMEM, -EIO. */
errint_t efs_http_add(struct efs_http *http, const char *address, void *head, size_t *head_bytes,
                      struct efs_http_file **file, struct efs_error *err);
/* Reads bytes that are inside the file. Blocks; before the backing is a queue's. */
errint_t efs_http_read(struct efs_http *http, struct efs_http_file *file, uint64_t offset, void *data, size_t bytes,
                       struct efs_error *err);
/* What the server sends at a URL, of at most *bytes, which is set to its length: a whole text, not a range. name: in
 * messages. Blocks; the errors of efs_http_add(). */
errint_t efs_http_text(struct efs_http *http, const char *name, const char *url, char *text, size_t *bytes,
                       struct efs_error *err);
void efs_http_free(struct efs_http *http);

/* ---- backing_http.c ---- */

extern const struct efs_backing_ops efs_http_ops;

/* ---- remote_plain.c ---- */

/* Opens a checkpoint in place whose first file, with this head, is in http, with its other files. The store owns http,
 * which is closed also after an error. Blocks. Errors of efs_plain_open(). */
errint_t efs_remote_plain_open(struct efs_http *http, const void *head, size_t head_bytes, const struct stat *st,
                               struct efs_store **store, struct efs_error *err);

#endif
