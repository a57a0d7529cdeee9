/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cascade_short.c - decodes cascade chunks with short spans, whole or from the pieces that a small read needs.
 */
#include "cascade_short.h"

#include <errno.h>
#include <string.h>

int efs_short_open(const uint8_t *head, size_t head_bytes, size_t chunk_bytes, struct efs_short_chunk *chunk)
{
    uint64_t code = 0;

    if (head_bytes < EFS_SHORT_HEADER || chunk_bytes < EFS_SHORT_HEADER + EFS_CASCADE_SLACK || chunk_bytes > UINT32_MAX)
        return -EUCLEAN;
    chunk->head = head;
    chunk->symbols = efs_chunk_read_u32(head);
    chunk->spans = efs_chunk_read_u32(head + 4);
    chunk->code_end = efs_chunk_read_u32(head + 8);
    chunk->span_log2 = efs_chunk_read_u32(head + 12);
    if (chunk->symbols > EFS_SYMBOLS_MAX || chunk->span_log2 < EFS_SHORT_SPAN_MIN ||
        chunk->span_log2 > EFS_SHORT_SPAN_MAX ||
        chunk->spans != (chunk->symbols + (1u << chunk->span_log2) - 1) >> chunk->span_log2 ||
        (head_bytes - EFS_SHORT_HEADER) / 2 < chunk->spans || head[EFS_SHORT_HEADER - 1] != 0)
        return -EUCLEAN;
    chunk->code_begin = EFS_SHORT_HEADER + 2 * chunk->spans;
    for (uint32_t s = 0; s < chunk->spans; s++)
        code += efs_short_length(chunk, s);
    if (chunk->code_begin + code != chunk->code_end || chunk->code_end > chunk_bytes - EFS_CASCADE_SLACK)
        return -EUCLEAN;
    return 0;
}

int efs_short_span(const struct efs_short_chunk *chunk, uint32_t s, const uint8_t *p, uint32_t bytes,
                   struct efs_span *span)
{
    const bool own = bytes > 0 && (p[0] & EFS_SHORT_OWN);

    span->levels = bytes > 0 ? p[0] & ~EFS_SHORT_OWN : EFS_LEVELS + 1;
    if (span->levels > EFS_LEVELS || (own && span->levels == 0))
        return -EUCLEAN;
    const uint32_t header = efs_short_span_header(span->levels, own);
    if (bytes < header)
        return -EUCLEAN;
    const uint8_t *table = own ? p + 1 + 2 * span->levels : chunk->head + EFS_SHORT_TABLE;
    span->size[0] = efs_short_symbols(chunk, s);
    for (unsigned level = 0; level < span->levels; level++) {
        span->size[level + 1] = efs_chunk_read_u16(p + 1 + 2 * level);
        if (span->size[level + 1] > span->size[level])
            return -EUCLEAN;
        memcpy(span->table[level], table + 3 * level, 3);
        span->table[level][3] = 0;
    }
    if (bytes - header != efs_lower_bytes(span) + efs_first_bytes(span))
        return -EUCLEAN;
    efs_span_places(span, p + header);
    return 0;
}

/* ---- ranges of elements ---- */

struct wanted {
    const struct efs_kernel_ops *ops;
    enum efs_format format;
    const uint8_t *sm; /* SM from byte sm_begin on */
    size_t sm_begin;
    size_t first, end; /* elements that are still to be merged */
    uint8_t *to;
    bool stream;
    uint8_t *scratch;
};

/* Offset in the SM-chunk of the first byte that element i needs. BF16 has no planes, so its elements are separate. */
static size_t sm_offset(enum efs_format format, size_t i)
{
    return format == EFS_FORMAT_BF16 ? i : i / EFS_SHORT_BLOCK * efs_sm_bytes(format, EFS_SHORT_BLOCK);
}

/* Offset after the last byte of SM that elements up to `end` of a shard of n need. */
static size_t sm_end_offset(enum efs_format format, size_t end, size_t n)
{
    size_t up = (end + EFS_SHORT_BLOCK - 1) / EFS_SHORT_BLOCK * EFS_SHORT_BLOCK;
    return format == EFS_FORMAT_BF16 ? end : efs_sm_bytes(format, up < n ? up : n);
}

/* Merges the exponents e of a span of n elements that begins at element `begin`; advances *w. */
static void merge_exponents(struct wanted *w, const uint8_t *e, size_t begin, size_t n)
{
    const size_t element_bytes = efs_format_bytes(w->format), end = w->end < begin + n ? w->end : begin + n;
    const size_t block = w->format == EFS_FORMAT_BF16 ? EFS_BLOCK : EFS_SHORT_BLOCK;
    uint8_t whole[4 * EFS_SHORT_BLOCK];

    while (w->first < end) {
        const size_t base = w->format == EFS_FORMAT_BF16 ? w->first : w->first / EFS_SHORT_BLOCK * EFS_SHORT_BLOCK;
        const size_t left = begin + n - base, m = left < block ? left : block;
        const size_t skip = w->first - base, most = end - w->first, take = m - skip < most ? m - skip : most;
        if (w->format == EFS_FORMAT_BYTES) {
            memcpy(w->to, e + (w->first - begin), take);
        } else {
            const uint8_t *sm = w->sm + (sm_offset(w->format, base) - w->sm_begin);
            const bool direct = w->format == EFS_FORMAT_BF16 || take == m;
            w->ops->merge(w->format, e + (base - begin), sm, direct ? take : m, direct ? w->to : whole);
            if (!direct)
                memcpy(w->to, whole + skip * element_bytes, take * element_bytes);
        }
        w->first += take;
        w->to += take * element_bytes;
    }
}

