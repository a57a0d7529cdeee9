/* SPDX-License-Identifier: Apache-2.0 */
/* http_request.c - one range: requested, received into its buffers, tried again, led elsewhere, or failed with a
 * reason. */
#include "http.h"

#include "expertfs-clock-private.h"
#include "expertfs-private.h"
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define REDIRECTS_MAX 8u
#define PROGRESS_BYTES 4096u      /* a try that brings this much is not counted */
#define IGNORED_BYTES (64u << 10) /* of the body of an error; more ends the connection */
#define RETRY_FIRST_NS 100000000u /* before the second try; twice as long before each further one */
#define RETRY_AFTER_MAX 120u      /* seconds that a server may ask to wait */
#define CONNECT_SECONDS 10L
#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* ---- what libcurl calls ---- */

static size_t take_header(char *line, size_t size, size_t count, void *arg)
{
    struct efs_http_request *r = arg;
    (void)size; /* 1 */
    efs_answer_header(&r->answer, line, count);
    return r->answer.header_bytes <= EFS_ANSWER_HEADER_BYTES ? count : 0;
}

static void judge(struct efs_http_request *r)
{
    const struct efs_identity *known = &r->file->known;
    if (r->judged || !r->answer.complete)
        return;
    r->judged = true;
    r->verdict = efs_answer_judge(&r->answer, known, r->begin + r->done, r->bytes - r->done);
    if (r->whole && r->answer.status < 300)
        r->verdict = r->answer.status == 200 && !r->answer.encoded ? EFS_ANSWER_RANGE : EFS_ANSWER_WRONG;
    else if (r->verdict == EFS_ANSWER_RANGE) /* shorter only where the length was not known */
        r->bytes = (size_t)(r->answer.last - r->begin + 1);
}

static void copy_in(struct efs_http_request *r, const char *data, size_t bytes)
{
    size_t at = r->done;
    r->done += bytes;
    for (unsigned i = 0; bytes > 0 && i < r->buffer_count; i++) {
        const struct iovec *buffer = &r->buffers[i];
        size_t n = at < buffer->iov_len ? buffer->iov_len - at : 0;
        n = n < bytes ? n : bytes;
        if (n)
            memcpy((char *)buffer->iov_base + at, data, n);
        at = at < buffer->iov_len ? 0 : at - buffer->iov_len;
        data += n;
        bytes -= n;
    }
}

static void note_fetched(struct efs_http *h, size_t bytes)
{
    h->fetched_bytes += bytes;
    if (h->b.stats) /* of a queue */
        efs_count(h->b.stats, fetched_bytes, bytes);
}

/* Any return but `count` ends the connection. */
static size_t take_body(char *data, size_t size, size_t count, void *arg)
{
    struct efs_http_request *r = arg;
    (void)size; /* 1 */
    note_fetched(r->http, count);
    judge(r);
    if (!r->judged || r->answer.status < 300) {
        if (r->verdict != EFS_ANSWER_RANGE || !r->judged)
            return 0;
        if (count > r->bytes - r->done) {
            r->verdict = EFS_ANSWER_WRONG;
            return 0;
        }
        copy_in(r, data, count);
        return count;
    }
    r->ignored += count;
    return r->ignored <= IGNORED_BYTES ? count : 0;
}

/* Programs that the daemon or the user of the library starts do not inherit connections. */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    (void)arg;
    (void)purpose;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* ---- one try ---- */

static bool add_header(struct efs_http_request *r, const char *name, const char *value)
{
    char *line;
    struct curl_slist *list = NULL;
    if (asprintf(&line, "%s: %s", name, value) >= 0) {
        list = r->http->curl.slist_append(r->headers, line);
        explicit_bzero(line, strlen(line));
        free(line);
    }
    r->headers = list ? list : r->headers;
    return list != NULL;
}

/* Secrets go to the host of the address alone, not to where it leads. */
static bool add_secrets(struct efs_http_request *r)
{
    const struct efs_curl *curl = &r->http->curl;
    const struct efs_address *a = &r->file->address;
    char line[8300];
    if (!efs_address_same_origin(r->url, a->url))
        return true;
    if (a->token) {
        snprintf(line, sizeof(line), "Bearer %s", a->token);
        bool added = add_header(r, "Authorization", line);
        explicit_bzero(line, sizeof(line));
        return added;
    }
    if (!a->keys)
        return true;
    return curl->easy_setopt(r->easy, CURLOPT_AWS_SIGV4, a->sign) == CURLE_OK &&
           curl->easy_setopt(r->easy, CURLOPT_USERPWD, a->keys) == CURLE_OK &&
           add_header(r, "x-amz-content-sha256", EMPTY_SHA256) && /* libcurl 7.88 leaves it out, S3 requires it */
           (!a->session || add_header(r, "x-amz-security-token", a->session));
}

