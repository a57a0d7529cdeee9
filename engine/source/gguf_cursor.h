/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_cursor.h - a buffered reader of a GGUF header: little-endian, front to back, never past the end of the file.
 * Used by source_gguf.c alone.
 */
#ifndef EFS_GGUF_CURSOR_H
#define EFS_GGUF_CURSOR_H

#include "source.h"

struct efs_gguf_cursor {
    const struct efs_source_input *in;
    struct efs_error *err;
    uint64_t offset; /* of the next byte; <= in->bytes */
    uint64_t window_offset;
    size_t window_bytes;
    uint8_t *window; /* owned */
    bool cut;        /* the file ends before data that it describes */
    /* The part being read, for messages: "tensor 5 at offset 4000". */
    const char *part;
    uint64_t part_number, part_offset;
};

#define EFS_GGUF_ONLY UINT64_MAX /* the part is unique: no number */

/* Starts at offset 0; err gets the messages of all calls. efs_gguf_close() frees the window. 0 or -ENOMEM. */
errint_t efs_gguf_open(struct efs_gguf_cursor *cursor, const struct efs_source_input *in, struct efs_error *err);
void efs_gguf_close(struct efs_gguf_cursor *cursor);
/* Sets the part that starts at the current offset, and its number, for messages. */
void efs_gguf_part(struct efs_gguf_cursor *cursor, const char *part, uint64_t number);
/* Returns -EUCLEAN with the message "FILE: PART NUMBER at offset OFFSET: REASON". */
__attribute__((format(printf, 2, 3))) errint_t efs_gguf_fail(const struct efs_gguf_cursor *cursor, const char *format,
                                                             ...);
/* Bytes from the current offset to the end of the file. */
uint64_t efs_gguf_left(const struct efs_gguf_cursor *cursor);
/* Read or skip bytes. -EUCLEAN with cut set: the file ends before them; errors of efs_source_read(). */
errint_t efs_gguf_read(struct efs_gguf_cursor *cursor, void *dst, size_t bytes);
errint_t efs_gguf_skip(struct efs_gguf_cursor *cursor, uint64_t bytes);
errint_t efs_gguf_skip_strings(struct efs_gguf_cursor *cursor, uint64_t count); /* each with its length */
errint_t efs_gguf_u32(struct efs_gguf_cursor *cursor, uint32_t *value);
errint_t efs_gguf_u64(struct efs_gguf_cursor *cursor, uint64_t *value);

#endif
