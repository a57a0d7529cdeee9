/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cascade_short.h - parses and checks a cascade chunk with short spans (kernels.h). Private to kernels/.
 */
#ifndef EFS_KERNELS_CASCADE_SHORT_H
#define EFS_KERNELS_CASCADE_SHORT_H

#include "cascade_chunk.h"

#define EFS_SHORT_HEADER 32   /* bytes of a chunk before the lengths of its spans */
#define EFS_SHORT_TABLE 16    /* offset of the shared table */
#define EFS_SHORT_OWN 0x80u   /* in a span's first byte: the span has its own table */
#define EFS_SHORT_SPAN_MIN 12 /* log2 of a span's symbols */
#define EFS_SHORT_SPAN_MAX 13 /* a span is at most one block (EFS_BLOCK) */

struct efs_short_chunk {
    const uint8_t *head;
    uint32_t symbols, spans, span_log2;
    uint32_t code_begin, code_end; /* of the spans, byte offsets in the chunk */
};

static inline uint32_t efs_short_symbols(const struct efs_short_chunk *chunk, uint32_t s)
{
    uint32_t span = 1u << chunk->span_log2, left = chunk->symbols - (s << chunk->span_log2);
    return left < span ? left : span;
}

static inline uint32_t efs_short_length(const struct efs_short_chunk *chunk, uint32_t s)
{
    return efs_chunk_read_u16(chunk->head + EFS_SHORT_HEADER + 2 * (size_t)s);
}

/* Bytes of a span's header. */
static inline uint32_t efs_short_span_header(unsigned levels, bool own_table)
{
    return 1 + (own_table ? 5 : 2) * levels;
}

/* Whether the chunk has short spans: then efs_short_open() parses it, else efs_chunk_open(). */
static inline bool efs_chunk_is_short(const uint8_t *chunk, size_t chunk_bytes)
{
    return chunk_bytes >= EFS_SHORT_HEADER + EFS_CASCADE_SLACK && efs_chunk_read_u32(chunk + 12) != 0;
}

/* Parses the first head_bytes of a chunk of chunk_bytes. 0 or -EUCLEAN. */
int efs_short_open(const uint8_t *head, size_t head_bytes, size_t chunk_bytes, struct efs_short_chunk *chunk);
/* Parses span s, whose `bytes` bytes are at p, with EFS_CASCADE_SLACK readable bytes after them. 0 or -EUCLEAN. */
int efs_short_span(const struct efs_short_chunk *chunk, uint32_t s, const uint8_t *p, uint32_t bytes,
                   struct efs_span *span);
/* As efs_cascade_merge(), for a chunk with short spans. */
int efs_short_merge(enum efs_format format, const uint8_t *chunk, size_t chunk_bytes, const uint8_t *sm,
                    size_t sm_bytes, size_t first, size_t count, void *dst, bool stream, void *scratch);

#endif
