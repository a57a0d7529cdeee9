/* SPDX-License-Identifier: Apache-2.0 */
/* http_open.c - see http.h: opens files on servers, and reads them before a queue does. */
#include "http.h"

#include "expertfs-clock-private.h"
#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BEST_BYTES (4u << 20) /* of a range: at 10 Gbit/s a connection sends it in 3 ms */
#define MAX_BYTES (16u << 20)
#define TIMEOUT_SECONDS 30u

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

errint_t efs_http_new(const struct efs_backing_ops *ops, struct efs_http **out, struct efs_error *err)
{
    struct efs_http *h = efs_sys_calloc(1, sizeof(*h));
    *out = NULL;
    if (!h)
        return efs_fail(err, -ENOMEM, "no memory");
    h->b = (struct efs_backing){
        .ops = ops,
        .info = {.align = 1, .best_bytes = BEST_BYTES, .max_bytes = MAX_BYTES, .depth = 8, .joins = true},
        .direct_fd = -1};
    h->timeout_s = TIMEOUT_SECONDS;
    h->ca_bundle = secure_getenv("CURL_CA_BUNDLE");
    h->ca_bundle = h->ca_bundle && *h->ca_bundle ? h->ca_bundle : NULL;
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++)
        h->requests[i].http = h;
    errint_t rc = seconds_from("EXPERTFS_HTTP_TIMEOUT", &h->timeout_s, err);
    if (rc == 0)
        rc = efs_curl_open(&h->curl, err);
    if (rc == 0 && !(h->multi = h->curl.multi_init())) {
        h->curl.global_cleanup();
        rc = efs_fail(err, -ENOMEM, "no memory");
    }
    if (rc < 0) {
        free(h);
        return rc;
    }
    h->curl.multi_setopt(h->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)EFS_HTTP_DEPTH);
    h->curl.multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)EFS_HTTP_DEPTH);
    h->curl.multi_setopt(h->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_MULTIPLEX);
    *out = h;
    return 0;
}

static void file_free(struct efs_http_file *file)
{
    efs_address_free(&file->address);
    free(file->path);
    free(file->target);
    free(file);
}

void efs_http_free(struct efs_http *h)
{
    for (unsigned i = 0; i < EFS_IO_DEPTH_MAX; i++)
        efs_http_request_drop(&h->requests[i]);
    h->curl.multi_cleanup(h->multi);
    h->curl.global_cleanup();
    for (unsigned i = 0; i < h->file_count; i++)
        file_free(h->files[i]);
    free(h->files);
    free(h);
}

/* Requests bytes from begin on, or a whole text, and waits for them. *bytes is set to those that are in it. */
static errint_t read_now(struct efs_http *h, struct efs_http_file *file, bool whole, uint64_t begin, void *data,
                         size_t *bytes, struct efs_error *err)
{
    const struct iovec buffer = {.iov_base = data, .iov_len = *bytes};
    struct efs_http_request *r = &h->requests[0];
    CURL *easy = r->easy;
    *r = (struct efs_http_request){.http = h,
                                   .file = file,
                                   .easy = easy,
                                   .whole = whole,
                                   .begin = begin,
                                   .bytes = *bytes,
                                   .buffers = &buffer,
                                   .buffer_count = 1};
    while (!r->over) {
        int wait_ms = efs_http_request_due(r, efs_now_ns());
        if (!r->over)
            h->curl.multi_poll(h->multi, NULL, 0, wait_ms, NULL);
        efs_http_perform(h);
    }
    const errint_t rc = r->result < 0 ? (errint_t)r->result : 0;
    if (rc == 0) {
        curl_off_t modified = -1;
        h->curl.easy_getinfo(r->easy, CURLINFO_FILETIME_T, &modified);
        file->modified = modified;
        *bytes = (size_t)r->result;
    }
    efs_http_request_drop(r);
    return rc < 0 ? efs_fail(err, rc, "%s", h->fault) : 0;
}

errint_t efs_http_add(struct efs_http *h, const char *address, void *head, size_t *head_bytes,
                      struct efs_http_file **out, struct efs_error *err)
{
    struct efs_http_file **files = efs_sys_realloc(h->files, (h->file_count + 1) * sizeof(struct efs_http_file *));
    h->files = files ? files : h->files;
    struct efs_http_file *file = files ? efs_sys_calloc(1, sizeof(*file)) : NULL;
    if (!file)
        return efs_fail(err, -ENOMEM, "no memory");
    file->modified = -1;
    errint_t rc = efs_address_parse(address, &file->address, err);
    if (rc == 0)
        rc = read_now(h, file, false, 0, head, head_bytes, err);
    if (rc < 0) {
        file_free(file);
        return rc;
    }
    h->files[h->file_count++] = file;
    if (out)
        *out = file;
    return 0;
}

errint_t efs_http_read(struct efs_http *h, struct efs_http_file *file, uint64_t offset, void *data, size_t bytes,
                       struct efs_error *err)
{
    size_t got = bytes;
    errint_t rc = bytes ? read_now(h, file, false, offset, data, &got, err) : 0;
    return rc == 0 && got != bytes ? efs_fail(err, -EIO, "%s: ends too early", file->address.name) : rc;
}

errint_t efs_http_text(struct efs_http *h, const char *name, const char *url, char *text, size_t *bytes,
                       struct efs_error *err)
{
    struct efs_http_file file = {.modified = -1};
    errint_t rc = efs_address_parse(url, &file.address, err);
    free(file.address.name);
    file.address.name = strdup(name);
    if (rc == 0)
        rc = file.address.name ? read_now(h, &file, true, 0, text, bytes, err) : efs_fail(err, -ENOMEM, "no memory");
    efs_address_free(&file.address);
    return rc;
}
