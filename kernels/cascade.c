/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cascade.c - a cascade chunk read: its checks, the walk over spans and blocks, parts of blocks.
 *
 * What is done to the symbols is in the processors' files (ops.h). Everything read from a chunk is checked here before
 * it is used, except what the planes say, which the paths check.
 */
#include "cascade_chunk.h"

#include <errno.h>
#include <string.h>

#define SYMBOLS_MAX (1u << 30)

static uint16_t read_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint32_t read_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

int efs_chunk_open(const uint8_t *bytes, size_t chunk_bytes, struct efs_chunk *chunk)
{
    if (chunk_bytes < EFS_CHUNK_HEADER + EFS_CASCADE_SLACK || chunk_bytes > UINT32_MAX)
        return -EUCLEAN;
    chunk->bytes = bytes;
    chunk->symbols = read_u32(bytes);
    chunk->spans = read_u32(bytes + 4);
    chunk->code_end = read_u32(bytes + 8);
    if (chunk->symbols > SYMBOLS_MAX || chunk->spans != efs_span_count(chunk->symbols) ||
        chunk->code_end > chunk_bytes - EFS_CASCADE_SLACK || read_u32(bytes + 12) != 0)
        return -EUCLEAN;
    chunk->code_begin = (uint32_t)efs_code_begin(chunk->spans); /* at most 2^15 spans */
    return chunk->code_begin <= chunk->code_end ? 0 : -EUCLEAN;
}

