/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - reads a routing trace and checks every number before use. expertfs-route(5) has the format.
 */
#include "route.h"

#include "regular.h"
#include "expertfs-profile-private.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#define MAX_BYTES (UINT64_C(1) << 30) /* limit of a file's size, and of its size after decompression */
#define FIRST_BYTES (1u << 20)
#define HEADER_BYTES 40u
#define HEADER_2_BYTES 48u
#define LAYERS_MAX 1024u
#define EXPERTS_MAX 4096u
#define CHOSEN_MAX 64u
#define WIDTH_MAX 65536u

/* Bits of the header: the parts of a record. Version 1 has HAS_SCORES only. */
enum { HAS_SCORES = 1, HAS_ALL = 2, HAS_STATES = 4, HAS_EMBEDDINGS = 8, HAS_GATES = 16, HAS_KNOWN = 31 };

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

float efs_route_half(uint16_t half)
{
    int exponent = half >> 10 & 31;
    float fraction = (float)(half & 0x3ff) / 1024, size;
    if (exponent == 31)
        return half & 0x3ff ? NAN : half & 0x8000 ? -INFINITY : INFINITY;
    size = exponent ? ldexpf(1 + fraction, exponent - 15) : ldexpf(fraction, -14);
    return half & 0x8000 ? -size : size;
}

static void copy_name(struct efs_route *route, const uint8_t *name, size_t bytes)
{
    size_t n = bytes < sizeof(route->name) - 1 ? bytes : sizeof(route->name) - 1;
    for (size_t i = 0; i < n; i++)
        route->name[i] = name[i] >= 0x20 && name[i] < 0x7f ? (char)name[i] : '?';
    route->name[n] = '\0';
}

/* State of reading a trace. Byte offsets of its parts: `first` (record) and `gates` from the start of the file, the
 * rest from the start of a record; a record contains the parts named in `has`. kind 0: version 1, records have no kind.
 */
struct layout {
    const char *name; /* for messages */
    struct efs_route *route;
    uint32_t has;
    size_t first, gates, kind, ids, scores, states, embedding, record;
};

static errint_t no_number(const struct layout *at, const char *what, uint64_t token, struct efs_error *err)
{
    return efs_fail(err, -EUCLEAN, "%s: token %llu: a %s", at->name, (unsigned long long)token, what);
}

/* Reads probabilities in half precision. -EUCLEAN: infinite, not a number, or with the sign bit. */
static errint_t read_scores(const uint8_t *p, size_t count, float *scores)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t half = u16_at(p + 2 * i);
        if (half >= 0x7c00)
            return -EUCLEAN;
        scores[i] = efs_route_half(half);
    }
    return 0;
}

/* Reads finite numbers, and keeps them in half precision to save memory. -EUCLEAN: infinite or not a number. */
static errint_t read_halves(const uint8_t *p, size_t count, uint16_t *halves)
{
    for (size_t i = 0; i < count; i++) {
        halves[i] = u16_at(p + 2 * i);
        if ((halves[i] & 0x7c00) == 0x7c00)
            return -EUCLEAN;
    }
    return 0;
}

/* Fills the scores of the chosen experts from those of all experts. */
static void pick_scores(struct efs_route *r, uint64_t token)
{
    for (uint32_t l = 0; l < r->layers; l++)
        for (uint32_t i = 0; i < r->chosen; i++) {
            size_t at = (token * r->layers + l) * r->chosen + i;
            r->scores[at] = r->all_scores[(token * r->layers + l) * r->experts + r->ids[at]];
        }
}

