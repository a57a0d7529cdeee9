/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - reading a routing trace, every number checked before it is used.
 *
 * The file is zstd-compressed (or not) and little-endian: "MOETRACE", u32 version (1), layers L, experts E, chosen K,
 * has_probabilities, name length N, u64 tokens T, the name, and T records: u32 sequence number, u16[L*K] expert ids in
 * layer order, f16[L*K] probabilities if there are any.
 */
#include "route.h"

#include "regular.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define MAX_BYTES (UINT64_C(1) << 30) /* of a file, packed or not */
#define FIRST_BYTES (1u << 20)
#define HEADER_BYTES 40u
#define LAYERS_MAX 1024u
#define EXPERTS_MAX 4096u
#define CHOSEN_MAX 64u

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Half precision, which every float holds; -1: negative, or no number. */
static float f16_at(const uint8_t *p)
{
    uint16_t half = u16_at(p);
    int exponent = half >> 10;
    float fraction = (float)(half & 0x3ff) / 1024;
    if (exponent >= 31) /* infinite, not a number, or with a sign */
        return -1;
    return exponent ? ldexpf(1 + fraction, exponent - 15) : ldexpf(fraction, -14);
}

static void copy_name(struct efs_route *route, const uint8_t *name, size_t bytes)
{
    size_t n = bytes < sizeof(route->name) - 1 ? bytes : sizeof(route->name) - 1;
    for (size_t i = 0; i < n; i++)
        route->name[i] = name[i] >= 0x20 && name[i] < 0x7f ? (char)name[i] : '?';
    route->name[n] = '\0';
}

static errint_t read_scores(const char *name, const uint8_t *p, uint64_t token, struct efs_route *route,
                            struct efs_error *err)
{
    size_t per_token = (size_t)route->layers * route->chosen;
    for (size_t i = 0; i < per_token; i++) {
        float score = f16_at(p + 2 * i);
        if (score < 0)
            return efs_fail(err, -EUCLEAN, "%s: token %llu, layer %zu: a probability below 0 or no number", name,
                            (unsigned long long)token, i / route->chosen);
        route->scores[token * per_token + i] = score;
    }
    return 0;
}

/* The records: their number and size are known to fit. */
static errint_t read_tokens(const char *name, const uint8_t *p, size_t record, bool scored, struct efs_route *route,
                            struct efs_error *err)
{
    size_t per_token = (size_t)route->layers * route->chosen;
    route->sequence = efs_sys_calloc(route->tokens, sizeof(*route->sequence));
    route->ids = efs_sys_calloc(route->tokens * per_token, sizeof(*route->ids));
    route->scores = scored ? efs_sys_calloc(route->tokens * per_token, sizeof(*route->scores)) : NULL;
    if (!route->sequence || !route->ids || (scored && !route->scores))
        return efs_fail(err, -ENOMEM, "%s: no memory for %llu tokens", name, (unsigned long long)route->tokens);
    for (uint64_t t = 0; t < route->tokens; t++, p += record) {
        route->sequence[t] = u32_at(p);
        for (size_t i = 0; i < per_token; i++) {
            uint16_t id = u16_at(p + 4 + 2 * i);
            if (id >= route->experts)
                return efs_fail(err, -EUCLEAN, "%s: token %llu, layer %zu: expert %u of %u", name,
                                (unsigned long long)t, i / route->chosen, id, route->experts);
            route->ids[t * per_token + i] = id;
        }
        if (scored) {
            errint_t rc = read_scores(name, p + 4 + 2 * per_token, t, route, err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static errint_t parse_plain(const char *name, const uint8_t *data, size_t bytes, struct efs_route *route,
                            struct efs_error *err)
{
    if (bytes == 0)
        return efs_fail(err, -EUCLEAN, "%s: empty: a trace of no token", name);
    if (bytes < HEADER_BYTES || memcmp(data, "MOETRACE", 8) != 0)
        return efs_fail(err, -EUCLEAN, "%s: not a routing trace (.route)", name);
    if (u32_at(data + 8) != 1)
        return efs_fail(err, -EUCLEAN, "%s: a routing trace of version %u; version 1 is known", name, u32_at(data + 8));
    uint32_t probabilities = u32_at(data + 24), name_bytes = u32_at(data + 28);
    route->layers = u32_at(data + 12);
    route->experts = u32_at(data + 16);
    route->chosen = u32_at(data + 20);
    route->tokens = u32_at(data + 32) | (uint64_t)u32_at(data + 36) << 32;
    if (route->layers < 1 || route->layers > LAYERS_MAX || route->experts < 1 || route->experts > EXPERTS_MAX ||
        route->chosen < 1 || route->chosen > CHOSEN_MAX || route->chosen > route->experts || probabilities > 1 ||
        name_bytes > bytes - HEADER_BYTES)
        return efs_fail(err, -EUCLEAN, "%s: a number in the header of the trace is out of bounds", name);
    size_t record = 4 + (size_t)route->layers * route->chosen * (probabilities ? 4 : 2);
    size_t there = (bytes - HEADER_BYTES - name_bytes) / record;
    if (route->tokens < 1 || route->tokens > there)
        return efs_fail(err, -EUCLEAN, "%s: the trace says that it has %llu tokens and holds %zu", name,
                        (unsigned long long)route->tokens, there);
    copy_name(route, data + HEADER_BYTES, name_bytes);
    return read_tokens(name, data + HEADER_BYTES + name_bytes, record, probabilities != 0, route, err);
}

static errint_t route_grow(uint8_t **data, size_t *room)
{
    size_t more = *room ? *room * 2 : FIRST_BYTES;
    uint8_t *p = more <= MAX_BYTES ? efs_sys_realloc(*data, more) : NULL;
    if (!p)
        return more > MAX_BYTES ? -EFBIG : -ENOMEM;
    *data = p;
    *room = more;
    return 0;
}

/* All frames of packed into *data, which the caller frees also after an error. */
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
            rc = -EUCLEAN; /* damaged, or it ends in the middle */
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

/* To the end, whatever size it says: files of .expertfs say 0. The caller frees *data also after an error. */
static errint_t read_to_end(int fd, size_t room, uint8_t **data, size_t *bytes)
{
    *bytes = 0;
    *data = efs_sys_malloc(room);
    for (errint_t rc = *data ? 0 : -ENOMEM;;) {
        if (rc == 0 && *bytes == room)
            rc = route_grow(data, &room);
        if (rc < 0)
            return rc;
        ssize_t n = efs_sys_pread(fd, *data + *bytes, room - *bytes, *bytes);
        if (n <= 0)
            return (errint_t)n;
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
    efs_sys_close(fd);
    rc = rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : efs_route_parse(path, data, bytes, route, err);
    free(data);
    return rc;
}

void efs_route_free(struct efs_route *route)
{
    free(route->sequence);
    free(route->ids);
    free(route->scores);
    *route = (struct efs_route){0};
}
