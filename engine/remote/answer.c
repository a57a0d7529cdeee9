/* SPDX-License-Identifier: Apache-2.0 */
/* answer.c - see answer.h. */
#include "answer.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define OBJECT_BYTES_MAX (INT64_MAX / 2)

/* A number of at most 18 digits, which fits. false: none. */
static bool take_number(const char **at, const char *end, uint64_t *number)
{
    unsigned digits = 0;
    *number = 0;
    for (; *at < end && **at >= '0' && **at <= '9' && digits <= 18; ++*at, digits++)
        *number = *number * 10 + (uint64_t)(**at - '0');
    return digits > 0 && digits <= 18;
}

static bool take(const char **at, const char *end, char c)
{
    if (*at == end || **at != c)
        return false;
    ++*at;
    return true;
}

/* "bytes FIRST-LAST/TOTAL" */
static bool parse_range(struct efs_answer *a, const char *at, const char *end)
{
    if (end - at < 6 || strncasecmp(at, "bytes ", 6) != 0)
        return false;
    at += 6;
    return take_number(&at, end, &a->first) && take(&at, end, '-') && take_number(&at, end, &a->last) &&
           take(&at, end, '/') && take_number(&at, end, &a->total) && at == end && a->first <= a->last &&
           a->last < a->total && a->total <= OBJECT_BYTES_MAX;
}

/* Keeps a strong ETag: it is sent again, as If-Match. */
static void parse_etag(struct efs_answer *a, const char *at, const char *end)
{
    const size_t bytes = (size_t)(end - at);
    a->etag[0] = '\0';
    if (bytes < 3 || bytes >= sizeof(a->etag) || at[0] != '"' || at[bytes - 1] != '"')
        return;
    for (size_t i = 1; i + 1 < bytes; i++)
        if (at[i] < 0x21 || at[i] > 0x7E || at[i] == '"')
            return;
    memcpy(a->etag, at, bytes);
    a->etag[bytes] = '\0';
}

/* "HTTP/1.1 206 ..." */
static void parse_status(struct efs_answer *a, const char *at, const char *end)
{
    uint64_t status;
    *a = (struct efs_answer){.header_bytes = a->header_bytes};
    while (at < end && *at != ' ')
        at++;
    if (take(&at, end, ' ') && take_number(&at, end, &status) && status >= 100 && status <= 999)
        a->status = (unsigned)status;
}

void efs_answer_header(struct efs_answer *a, const char *line, size_t bytes)
{
    const char *end = line + bytes;
    a->header_bytes += bytes;
    while (end > line && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    if (end - line >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        parse_status(a, line, end);
        return;
    }
    if (end == line) { /* 1xx: another status line follows */
        a->complete = a->status >= 200;
        return;
    }
    const char *colon = memchr(line, ':', (size_t)(end - line)), *value = colon ? colon + 1 : end;
    const size_t name = colon ? (size_t)(colon - line) : 0;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    if (name == 4 && strncasecmp(line, "etag", name) == 0)
        parse_etag(a, value, end);
    else if (name == 13 && strncasecmp(line, "content-range", name) == 0)
        a->has_range = parse_range(a, value, end);
    else if (name == 12 && strncasecmp(line, "x-error-code", name) == 0)
        snprintf(a->code, sizeof(a->code), "%.*s", (int)(end - value), value);
    else if (name == 16 && strncasecmp(line, "content-encoding", name) == 0)
        a->encoded = !(end - value == 8 && strncasecmp(value, "identity", 8) == 0);
}

static enum efs_verdict judge_range(const struct efs_answer *a, const struct efs_identity *known, uint64_t begin,
                                    uint64_t bytes)
{
    const bool first = !known->etag[0];
    if (a->encoded || !a->has_range)
        return EFS_ANSWER_NO_RANGES;
    if (!a->etag[0])
        return first ? EFS_ANSWER_NO_ETAG : EFS_ANSWER_CHANGED;
    if (!first && (strcmp(a->etag, known->etag) != 0 || a->total != known->bytes))
        return EFS_ANSWER_CHANGED;
    const uint64_t last = begin + bytes - 1 < a->total ? begin + bytes - 1 : a->total - 1;
    return a->first == begin && a->last == last ? EFS_ANSWER_RANGE : EFS_ANSWER_WRONG;
}

enum efs_verdict efs_answer_judge(const struct efs_answer *a, const struct efs_identity *known, uint64_t begin,
                                  uint64_t bytes)
{
    switch (a->status) {
    case 206:
        return judge_range(a, known, begin, bytes);
    case 200:
        return EFS_ANSWER_NO_RANGES;
    case 301:
    case 302:
    case 303:
    case 307:
    case 308:
        return EFS_ANSWER_REDIRECT;
    case 400: /* of S3: a token that has expired, another region */
    case 401:
    case 403:
        return EFS_ANSWER_REFUSED;
    case 404:
    case 410:
        return EFS_ANSWER_MISSING;
    case 408:
    case 425:
    case 429:
        return EFS_ANSWER_BUSY;
    case 412:
        return known->etag[0] ? EFS_ANSWER_CHANGED : EFS_ANSWER_WRONG;
    case 416:
        return known->etag[0] ? EFS_ANSWER_CHANGED : begin == 0 ? EFS_ANSWER_EMPTY : EFS_ANSWER_WRONG;
    default:
        return a->status >= 500 ? EFS_ANSWER_BUSY : EFS_ANSWER_WRONG;
    }
}
