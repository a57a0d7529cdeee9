/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_cursor.c - see gguf_cursor.h. */
#include "gguf_cursor.h"

#include "sys.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CURSOR_WINDOW (64u << 10)

errint_t efs_gguf_open(struct efs_gguf_cursor *cursor, const struct efs_source_input *in, struct efs_error *err)
{
    *cursor = (struct efs_gguf_cursor){.in = in, .err = err, .part = "header", .part_number = EFS_GGUF_ONLY};
    cursor->window = efs_sys_malloc(CURSOR_WINDOW);
    return cursor->window ? 0 : efs_fail(err, -ENOMEM, "%s: out of memory", in->path);
}

void efs_gguf_close(struct efs_gguf_cursor *cursor)
{
    free(cursor->window);
    cursor->window = NULL;
}

void efs_gguf_part(struct efs_gguf_cursor *cursor, const char *part, uint64_t number)
{
    cursor->part = part;
    cursor->part_number = number;
    cursor->part_offset = cursor->offset;
}

errint_t efs_gguf_fail(const struct efs_gguf_cursor *cursor, const char *format, ...)
{
    char reason[512], number[24] = "";
    va_list args;

    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    if (cursor->part_number != EFS_GGUF_ONLY)
        snprintf(number, sizeof(number), " %" PRIu64, cursor->part_number);
    return efs_fail(cursor->err, -EUCLEAN, "%s: %s%s at offset %" PRIu64 ": %s", cursor->in->path, cursor->part, number,
                    cursor->part_offset, reason);
}

uint64_t efs_gguf_left(const struct efs_gguf_cursor *cursor)
{
    return cursor->in->bytes - cursor->offset;
}

static errint_t check_left(struct efs_gguf_cursor *cursor, uint64_t bytes)
{
    if (bytes <= efs_gguf_left(cursor))
        return 0;
    cursor->cut = true;
    return efs_gguf_fail(cursor,
                         "%" PRIu64 " bytes at offset %" PRIu64 " are past the end of the file (%" PRIu64 " bytes)",
                         bytes, cursor->offset, cursor->in->bytes);
}

/* Ensures that the next `bytes` bytes (<= CURSOR_WINDOW) are in the window. */
static errint_t fill_window(struct efs_gguf_cursor *cursor, size_t bytes)
{
    uint64_t end = cursor->window_offset + cursor->window_bytes;

    if (cursor->offset >= cursor->window_offset && cursor->offset <= end && bytes <= end - cursor->offset)
        return 0;
    uint64_t left = efs_gguf_left(cursor);
    cursor->window_bytes = left < CURSOR_WINDOW ? (size_t)left : CURSOR_WINDOW;
    cursor->window_offset = cursor->offset;
    errint_t ret = efs_source_read(cursor->in, cursor->offset, cursor->window, cursor->window_bytes, cursor->err);
    if (ret < 0)
        cursor->window_bytes = 0;
    return ret;
}

errint_t efs_gguf_read(struct efs_gguf_cursor *cursor, void *dst, size_t bytes)
{
    uint8_t *to = dst;

    errint_t ret = check_left(cursor, bytes);
    while (ret == 0 && bytes > 0) {
        size_t step = bytes < CURSOR_WINDOW ? bytes : CURSOR_WINDOW;
        ret = fill_window(cursor, step);
        if (ret < 0)
            return ret;
        memcpy(to, cursor->window + (cursor->offset - cursor->window_offset), step);
        to += step;
        bytes -= step;
        cursor->offset += step;
    }
    return ret;
}

errint_t efs_gguf_skip(struct efs_gguf_cursor *cursor, uint64_t bytes)
{
    errint_t ret = check_left(cursor, bytes);

    if (ret == 0)
        cursor->offset += bytes;
    return ret;
}

errint_t efs_gguf_skip_strings(struct efs_gguf_cursor *cursor, uint64_t count)
{
    uint64_t length;
    errint_t ret = 0;

    for (; ret == 0 && count > 0; count--) {
        ret = check_left(cursor, sizeof(length));
        if (ret == 0)
            ret = fill_window(cursor, sizeof(length));
        if (ret < 0)
            return ret;
        memcpy(&length, cursor->window + (cursor->offset - cursor->window_offset), sizeof(length));
        cursor->offset += sizeof(length);
        ret = efs_gguf_skip(cursor, le64toh(length));
    }
    return ret;
}

static errint_t read_number(struct efs_gguf_cursor *cursor, unsigned bytes, uint64_t *value)
{
    uint8_t raw[8];

    *value = 0;
    errint_t ret = efs_gguf_read(cursor, raw, bytes);
    for (unsigned i = 0; ret == 0 && i < bytes; i++)
        *value |= (uint64_t)raw[i] << (8 * i);
    return ret;
}

errint_t efs_gguf_u32(struct efs_gguf_cursor *cursor, uint32_t *value)
{
    uint64_t wide;
    errint_t ret = read_number(cursor, 4, &wide);

    *value = (uint32_t)wide;
    return ret;
}

errint_t efs_gguf_u64(struct efs_gguf_cursor *cursor, uint64_t *value)
{
    return read_number(cursor, 8, value);
}
