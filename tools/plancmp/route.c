/*
 * route.c - reading a routing trace, every number checked before it is used.
 */
#include "route.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define MAX_FILE_BYTES (UINT64_C(1) << 30)
#define HEADER_BYTES 40u

static int fail(char *error, size_t bytes, int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(error, bytes, format, args);
    va_end(args);
    return code;
}

static int read_whole(const char *path, uint8_t **data, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    long size;
    int rc = 0;

    if (!file)
        return -errno;
    if (fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET)) {
        rc = -errno;
    } else if ((uint64_t)size > MAX_FILE_BYTES) {
        rc = -EFBIG;
    } else {
        *bytes = (size_t)size;
        *data = malloc(*bytes + 1);
        if (!*data)
            rc = -ENOMEM;
        else if (fread(*data, 1, *bytes, file) != *bytes)
            rc = -EIO;
    }
    fclose(file);
    return rc;
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int parse(struct route *route, const uint8_t *data, size_t bytes, char *error, size_t error_bytes)
{
    uint32_t probabilities, name_bytes;
    uint64_t record;

    if (bytes < HEADER_BYTES || memcmp(data, "MOETRACE", 8) || u32_at(data + 8) != 1)
        return fail(error, error_bytes, -EUCLEAN, "not a version 1 routing trace");
    route->layers = u32_at(data + 12);
    route->experts = u32_at(data + 16);
    route->chosen = u32_at(data + 20);
    probabilities = u32_at(data + 24);
    name_bytes = u32_at(data + 28);
    route->tokens = u32_at(data + 32) | (uint64_t)u32_at(data + 36) << 32;
    if (!route->layers || route->layers > 1024 || !route->experts || route->experts > 4096 || !route->chosen ||
        route->chosen > route->experts || probabilities > 1 || name_bytes > bytes - HEADER_BYTES)
        return fail(error, error_bytes, -EUCLEAN, "a number of the header is out of bounds");
    record = 4 + (uint64_t)route->layers * route->chosen * (probabilities ? 4 : 2);
    if (!route->tokens || route->tokens > (bytes - HEADER_BYTES - name_bytes) / record)
        return fail(error, error_bytes, -EUCLEAN, "says %llu tokens, has fewer", (unsigned long long)route->tokens);
    snprintf(route->name, sizeof(route->name), "%.*s", (int)(name_bytes < 63 ? name_bytes : 63),
             (const char *)data + HEADER_BYTES);

    size_t per_token = (size_t)route->layers * route->chosen;
    const uint8_t *p = data + HEADER_BYTES + name_bytes;

    route->sequence = calloc(route->tokens, sizeof(*route->sequence));
    route->ids = calloc(route->tokens * per_token, sizeof(*route->ids));
    if (!route->sequence || !route->ids)
        return fail(error, error_bytes, -ENOMEM, "no memory for %llu tokens", (unsigned long long)route->tokens);
    for (uint64_t t = 0; t < route->tokens; t++, p += record) {
        route->sequence[t] = u32_at(p);
        for (size_t i = 0; i < per_token; i++) {
            uint32_t id = (uint32_t)p[4 + 2 * i] | (uint32_t)p[5 + 2 * i] << 8;

            if (id >= route->experts)
                return fail(error, error_bytes, -EUCLEAN, "token %llu: expert %u of %u", (unsigned long long)t, id,
                            route->experts);
            route->ids[t * per_token + i] = id;
        }
    }
    return 0;
}

int route_read(const char *path, struct route *route, char *error, size_t error_bytes)
{
    uint8_t *packed = NULL, *data = NULL;
    size_t packed_bytes = 0, bytes;
    unsigned long long size;
    int rc = read_whole(path, &packed, &packed_bytes);

    memset(route, 0, sizeof(*route));
    if (rc) {
        free(packed);
        return fail(error, error_bytes, rc, "%s", strerror(-rc));
    }
    size = ZSTD_getFrameContentSize(packed, packed_bytes);
    if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN || size > MAX_FILE_BYTES) {
        free(packed);
        return fail(error, error_bytes, -EUCLEAN, "not a zstd file that says its size");
    }
    data = malloc(size ? size : 1);
    if (!data) {
        rc = fail(error, error_bytes, -ENOMEM, "no memory for %llu bytes", size);
    } else {
        bytes = ZSTD_decompress(data, size, packed, packed_bytes);
        rc = ZSTD_isError(bytes) ? fail(error, error_bytes, -EUCLEAN, "%s", ZSTD_getErrorName(bytes))
                                 : parse(route, data, bytes, error, error_bytes);
    }
    free(packed);
    free(data);
    if (rc)
        route_free(route);
    return rc;
}

void route_free(struct route *route)
{
    free(route->sequence);
    free(route->ids);
    memset(route, 0, sizeof(*route));
}