static errint_t read_token(const struct layout *at, const uint8_t *p, uint64_t t, struct efs_error *err)
{
    struct efs_route *r = at->route;
    size_t per_token = (size_t)r->layers * r->chosen, all = (size_t)r->layers * r->experts;
    size_t width = r->width, states = r->layers * width;
    r->sequence[t] = u32_at(p);
    uint32_t kind = r->kind ? u32_at(p + at->kind) : 0;
    if (kind >= EFS_ROUTE_KINDS)
        return no_number(at, "kind that is not known", t, err);
    if (r->kind)
        r->kind[t] = (uint8_t)kind;
    for (size_t i = 0; i < per_token; i++) {
        uint16_t id = u16_at(p + at->ids + 2 * i);
        if (id >= r->experts)
            return efs_fail(err, -EUCLEAN, "%s: token %llu, layer %zu: expert %u of %u", at->name,
                            (unsigned long long)t, i / r->chosen, id, r->experts);
        r->ids[t * per_token + i] = id;
    }
    if (r->all_scores && read_scores(p + at->scores, all, r->all_scores + t * all) < 0)
        return no_number(at, "probability below 0 or no number", t, err);
    if (r->all_scores)
        pick_scores(r, t);
    else if (r->scores && read_scores(p + at->scores, per_token, r->scores + t * per_token) < 0)
        return no_number(at, "probability below 0 or no number", t, err);
    if (r->states && read_halves(p + at->states, states, r->states + t * states) < 0)
        return no_number(at, "hidden state that is no number", t, err);
    if (r->embeddings && read_halves(p + at->embedding, width, r->embeddings + t * width) < 0)
        return no_number(at, "embedding that is no number", t, err);
    return 0;
}

static errint_t read_gates(const struct layout *at, const uint8_t *p, struct efs_error *err)
{
    const struct efs_route *r = at->route;
    size_t count = (size_t)r->layers * r->experts * r->width;
    for (size_t i = 0; i < count; i++) {
        r->gates[i] = efs_route_half(u16_at(p + 2 * i));
        if (!isfinite(r->gates[i]))
            return efs_fail(err, -EUCLEAN, "%s: a gate's weight that is no number", at->name);
    }
    return 0;
}

/* Reads gates and tokens. read_header() has checked that they are inside data. */
static errint_t read_tokens(const struct layout *at, const uint8_t *data, struct efs_error *err)
{
    struct efs_route *r = at->route;
    size_t per_token = (size_t)r->layers * r->chosen, width = r->width;
    bool scored = at->has & (HAS_SCORES | HAS_ALL), all = at->has & HAS_ALL, kinds = at->kind;
    bool states = at->has & HAS_STATES, embeddings = at->has & HAS_EMBEDDINGS, gates = at->has & HAS_GATES;
    r->sequence = calloc(r->tokens, sizeof(*r->sequence));
    r->ids = calloc(r->tokens * per_token, sizeof(*r->ids));
    r->kind = kinds ? calloc(r->tokens, sizeof(*r->kind)) : NULL;
    r->scores = scored ? calloc(r->tokens * per_token, sizeof(*r->scores)) : NULL;
    r->all_scores = all ? calloc(r->tokens * r->layers * r->experts, sizeof(*r->all_scores)) : NULL;
    r->states = states ? calloc(r->tokens * r->layers * width, sizeof(*r->states)) : NULL;
    r->embeddings = embeddings ? calloc(r->tokens * width, sizeof(*r->embeddings)) : NULL;
    r->gates = gates ? calloc((size_t)r->layers * r->experts * width, sizeof(*r->gates)) : NULL;
    if (!r->sequence || !r->ids || (kinds && !r->kind) || (scored && !r->scores) || (all && !r->all_scores) ||
        (states && !r->states) || (embeddings && !r->embeddings) || (gates && !r->gates))
        return efs_fail(err, -ENOMEM, "%s: no memory for %llu tokens", at->name, (unsigned long long)r->tokens);
    errint_t rc = gates ? read_gates(at, data + at->gates, err) : 0;
    for (uint64_t t = 0; rc == 0 && t < r->tokens; t++)
        rc = read_token(at, data + at->first + t * at->record, t, err);
    return rc;
}

/* Checks the header and computes the offsets of all parts. The bounds of the numbers are checked before they are
 * multiplied, so a record has less than 2^32 bytes. */
