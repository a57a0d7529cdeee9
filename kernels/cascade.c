/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cascade.c - reads a cascade chunk: iterates over spans and blocks, and copies out parts of blocks.
 *
 * The code paths (ops.h) decode the symbols. Everything read from a chunk is checked before use: headers by
 * cascade_chunk.h, the number of escapes in the planes by the code paths.
 */
#include "cascade_short.h"

#include <errno.h>
#include <string.h>

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
    /* Each block prefetches a quarter of the next span, which is assumed to be as long as this one. */
    block->prefetch_bytes = (efs_lower_bytes(span) + efs_first_bytes(span)) / EFS_SPAN_BLOCKS;
    block->prefetch = span->planes[0] + efs_first_bytes(span) + b * block->prefetch_bytes;
}

/* Decode and merge the elements [skip, skip + take) of a block, by way of `whole`, a buffer for the whole block. */
static bool merge_part(const struct efs_kernel_ops *ops, enum efs_format format, const struct efs_cascade_block *block,
                       const uint8_t *sm, size_t skip, size_t take, uint8_t *dst, uint8_t *whole)
{
    size_t element_bytes = efs_format_bytes(format);

    if (!ops->decode_merge(format, block, sm, whole, false))
        return false;
    memcpy(dst, whole + skip * element_bytes, take * element_bytes);
    return true;
}

/* The elements that the caller requested, and their destination. */
struct wanted {
    enum efs_format format;
    const uint8_t *sm; /* of the whole chunk */
    size_t first, count;
    uint8_t *to;
    bool stream;
    uint8_t *scratch;
};

/* Decodes the requested blocks of span s and advances *wanted past them. 0 or -EUCLEAN. */
static int merge_span(const struct efs_kernel_ops *ops, const struct efs_chunk *chunk, uint32_t s,
                      struct wanted *wanted)
{
    const size_t element_bytes = efs_format_bytes(wanted->format), sm_step = efs_sm_bytes(wanted->format, EFS_BLOCK);
    const uint8_t *below = NULL;
    struct efs_span span;
    int r = efs_chunk_span(chunk, s, &span);

    if (r != 0)
        return r;
    if (span.levels > 0) {
        below = ops->lower(&span, wanted->scratch);
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
                               : !merge_part(ops, wanted->format, &block, sm, skip, take, wanted->to,
                                             wanted->scratch + 2 * EFS_LOWER_ROOM))
            return -EUCLEAN;
        wanted->to += take * element_bytes;
        wanted->first += take;
        wanted->count -= take;
        at += take;
    }
    return 0;
}

int efs_cascade_merge(enum efs_format format, const uint8_t *chunk_bytes, size_t chunk_size, const uint8_t *sm,
                      size_t sm_bytes, size_t first, size_t count, void *dst, bool stream, void *scratch)
{
    const struct efs_kernel_ops *ops = efs_ops();
    struct wanted wanted = {format, sm, first, count, dst, stream, scratch};
    struct efs_chunk chunk;

    if (efs_format_bytes(format) == 0)
        return -EINVAL;
    if (efs_chunk_is_short(chunk_bytes, chunk_size))
        return efs_short_merge(format, chunk_bytes, chunk_size, sm, sm_bytes, first, count, dst, stream, scratch);
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

int efs_cascade_decode(const uint8_t *chunk, size_t chunk_bytes, size_t first, size_t count, uint8_t *out,
                       void *scratch)
{
    return efs_cascade_merge(EFS_FORMAT_BYTES, chunk, chunk_bytes, NULL, 0, first, count, out, false, scratch);
}

size_t efs_cascade_long_head_bytes(size_t n)
{
    return efs_code_begin(efs_span_count(n));
}

int efs_cascade_long_locate(enum efs_format format, const uint8_t *head, size_t chunk_bytes, size_t n, size_t first,
                            size_t count, struct efs_cascade_range *range)
{
    struct efs_chunk chunk;

    if (efs_chunk_parse(head, NULL, chunk_bytes, &chunk) != 0 || chunk.symbols != n)
        return -EUCLEAN;
    if (first > n || count > n - first || count == 0)
        return -EINVAL;
    const size_t from = first / EFS_SPAN, to = (first + count - 1) / EFS_SPAN + 1;
    const size_t block = first / EFS_BLOCK * EFS_BLOCK, end = (first + count + EFS_BLOCK - 1) / EFS_BLOCK * EFS_BLOCK;
    range->code_begin = efs_chunk_read_u32(head + efs_code_begin(from));
    range->code_end = to < chunk.spans ? efs_chunk_read_u32(head + efs_code_begin(to)) : chunk.code_end;
    range->sm_begin = format == EFS_FORMAT_BYTES ? 0 : efs_sm_bytes(format, block);
    range->sm_end = format == EFS_FORMAT_BYTES ? 0 : efs_sm_bytes(format, end < n ? end : n);
    return chunk.code_begin <= range->code_begin && range->code_begin <= range->code_end &&
                   range->code_end <= chunk.code_end
               ? 0
               : -EUCLEAN;
}