/* The ETag is that of the server with the file; one that leads there may have another. */
static bool needs_match(const struct efs_http_request *r)
{
    const struct efs_http_file *file = r->file;
    return file->known.etag[0] && file->target && efs_address_same_origin(r->url, file->target);
}

/* The key of an object in S3 may have /../, which is no folder. */
static bool is_object(const struct efs_http_request *r)
{
    return strncmp(r->file->address.name, "s3://", 5) == 0;
}

static bool set_up(struct efs_http_request *r)
{
    struct efs_http *h = r->http;
    const struct efs_curl *curl = &h->curl;
    char range[64];
    snprintf(range, sizeof(range), "%llu-%llu", (unsigned long long)(r->begin + r->done),
             (unsigned long long)(r->begin + r->bytes - 1));
    curl->easy_reset(r->easy);
    curl->slist_free_all(r->headers);
    r->headers = NULL;
    bool ok = curl->easy_setopt(r->easy, CURLOPT_URL, r->url) == CURLE_OK &&
              (r->whole || curl->easy_setopt(r->easy, CURLOPT_RANGE, range) == CURLE_OK) &&
              curl->easy_setopt(r->easy, CURLOPT_WRITEFUNCTION, take_body) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_WRITEDATA, r) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_HEADERFUNCTION, take_header) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_HEADERDATA, r) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_PRIVATE, r) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_OPENSOCKETFUNCTION, open_socket) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_LOW_SPEED_LIMIT, 1L) == CURLE_OK &&
              curl->easy_setopt(r->easy, CURLOPT_LOW_SPEED_TIME, (long)h->timeout_s) == CURLE_OK;
    /* these only make it faster, or libcurl is built without them */
    curl->easy_setopt(r->easy, CURLOPT_FILETIME, 1L);
    curl->easy_setopt(r->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    curl->easy_setopt(r->easy, CURLOPT_PIPEWAIT, 1L);
    curl->easy_setopt(r->easy, CURLOPT_BUFFERSIZE, 256L << 10);
    curl->easy_setopt(r->easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl->easy_setopt(r->easy, CURLOPT_USERAGENT, "expertfs");
    ok = ok && (!efs_address_is_loopback(r->url) || curl->easy_setopt(r->easy, CURLOPT_PROXY, "") == CURLE_OK) &&
         (!is_object(r) || curl->easy_setopt(r->easy, CURLOPT_PATH_AS_IS, 1L) == CURLE_OK) &&
         (!h->ca_bundle || curl->easy_setopt(r->easy, CURLOPT_CAINFO, h->ca_bundle) == CURLE_OK) &&
         (!needs_match(r) || add_header(r, "If-Match", r->file->known.etag)) && add_secrets(r);
    return ok && (!r->headers || curl->easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->headers) == CURLE_OK);
}

static void request_over(struct efs_http_request *r, ssize_t result)
{
    r->over = true;
    r->result = result;
}

/* The request fails for a reason, which is reported once until a range arrives. */
__attribute__((format(printf, 3, 4))) static void request_fail(struct efs_http_request *r, errint_t error,
                                                               const char *format, ...)
{
    struct efs_http *h = r->http;
    struct efs_error line;
    char reason[400];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    efs_fail(&line, error, "%.200s: %s", r->file->address.name, reason);
    snprintf(h->fault, sizeof(h->fault), "%.*s", (int)sizeof(h->fault) - 1, line.text);
    if (r->read && !h->said && h->b.say)
        h->b.say(h->b.say_arg, h->fault);
    h->said = h->said || r->read;
    request_over(r, r->read ? -EIO : error);
}

void efs_http_request_start(struct efs_http_request *r)
{
    struct efs_http *h = r->http;
    if (!r->url)
        r->url = strdup(r->file->target ? r->file->target : r->file->address.url);
    if (!r->easy)
        r->easy = h->curl.easy_init();
    r->answer = (struct efs_answer){.status = 0};
    r->judged = false;
    r->verdict = EFS_ANSWER_WRONG;
    r->before = r->done;
    r->ignored = 0;
    if (r->file->changed) {
        request_over(r, -EIO);
        return;
    }
    r->running = r->url && r->easy && set_up(r) && h->curl.multi_add_handle(h->multi, r->easy) == CURLM_OK;
    if (!r->running)
        request_fail(r, -ENOMEM, "libcurl refuses the request: no memory, or it is too old");
}

void efs_http_request_drop(struct efs_http_request *r)
{
    const struct efs_curl *curl = &r->http->curl;
    if (r->running)
        curl->multi_remove_handle(r->http->multi, r->easy);
    if (r->easy)
        curl->easy_cleanup(r->easy);
    curl->slist_free_all(r->headers);
    free(r->url);
    *r = (struct efs_http_request){.http = r->http};
}

/* ---- the end of a try ---- */

