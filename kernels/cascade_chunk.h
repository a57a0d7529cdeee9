/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cascade_chunk.h - parses and checks the headers of a cascade chunk. Private to kernels/.
 *
 * Device code (cuda/) uses the same functions.
 */
#ifndef EFS_KERNELS_CASCADE_CHUNK_H
#define EFS_KERNELS_CASCADE_CHUNK_H

#include "ops.h"

#include <errno.h>
#include <string.h>

#define EFS_SYMBOLS_MAX (1u << 30)

struct efs_chunk {
    const uint8_t *bytes;
    uint32_t symbols, spans;
    uint32_t code_begin, code_end; /* range of the spans' code, byte offsets in the chunk */
};

EFS_DEVICE uint32_t efs_span_count(size_t symbols)
{
    return (uint32_t)((symbols + EFS_SPAN - 1) / EFS_SPAN);
}

/* Byte offset of the spans' code in the chunk. */
EFS_DEVICE size_t efs_code_begin(size_t spans)
{
    return EFS_CHUNK_HEADER + spans * EFS_SPAN_HEADER;
}

/* Elements of block b of a span of n. */
EFS_DEVICE uint32_t efs_block_size(uint32_t n, unsigned b)
{
    uint32_t begin = b * EFS_BLOCK, left = n > begin ? n - begin : 0;

    return left < EFS_BLOCK ? left : EFS_BLOCK;
}

/* Bytes of a span's planes of level 0, which are at the end of its code. Only the last block can be partial, so the
 * sum over the blocks is the same as for one plane stream. */
EFS_DEVICE size_t efs_first_bytes(const struct efs_span *span)
{
    return span->levels == 0 ? 0 : efs_plane_bytes(span->size[0], 2);
}

/* Bytes of the rest and the planes of the lower levels, which are at the start of its code. */
EFS_DEVICE size_t efs_lower_bytes(const struct efs_span *span)
{
    size_t bytes = span->size[span->levels];

    for (unsigned level = 1; level < span->levels; level++)
        bytes += efs_plane_bytes(span->size[level], 2);
    return bytes;
}

/* On a device headers are aligned to 4 bytes. */
EFS_DEVICE uint16_t efs_chunk_read_u16(const uint8_t *p)
{
#ifdef __CUDACC__
    return *(const uint16_t *)p;
#else
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
#endif
}

EFS_DEVICE uint32_t efs_chunk_read_u32(const uint8_t *p)
{
#ifdef __CUDACC__
    return *(const uint32_t *)p;
#else
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
#endif
}

/* Checks the header of a chunk of chunk_bytes bytes; header is the chunk's start, or a copy of it. 0 or -EUCLEAN.
 * *chunk points into bytes. */
EFS_DEVICE int efs_chunk_parse(const uint8_t *header, const uint8_t *bytes, size_t chunk_bytes, struct efs_chunk *chunk)
{
    if (chunk_bytes < EFS_CHUNK_HEADER + EFS_CASCADE_SLACK || chunk_bytes > UINT32_MAX)
        return -EUCLEAN;
    chunk->bytes = bytes;
    chunk->symbols = efs_chunk_read_u32(header);
    chunk->spans = efs_chunk_read_u32(header + 4);
    chunk->code_end = efs_chunk_read_u32(header + 8);
    if (chunk->symbols > EFS_SYMBOLS_MAX || chunk->spans != efs_span_count(chunk->symbols) ||
        chunk->code_end > chunk_bytes - EFS_CASCADE_SLACK || efs_chunk_read_u32(header + 12) != 0)
        return -EUCLEAN;
    chunk->code_begin = (uint32_t)efs_code_begin(chunk->spans); /* at most 2^15 spans */
    return chunk->code_begin <= chunk->code_end ? 0 : -EUCLEAN;
}

EFS_DEVICE int efs_chunk_open(const uint8_t *bytes, size_t chunk_bytes, struct efs_chunk *chunk)
{
    return efs_chunk_parse(bytes, bytes, chunk_bytes, chunk);
}

EFS_DEVICE bool efs_chunk_parse_levels(const uint8_t *p, uint32_t n, struct efs_span *span)
{
    span->levels = p[20];
    if (span->levels > EFS_LEVELS)
        return false;
    span->size[0] = n;
    for (unsigned level = 0; level < EFS_LEVELS; level++) {
        uint32_t escaped = efs_chunk_read_u16(p + 4 + 2 * level);
        const uint8_t *table = p + 21 + 3 * level;
        if (level < span->levels ? escaped > span->size[level]
                                 : escaped != 0 || table[0] != 0 || table[1] != 0 || table[2] != 0)
            return false;
        span->size[level + 1] = escaped;
        memcpy(span->table[level], table, 3);
        span->table[level][3] = 0;
    }
    return true;
}

/* A block has at most as many escapes as symbols; blocks past the end of the span have none. */
EFS_DEVICE bool efs_chunk_parse_entries(const uint8_t *p, struct efs_span *span)
{
    span->entry[0] = 0;
    for (unsigned b = 1; b < EFS_SPAN_BLOCKS; b++)
        span->entry[b] = efs_chunk_read_u16(p + 12 + 2 * b);
    span->entry[EFS_SPAN_BLOCKS] = span->levels > 0 ? span->size[1] : 0;
    for (unsigned b = 0; b < EFS_SPAN_BLOCKS; b++) {
        uint32_t most = span->levels > 0 ? efs_block_size(span->size[0], b) : 0;
        if (span->entry[b + 1] < span->entry[b] || span->entry[b + 1] - span->entry[b] > most)
            return false;
    }
    return true;
}

/* Sets the addresses of the rest and the planes of a span whose code is at `at`. */
EFS_DEVICE void efs_span_places(struct efs_span *span, const uint8_t *at)
{
    span->rest = at;
    at += span->size[span->levels];
    for (unsigned level = span->levels; level-- > 0;) {
        span->planes[level] = at;
        at += efs_plane_bytes(span->size[level], 2);
    }
}

/* Parses span s < chunk->spans and checks what ops.h promises of a span. header: that of the span and the first four
 * bytes of the next one's, or a copy of them. 0 or -EUCLEAN. */
EFS_DEVICE int efs_chunk_parse_span(const struct efs_chunk *chunk, const uint8_t *header, uint32_t s,
                                    struct efs_span *span)
{
    const uint32_t left = chunk->symbols - s * EFS_SPAN, begin = efs_chunk_read_u32(header);
    const uint32_t end = s + 1 < chunk->spans ? efs_chunk_read_u32(header + EFS_SPAN_HEADER) : chunk->code_end;

    if (!efs_chunk_parse_levels(header, left < EFS_SPAN ? left : EFS_SPAN, span) ||
        !efs_chunk_parse_entries(header, span))
        return -EUCLEAN;
    if (begin < chunk->code_begin || begin > end || end > chunk->code_end ||
        end - begin != efs_lower_bytes(span) + efs_first_bytes(span))
        return -EUCLEAN;

    efs_span_places(span, chunk->bytes + begin);
    return 0;
}

EFS_DEVICE int efs_chunk_span(const struct efs_chunk *chunk, uint32_t s, struct efs_span *span)
{
    return efs_chunk_parse_span(chunk, chunk->bytes + efs_code_begin(s), s, span);
}

/* Block b of the span. below: the result of lower(); NULL for a span without levels. */
void efs_span_block(const struct efs_span *span, const uint8_t *below, unsigned b, struct efs_cascade_block *block);

#endif
