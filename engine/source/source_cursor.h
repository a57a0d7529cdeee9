/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_cursor.h - read a file's header from front to back, little-endian, never past the file's end.
 *
 * The cursor keeps one window of the file in memory, so that a header of many small fields costs few reads.
 */
#ifndef EFS_SOURCE_CURSOR_H
#define EFS_SOURCE_CURSOR_H

#include "source.h"

#define EFS_CURSOR_WINDOW (64u << 10)

struct efs_cursor {
    const struct efs_source_input *in;
    struct efs_error *err;
    uint64_t offset; /* of the next byte; at most in->bytes */
    uint64_t window_offset;
    size_t window_bytes;
    uint8_t *window; /* owned */
    bool cut;        /* something that the file describes is past its end */
    /* What is being read, for messages: "tensor 5 at offset 4000". */
    const char *part;
    uint64_t part_number, part_offset;
};

/* -ENOMEM. Close also after a failure. */
errint_t efs_cursor_open(struct efs_cursor *cursor, const struct efs_source_input *in, struct efs_error *err);
void efs_cursor_close(struct efs_cursor *cursor);

/* Name what begins here, with its number among its like. part is kept. */
#define EFS_CURSOR_ONLY UINT64_MAX /* there is but one: no number */
void efs_cursor_part(struct efs_cursor *cursor, const char *part, uint64_t number);
/* -EUCLEAN with "FILE: PART NUMBER at offset OFFSET: REASON". */
errint_t efs_cursor_fail(const struct efs_cursor *cursor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Bytes between the cursor and the end of the file. */
uint64_t efs_cursor_left(const struct efs_cursor *cursor);
/* Take or skip bytes. -EUCLEAN with a message: the file has not so many. -EIO, ... Blocks. */
errint_t efs_cursor_take(struct efs_cursor *cursor, void *dst, size_t bytes);
errint_t efs_cursor_skip(struct efs_cursor *cursor, uint64_t bytes);
errint_t efs_cursor_u32(struct efs_cursor *cursor, uint32_t *value);
errint_t efs_cursor_u64(struct efs_cursor *cursor, uint64_t *value);

#endif