unsigned efs_http_tries(const struct efs_http *h)
{
    return h->said ? EFS_HTTP_TRIES - 1 : 0;
}

/* Tries again at once, from another address, or after some time. */
static void request_lead(struct efs_http_request *r, const char *url)
{
    char *copy = strdup(url);
    free(r->url);
    r->url = copy;
    r->due_ns = efs_now_ns();
    if (!copy)
        request_fail(r, -ENOMEM, "no memory");
}

/* Requests the first address, once: the link to which it led may have expired, or its host may have ended. */
static bool request_renewed(struct efs_http_request *r)
{
    if (r->renewed || strcmp(r->url, r->file->address.url) == 0)
        return false;
    r->renewed = true;
    r->hops = 0;
    r->done = 0;
    r->tries = efs_http_tries(r->http);
    request_lead(r, r->file->address.url);
    return true;
}

/* A hint for an error of libcurl, or "". */
static const char *way_out(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        return "\nhint: check the host's name; https_proxy names a proxy";
    case CURLE_COULDNT_RESOLVE_PROXY:
        return "\nhint: https_proxy or http_proxy names it, no_proxy hosts without one";
    case CURLE_COULDNT_CONNECT:
        return "\nhint: check that the server runs, and its port; https_proxy names a proxy, no_proxy hosts without "
               "one";
    case CURLE_SSL_CONNECT_ERROR:
        return "\nhint: check that the port is one of TLS; without TLS use http://, for another machine with "
               "EXPERTFS_INSECURE_HTTP=1";
    case CURLE_OPERATION_TIMEDOUT:
        return "\nhint: check the address and proxies; for a slow server set EXPERTFS_HTTP_TIMEOUT, in seconds";
    case CURLE_UNSUPPORTED_PROTOCOL: /* the address was checked: it is the answer that is not of HTTP */
        return "\nhint: check the port: no web server answers there";
    default:
        return "";
    }
}

static void request_later(struct efs_http_request *r, CURLcode code)
{
    const struct efs_curl *curl = &r->http->curl;
    curl_off_t after = 0;
    curl->easy_getinfo(r->easy, CURLINFO_RETRY_AFTER, &after);
    if (r->whole) /* once more from its begin */
        r->done = 0;
    else if (r->done - r->before >= PROGRESS_BYTES)
        r->tries = 0;
    r->tries += code == CURLE_OPERATION_TIMEDOUT ? 2 : 1;
    const bool reached =
        r->file->known.etag[0] || (code != CURLE_COULDNT_CONNECT && code != CURLE_COULDNT_RESOLVE_HOST);
    if (r->judged && r->verdict == EFS_ANSWER_BUSY && after > RETRY_AFTER_MAX)
        request_fail(r, -EIO, "the server answers %u and asks to wait %lld s", r->answer.status, (long long)after);
    else if (r->tries < EFS_HTTP_TRIES && reached)
        r->due_ns = efs_now_ns() + (r->judged && r->verdict == EFS_ANSWER_BUSY && after > 0
                                        ? (uint64_t)after * 1000000000u
                                        : (uint64_t)RETRY_FIRST_NS << (r->tries - 1));
    else if (request_renewed(r))
        return;
    else if (r->judged && r->verdict == EFS_ANSWER_BUSY)
        request_fail(r, -EIO, "the server answers %u, also after some time", r->answer.status);
    else if (code == CURLE_OK)
        request_fail(r, -EIO, "the server sends less than it announces");
    else
        request_fail(r, -EIO, "%s%s", curl->easy_strerror(code), way_out(code));
}

static void request_redirect(struct efs_http_request *r)
{
    char *to = NULL;
    r->http->curl.easy_getinfo(r->easy, CURLINFO_REDIRECT_URL, &to);
    const char *refused = to ? efs_address_refused(r->url, to) : NULL;
    if (!to)
        request_fail(r, -EIO, "a redirect (%u) leads nowhere%s", r->answer.status,
                     is_object(r) ? "\nhint: AWS_REGION is that of the bucket" : "");
    else if (++r->hops > REDIRECTS_MAX)
        request_fail(r, -EIO, "more than %u redirects", REDIRECTS_MAX);
    else if (refused)
        request_fail(r, -EIO, "a redirect leads to an address that %s", refused);
    else
        request_lead(r, to);
}

/* Reasons of the Hub. */
static const struct refusal {
    const char *code;
    errint_t error;
    const char *why;
} refusals[] = {
    {"GatedRepo", -EACCES,
     "a gated model\nhint: accept the terms on its page, and give a token of that user by HF_TOKEN"},
    {"RepoNotFound", -ENOENT, "no such model, or a private one\nhint: check the name; a private one needs HF_TOKEN"},
    {"RevisionNotFound", -ENOENT, "no such revision of the model\nhint: its page lists branches, tags and commits"}};