/* Decodes span s, whose bytes are at p, and merges what is wanted of it. next: bytes of the span after it. */
static int merge_span(struct wanted *w, const struct efs_short_chunk *chunk, uint32_t s, const uint8_t *p,
                      uint32_t bytes)
{
    const size_t begin = (size_t)s << chunk->span_log2;
    struct efs_span span;
    int r = efs_short_span(chunk, s, p, bytes, &span);

    if (r != 0)
        return r;
    const uint32_t n = span.size[0];
    struct efs_cascade_block block = {.below = span.rest, .size = n, .escaped = n};
    if (span.levels > 0) {
        block.planes = span.planes[0];
        block.below = w->ops->lower(&span, w->scratch);
        block.escaped = span.size[1];
        block.prefetch = p + bytes;
        block.prefetch_bytes = bytes;
        memcpy(block.table, span.table[0], sizeof(block.table));
        if (block.below == NULL)
            return -EUCLEAN;
    }
    if (w->ops->merge_short && block.planes && n == 1u << chunk->span_log2 && w->first == begin &&
        w->end - begin >= n) {
        const uint8_t *sm = w->sm ? w->sm + (sm_offset(w->format, begin) - w->sm_begin) : NULL;
        if (!w->ops->merge_short(w->format, &block, sm, w->to, w->stream))
            return -EUCLEAN;
        w->first += n;
        w->to += n * efs_format_bytes(w->format);
        return 0;
    }
    uint8_t *e = w->scratch + 2 * EFS_LOWER_ROOM;
    if (!w->ops->decode_merge(EFS_FORMAT_BYTES, &block, NULL, e, false))
        return -EUCLEAN;
    merge_exponents(w, e, begin, n);
    return 0;
}

/* Merges what is wanted; p: the bytes of the span with the first element, followed by those of the next ones. */
static int merge_spans(struct wanted *w, const struct efs_short_chunk *chunk, const uint8_t *p)
{
    int r = 0;

    for (uint32_t s = (uint32_t)(w->first >> chunk->span_log2); w->first < w->end && r == 0; s++) {
        uint32_t bytes = efs_short_length(chunk, s);
        r = merge_span(w, chunk, s, p, bytes);
        p += bytes;
    }
    if (w->stream && w->ops->stream_end)
        w->ops->stream_end();
    return r;
}

/* Offset in the chunk of span s, s <= chunk->spans. */
static uint32_t span_offset(const struct efs_short_chunk *chunk, uint32_t s)
{
    uint32_t at = chunk->code_begin;

    for (uint32_t i = 0; i < s; i++)
        at += efs_short_length(chunk, i);
    return at;
}

int efs_short_merge(enum efs_format format, const uint8_t *bytes, size_t chunk_bytes, const uint8_t *sm,
                    size_t sm_bytes, size_t first, size_t count, void *dst, bool stream, void *scratch)
{
    struct efs_short_chunk chunk;
    int r = efs_short_open(bytes, chunk_bytes, chunk_bytes, &chunk);

    if (r != 0)
        return r;
    if (sm_bytes != efs_sm_bytes(format, chunk.symbols))
        return -EUCLEAN;
    if (first > chunk.symbols || count > chunk.symbols - first)
        return -EINVAL;
    struct wanted w = {efs_ops(), format, sm, 0, first, first + count, dst, stream, scratch};
    return merge_spans(&w, &chunk, bytes + span_offset(&chunk, (uint32_t)(first >> chunk.span_log2)));
}

/* ---- pieces ---- */

size_t efs_cascade_head_bytes(size_t n)
{
    return EFS_SHORT_HEADER + 2 * ((n + (1u << EFS_SHORT_SPAN_MIN) - 1) >> EFS_SHORT_SPAN_MIN);
}

void efs_cascade_locate_sm(enum efs_format format, size_t n, size_t first, size_t count,
                           struct efs_cascade_range *range)
{
    range->sm_begin = format == EFS_FORMAT_BYTES ? 0 : sm_offset(format, first);
    range->sm_end = format == EFS_FORMAT_BYTES ? 0 : sm_end_offset(format, first + count, n);
}

int efs_cascade_locate(enum efs_format format, const uint8_t *head, size_t head_bytes, size_t chunk_bytes, size_t n,
                       size_t first, size_t count, struct efs_cascade_range *range)
{
    struct efs_short_chunk chunk;
    int r = efs_short_open(head, head_bytes, chunk_bytes, &chunk);

    if (r != 0 || chunk.symbols != n)
        return -EUCLEAN;
    if (first > n || count > n - first || count == 0)
        return -EINVAL;
    range->code_begin = span_offset(&chunk, (uint32_t)(first >> chunk.span_log2));
    range->code_end = range->code_begin;
    for (uint32_t s = (uint32_t)(first >> chunk.span_log2); s <= (first + count - 1) >> chunk.span_log2; s++)
        range->code_end += efs_short_length(&chunk, s);
    efs_cascade_locate_sm(format, n, first, count, range);
    return 0;
}

int efs_cascade_merge_range(enum efs_format format, const uint8_t *head, size_t head_bytes, size_t chunk_bytes,
                            const uint8_t *code, const uint8_t *sm, size_t first, size_t count, void *dst,
                            void *scratch)
{
    struct efs_short_chunk chunk;
    int r = efs_short_open(head, head_bytes, chunk_bytes, &chunk);

    if (r != 0)
        return r;
    if (first > chunk.symbols || count > chunk.symbols - first)
        return -EINVAL;
    struct wanted w = {efs_ops(), format,        sm,  format == EFS_FORMAT_BYTES ? 0 : sm_offset(format, first),
                       first,     first + count, dst, false,
                       scratch};
    return merge_spans(&w, &chunk, code);
}