static errint_t read_header(struct layout *at, uint32_t version, const uint8_t *data, size_t bytes,
                            struct efs_error *err)
{
    struct efs_route *r = at->route;
    size_t header = version == 1 ? HEADER_BYTES : HEADER_2_BYTES;
    uint32_t name_bytes = u32_at(data + 28);
    r->layers = u32_at(data + 12);
    r->experts = u32_at(data + 16);
    r->chosen = u32_at(data + 20);
    r->tokens = u32_at(data + 32) | (uint64_t)u32_at(data + 36) << 32;
    r->width = version == 1 ? 0 : u32_at(data + 40);
    at->has = u32_at(data + 24);
    bool wide = at->has & (HAS_STATES | HAS_EMBEDDINGS | HAS_GATES);
    if (r->layers < 1 || r->layers > LAYERS_MAX || r->experts < 1 || r->experts > EXPERTS_MAX || r->chosen < 1 ||
        r->chosen > CHOSEN_MAX || r->chosen > r->experts || at->has > (version == 1 ? HAS_SCORES : HAS_KNOWN) ||
        (at->has & (HAS_SCORES | HAS_ALL)) == (HAS_SCORES | HAS_ALL) || wide != (r->width > 0) ||
        r->width > WIDTH_MAX || name_bytes > bytes - header || (version == 2 && u32_at(data + 44) != 0))
        return efs_fail(err, -EUCLEAN, "%s: a number in the header of the trace is out of bounds", at->name);
    size_t per_token = (size_t)r->layers * r->chosen, next = 4;
    at->kind = version == 1 ? 0 : next;
    at->ids = next += version == 1 ? 0 : 4;
    at->scores = next += 2 * per_token;
    at->states = next += at->has & HAS_ALL      ? 2 * (size_t)r->layers * r->experts
                         : at->has & HAS_SCORES ? 2 * per_token
                                                : 0;
    at->embedding = next += at->has & HAS_STATES ? 2 * (size_t)r->layers * r->width : 0;
    at->record = next + (at->has & HAS_EMBEDDINGS ? 2 * (size_t)r->width : 0);
    uint64_t gates = at->has & HAS_GATES ? 2ull * r->layers * r->experts * r->width : 0;
    at->gates = header + name_bytes;
    size_t left = bytes - at->gates;
    if (gates > left)
        return efs_fail(err, -EUCLEAN, "%s: the trace ends within the weights of gates", at->name);
    at->first = at->gates + (size_t)gates;
    if (r->tokens < 1 || r->tokens > (left - gates) / at->record)
        return efs_fail(err, -EUCLEAN, "%s: the trace says that it has %llu tokens and holds %llu", at->name,
                        (unsigned long long)r->tokens, (unsigned long long)((left - gates) / at->record));
    copy_name(r, data + header, name_bytes);
    return 0;
}

static errint_t no_tokens(const char *name, struct efs_error *err)
{
    return efs_fail(
        err, -EUCLEAN,
        "%s: there is no token in this trace; a mount's .expertfs/trace has some once experts were asked for", name);
}

static errint_t parse_plain(const char *name, const uint8_t *data, size_t bytes, struct efs_route *route,
                            struct efs_error *err)
{
    if (bytes == 0)
        return no_tokens(name, err);
    if (bytes < HEADER_BYTES || memcmp(data, "MOETRACE", 8) != 0)
        return efs_fail(err, -EUCLEAN, "%s: not a routing trace (.route)", name);
    uint32_t version = u32_at(data + 8);
    if (version < 1 || version > 2)
        return efs_fail(err, -EUCLEAN, "%s: a routing trace of version %u; versions 1 and 2 are known", name, version);
    if (version == 2 && bytes < HEADER_2_BYTES)
        return efs_fail(err, -EUCLEAN, "%s: the trace ends within its header", name);
    struct layout at = {.name = name, .route = route};
    errint_t rc = read_header(&at, version, data, bytes, err);
    return rc < 0 ? rc : read_tokens(&at, data, err);
}