static bool request_refused_by_hub(struct efs_http_request *r)
{
    for (size_t i = 0; r->file->address.hub && i < sizeof(refusals) / sizeof(refusals[0]); i++)
        if (strcmp(r->answer.code, refusals[i].code) == 0) {
            request_fail(r, refusals[i].error, "%s", refusals[i].why);
            return true;
        }
    return false;
}

static void request_refused(struct efs_http_request *r)
{
    const unsigned status = r->answer.status;
    if (request_refused_by_hub(r)) {
        return;
    } else if (r->verdict == EFS_ANSWER_MISSING) {
        request_fail(r, -ENOENT, "the server has no such file (%u)", status);
    } else {
        request_fail(r, -EACCES, "the server refuses %s (%u)\nhint: %s",
                     status == 401 && r->file->address.token ? "the token" : "access", status, r->file->address.hint);
    }
}

static void request_changed(struct efs_http_request *r)
{
    r->file->changed = true;
    request_fail(r, -EIO, "the file changed since it was opened: reads of it fail\nhint: mount it again");
}

/* Servers answer a link that has expired by 403, by 400, by a page that says so, or by something else. */
static bool is_refusal(enum efs_verdict verdict)
{
    return verdict != EFS_ANSWER_RANGE && verdict != EFS_ANSWER_REDIRECT && verdict != EFS_ANSWER_CHANGED &&
           verdict != EFS_ANSWER_BUSY;
}

static bool is_certificate(CURLcode code)
{
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_ISSUER_ERROR || code == CURLE_SSL_INVALIDCERTSTATUS;
}

static void request_arrived(struct efs_http_request *r)
{
    struct efs_http *h = r->http;
    char *target = r->whole || (r->file->target && strcmp(r->file->target, r->url) == 0) ? NULL : strdup(r->url);
    if (!r->whole && !r->file->known.etag[0]) {
        r->file->known.bytes = r->answer.total;
        memcpy(r->file->known.etag, r->answer.etag, sizeof(r->file->known.etag));
    }
    if (target) {
        free(r->file->target);
        r->file->target = target;
    }
    h->said = false;
    request_over(r, (ssize_t)r->done);
}

void efs_http_request_ended(struct efs_http_request *r, CURLcode code)
{
    struct efs_http *h = r->http;
    h->curl.multi_remove_handle(h->multi, r->easy);
    r->running = false;
    judge(r);
    if (is_certificate(code)) {
        request_fail(r, -EACCES,
                     "the certificate is not trusted: %s\nhint: name the authority's file by CURL_CA_BUNDLE",
                     h->curl.easy_strerror(code));
        return;
    }
    if (!r->judged) {
        long proxy = 0;
        h->curl.easy_getinfo(r->easy, CURLINFO_HTTP_CONNECTCODE, &proxy);
        if (proxy >= 300)
            request_fail(
                r, -EACCES,
                "the proxy refuses the connection (%ld)\nhint: https_proxy names another, no_proxy hosts without one",
                proxy);
        else if (r->answer.header_bytes > EFS_ANSWER_HEADER_BYTES)
            request_fail(r, -EIO, "the server sends more than %u KiB of headers", EFS_ANSWER_HEADER_BYTES >> 10);
        else if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL)
            request_fail(r, -EINVAL, "%s%s", h->curl.easy_strerror(code), way_out(code));
        else
            request_later(r, code);
        return;
    }
    if (is_refusal(r->verdict) && request_renewed(r))
        return;
    switch (r->verdict) {
    case EFS_ANSWER_RANGE:
        if (r->whole ? code == CURLE_OK : r->done == r->bytes)
            request_arrived(r);
        else
            request_later(r, code);
        return;
    case EFS_ANSWER_REDIRECT:
        request_redirect(r);
        return;
    case EFS_ANSWER_REFUSED:
    case EFS_ANSWER_MISSING:
        request_refused(r);
        return;
    case EFS_ANSWER_CHANGED:
        request_changed(r);
        return;
    case EFS_ANSWER_BUSY:
        request_later(r, code);
        return;
    case EFS_ANSWER_NO_RANGES:
        request_fail(
            r, -EIO,
            "the server sends the whole file in place of a range\nhint: use a server with ranges, or download it");
        return;
    case EFS_ANSWER_NO_ETAG:
        request_fail(r, -EIO,
                     "the server names no strong ETag, so a changed file could not be noticed\nhint: use a server with "
                     "ETags, such as nginx, or download it");
        return;
    case EFS_ANSWER_EMPTY:
        request_fail(r, -EIO, "the file is empty");
        return;
    case EFS_ANSWER_WRONG:
        break;
    }
    request_fail(r, -EIO, "the server's answer (%u) is not the %s that was requested", r->answer.status,
                 r->whole ? "list" : "range");
}
