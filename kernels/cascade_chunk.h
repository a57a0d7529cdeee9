/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cascade_chunk.h - a cascade chunk opened and checked, span by span. Private to kernels/.
 */
#ifndef EFS_KERNELS_CASCADE_CHUNK_H
#define EFS_KERNELS_CASCADE_CHUNK_H

#include "ops.h"

struct efs_chunk {
    const uint8_t *bytes;
    uint32_t symbols, spans;
    uint32_t code_begin, code_end; /* where the spans' code lies, offsets in bytes */
};

static inline uint32_t efs_span_count(size_t symbols)
{
    return (uint32_t)((symbols + EFS_SPAN - 1) / EFS_SPAN);
}

/* Where the spans' code begins. */
static inline size_t efs_code_begin(size_t spans)
{
    return EFS_CHUNK_HEADER + spans * EFS_SPAN_HEADER;
}

/* Elements of block b of a span of n. */
static inline uint32_t efs_block_size(uint32_t n, unsigned b)
{
    uint32_t begin = b * EFS_BLOCK, left = n > begin ? n - begin : 0;

    return left < EFS_BLOCK ? left : EFS_BLOCK;
}

/* Bytes of a span's planes of level 0, which come last. All blocks but the last are whole, and their planes have no
 * bits to spare. */
static inline size_t efs_first_bytes(const struct efs_span *span)
{
    return span->levels == 0 ? 0 : efs_plane_bytes(span->size[0], 2);
}

/* Bytes of the rest and the planes of the lower levels, which come first. */
static inline size_t efs_lower_bytes(const struct efs_span *span)
{
    size_t bytes = span->size[span->levels];

    for (unsigned level = 1; level < span->levels; level++)
        bytes += efs_plane_bytes(span->size[level], 2);
    return bytes;
}

/* Checks the header of a chunk of chunk_bytes bytes. 0 or -EUCLEAN. The chunk must stay while it is in use. */
int efs_chunk_open(const uint8_t *bytes, size_t chunk_bytes, struct efs_chunk *chunk);
/* Span s < chunk->spans, with all that ops.h says of one. 0 or -EUCLEAN. */
int efs_chunk_span(const struct efs_chunk *chunk, uint32_t s, struct efs_span *span);
/* Block b of the span: below is what lower() gave; a span without levels needs none. */
void efs_span_block(const struct efs_span *span, const uint8_t *below, unsigned b, struct efs_cascade_block *block);

#endif