static errint_t route_grow(uint8_t **data, size_t *room)
{
    size_t more = *room ? *room * 2 : FIRST_BYTES;
    uint8_t *p = more <= MAX_BYTES ? realloc(*data, more) : NULL;
    if (!p)
        return more > MAX_BYTES ? -EFBIG : -ENOMEM;
    *data = p;
    *room = more;
    return 0;
}

/* Decompresses all zstd frames into *data, which the caller frees even after an error. -EUCLEAN: damaged or truncated;
 * -EFBIG: more than MAX_BYTES; -ENOMEM. */
static errint_t route_decompress(const void *packed, size_t packed_bytes, uint8_t **data, size_t *bytes)
{
    ZSTD_DStream *stream = ZSTD_createDStream();
    ZSTD_inBuffer in = {packed, packed_bytes, 0};
    size_t room = 0, left = 1;
    errint_t rc = stream ? 0 : -ENOMEM;
    *data = NULL;
    *bytes = 0;
    while (rc == 0 && (in.pos < in.size || left > 0)) {
        if (*bytes == room && (rc = route_grow(data, &room)) < 0)
            break;
        ZSTD_outBuffer out = {*data, room, *bytes};
        size_t before = in.pos;
        left = ZSTD_decompressStream(stream, &out, &in);
        if (ZSTD_isError(left) || (left > 0 && in.pos == before && out.pos == *bytes))
            rc = -EUCLEAN;
        *bytes = out.pos;
    }
    ZSTD_freeDStream(stream);
    return rc;
}

errint_t efs_route_parse(const char *name, const void *data, size_t bytes, struct efs_route *route,
                         struct efs_error *err)
{
    uint8_t *plain = NULL;
    size_t plain_bytes;
    errint_t rc;
    *route = (struct efs_route){0};
    if (bytes >= 4 && u32_at(data) == ZSTD_MAGICNUMBER) {
        rc = route_decompress(data, bytes, &plain, &plain_bytes);
        if (rc < 0)
            efs_fail(err, rc, "%s: %s", name,
                     rc == -EFBIG     ? "a trace of more than 1 GiB"
                     : rc == -EUCLEAN ? "the zstd stream is damaged or cut"
                                      : "no memory");
        else
            rc = parse_plain(name, plain, plain_bytes, route, err);
        free(plain);
    } else {
        rc = parse_plain(name, data, bytes, route, err);
    }
    if (rc < 0)
        efs_route_free(route);
    return rc;
}

/* Reads until end of file, because st_size of files in .expertfs is 0. room: size of the first buffer. The caller frees
 * *data even after an error. */
static errint_t read_to_end(int fd, size_t room, uint8_t **data, size_t *bytes)
{
    *bytes = 0;
    *data = malloc(room);
    for (errint_t rc = *data ? 0 : -ENOMEM;;) {
        if (rc == 0 && *bytes == room)
            rc = route_grow(data, &room);
        if (rc < 0)
            return rc;
        ssize_t n = pread(fd, *data + *bytes, room - *bytes, (off_t)*bytes);
        if (n <= 0)
            return n < 0 ? -errno : 0;
        *bytes += (size_t)n;
    }
}

errint_t efs_route_read(const char *path, struct efs_route *route, struct efs_error *err)
{
    struct stat st;
    uint8_t *data = NULL;
    size_t bytes = 0;
    *route = (struct efs_route){0};
    int fd = efs_regular_open_path(path, &st, err);
    if (fd < 0)
        return fd;
    errint_t rc = (uint64_t)st.st_size > MAX_BYTES ? -EFBIG : 0;
    if (rc == 0)
        rc = read_to_end(fd, (size_t)st.st_size + 1, &data, &bytes);
    close(fd);
    rc = rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : efs_route_parse(path, data, bytes, route, err);
    free(data);
    return rc;
}

void efs_route_free(struct efs_route *route)
{
    free(route->sequence);
    free(route->ids);
    free(route->scores);
    free(route->kind);
    free(route->all_scores);
    free(route->gates);
    free(route->states);
    free(route->embeddings);
    *route = (struct efs_route){0};
}