static bool parse_levels(const uint8_t *p, uint32_t n, struct efs_span *span)
{
    span->levels = p[20];
    if (span->levels > EFS_LEVELS)
        return false;
    span->size[0] = n;
    for (unsigned level = 0; level < EFS_LEVELS; level++) {
        uint32_t escaped = read_u16(p + 4 + 2 * level);
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

/* Each block's escapes are at most its symbols; blocks that are not there have none. */
static bool parse_entries(const uint8_t *p, struct efs_span *span)
{
    span->entry[0] = 0;
    for (unsigned b = 1; b < EFS_SPAN_BLOCKS; b++)
        span->entry[b] = read_u16(p + 12 + 2 * b);
    span->entry[EFS_SPAN_BLOCKS] = span->levels > 0 ? span->size[1] : 0;
    for (unsigned b = 0; b < EFS_SPAN_BLOCKS; b++) {
        uint32_t most = span->levels > 0 ? efs_block_size(span->size[0], b) : 0;
        if (span->entry[b + 1] < span->entry[b] || span->entry[b + 1] - span->entry[b] > most)
            return false;
    }
    return true;
}

int efs_chunk_span(const struct efs_chunk *chunk, uint32_t s, struct efs_span *span)
{
    const uint8_t *header = chunk->bytes + EFS_CHUNK_HEADER + (size_t)s * EFS_SPAN_HEADER;
    const uint32_t left = chunk->symbols - s * EFS_SPAN, begin = read_u32(header);
    const uint32_t end = s + 1 < chunk->spans ? read_u32(header + EFS_SPAN_HEADER) : chunk->code_end;

    if (!parse_levels(header, left < EFS_SPAN ? left : EFS_SPAN, span) || !parse_entries(header, span))
        return -EUCLEAN;
    if (begin < chunk->code_begin || begin > end || end > chunk->code_end ||
        end - begin != efs_lower_bytes(span) + efs_first_bytes(span))
        return -EUCLEAN;

    const uint8_t *at = chunk->bytes + begin;
    span->rest = at;
    at += span->size[span->levels];
    for (unsigned level = span->levels; level-- > 0;) {
        span->planes[level] = at;
        at += efs_plane_bytes(span->size[level], 2);
    }
    return 0;
}

void efs_span_block(const struct efs_span *span, const uint8_t *below, unsigned b, struct efs_cascade_block *block)
{
    const uint32_t begin = b * EFS_BLOCK;

    block->size = efs_block_size(span->size[0], b);
    if (span->levels == 0) {
        block->planes = NULL;
        block->below = span->rest + begin;
        block->escaped = block->size;
        return;
    }
    block->planes = span->planes[0] + begin / 4;
    block->below = below + span->entry[b];
    block->escaped = span->entry[b + 1] - span->entry[b];
    memcpy(block->table, span->table[0], sizeof(block->table));
    /* Of the next span, which is about as long as this one, each block asks for its share. */
    block->ahead_bytes = (efs_lower_bytes(span) + efs_first_bytes(span)) / EFS_SPAN_BLOCKS;
    block->ahead = span->planes[0] + efs_first_bytes(span) + b * block->ahead_bytes;
}

/* Decode and merge the elements [skip, skip + take) of a block that is not wanted whole. */
static bool merge_part(const struct efs_kernel_ops *ops, enum efs_format format, const struct efs_cascade_block *block,
                       const uint8_t *sm, size_t skip, size_t take, uint8_t *dst)
{
    uint8_t whole[4 * EFS_BLOCK]; /* F32 has the largest elements */
    size_t element_bytes = efs_format_bytes(format);

    if (!ops->decode_merge(format, block, sm, whole, false))
        return false;
    memcpy(dst, whole + skip * element_bytes, take * element_bytes);
    return true;
}

/* What of a chunk is wanted, and where it goes. */
struct wanted {
    enum efs_format format;
    const uint8_t *sm; /* the chunk's */
    size_t first, count;
    uint8_t *to;
    bool stream;
};

/* The blocks of span s that are wanted; moves on in *wanted. */
static int merge_span(const struct efs_kernel_ops *ops, const struct efs_chunk *chunk, uint32_t s,
                      struct wanted *wanted)
{
    const size_t element_bytes = efs_format_bytes(wanted->format), sm_step = efs_sm_bytes(wanted->format, EFS_BLOCK);
    uint8_t room[2 * EFS_LOWER_ROOM] __attribute__((aligned(64)));
    const uint8_t *below = NULL;
    struct efs_span span;
    int r = efs_chunk_span(chunk, s, &span);

    if (r != 0)
        return r;
    if (span.levels > 0) {
        below = ops->lower(&span, room);
        if (below == NULL)
            return -EUCLEAN;
    }
    for (size_t at = wanted->first % EFS_SPAN; wanted->count > 0 && at < span.size[0];) {
        struct efs_cascade_block block;
        unsigned b = (unsigned)(at / EFS_BLOCK);
        const uint8_t *sm = sm_step != 0 ? wanted->sm + ((size_t)s * EFS_SPAN_BLOCKS + b) * sm_step : NULL;

        efs_span_block(&span, below, b, &block);
        size_t skip = at % EFS_BLOCK, left = block.size - skip, take = wanted->count < left ? wanted->count : left;
        if (take == block.size ? !ops->decode_merge(wanted->format, &block, sm, wanted->to, wanted->stream)
                               : !merge_part(ops, wanted->format, &block, sm, skip, take, wanted->to))
            return -EUCLEAN;
        wanted->to += take * element_bytes;
        wanted->first += take;
        wanted->count -= take;
        at += take;
    }
    return 0;
}

int efs_cascade_merge(enum efs_format format, const uint8_t *chunk_bytes, size_t chunk_size, const uint8_t *sm,
                      size_t sm_bytes, size_t first, size_t count, void *dst, bool stream)
{
    const struct efs_kernel_ops *ops = efs_ops();
    struct wanted wanted = {format, sm, first, count, dst, stream};
    struct efs_chunk chunk;

    if (efs_format_bytes(format) == 0)
        return -EINVAL;
    int r = efs_chunk_open(chunk_bytes, chunk_size, &chunk);
    if (r != 0)
        return r;
    if (sm_bytes != efs_sm_bytes(format, chunk.symbols))
        return -EUCLEAN;
    if (first > chunk.symbols || count > chunk.symbols - first)
        return -EINVAL;
    while (wanted.count > 0 && r == 0)
        r = merge_span(ops, &chunk, (uint32_t)(wanted.first / EFS_SPAN), &wanted);
    if (stream && ops->stream_end)
        ops->stream_end();
    return r;
}

int efs_cascade_decode(const uint8_t *chunk, size_t chunk_bytes, size_t first, size_t count, uint8_t *out)
{
    return efs_cascade_merge(EFS_FORMAT_BYTES, chunk, chunk_bytes, NULL, 0, first, count, out, false);
}
