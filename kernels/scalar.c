/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scalar.c - the reference path: every block operation in plain C.
 */
#include "cascade_chunk.h"
#include "format_block.h"
#include "matvec_ops.h"

static bool scalar_supported(void)
{
    return true;
}

static void scalar_histogram(const uint8_t *data, size_t n, uint64_t counts[256])
{
    for (size_t i = 0; i < n; i++)
        counts[data[i]]++;
}

/* Codes of size symbols; those that escape move to the front of symbols. Returns how many. */
static size_t encode_codes(const struct efs_span *restrict plan, unsigned level, uint8_t *restrict symbols, size_t size,
                           uint8_t *restrict codes)
{
    size_t escaped = 0;

    for (size_t i = 0; i < size; i++) {
        uint8_t symbol = symbols[i], code = 0;
        while (code < plan->ranked[level] && plan->table[level][code] != symbol)
            code++;
        if (code == plan->ranked[level]) {
            code = 3;
            symbols[escaped++] = symbol; /* never ahead of i */
        }
        codes[i] = code;
    }
    return escaped;
}

_Static_assert(2 * EFS_SPAN <= EFS_CASCADE_SCRATCH_BYTES, "room for the buffers");

static void scalar_encode(struct efs_span *plan, const uint8_t *symbols, uint8_t *code, uint8_t *scratch)
{
    uint8_t *first = code + efs_lower_bytes(plan), *planes = first;
    uint8_t *entering = scratch, *codes = scratch + EFS_SPAN;
    size_t escaped = 0, size = plan->size[0];

    if (plan->levels == 0) {
        memcpy(code, symbols, size);
        return;
    }
    for (unsigned b = 0; b < EFS_SPAN_BLOCKS; b++) {
        const size_t begin = b * EFS_BLOCK, m = efs_block_size(plan->size[0], b);
        plan->entry[b] = (uint32_t)escaped;
        memcpy(entering + escaped, symbols + (m > 0 ? begin : 0), m);
        escaped += encode_codes(plan, 0, entering + escaped, m, codes);
        efs_planes_pack(codes, m, 2, first + begin / 4);
    }
    plan->entry[EFS_SPAN_BLOCKS] = (uint32_t)escaped;
    for (unsigned level = 1; level < plan->levels; level++) { /* the last level is stored first */
        size = plan->size[level];
        encode_codes(plan, level, entering, size, codes);
        planes -= efs_plane_bytes(size, 2);
        efs_planes_pack(codes, size, 2, planes);
    }
    memcpy(code, entering, plan->size[plan->levels]);
}

/*
 * The symbols that enter a level of size codes, where those that escape it lie at the front of symbols already. False
 * when they are not `escaped`.
 */
static bool decode_codes(const uint8_t *codes, size_t size, const uint8_t table[4], size_t escaped, uint8_t *symbols)
{
    size_t left = 0;

    for (size_t i = 0; i < size; i++)
        left += codes[i] == 3;
    if (left != escaped)
        return false;
    for (size_t i = size; i-- > 0;) /* downwards, so that it can be done in place */
        symbols[i] = codes[i] == 3 ? symbols[--left] : table[codes[i]];
    return true;
}

/* From the rest up: the symbols of level l + 1 fill the escapes of level l. */
static const uint8_t *scalar_lower(const struct efs_span *span, uint8_t *room)
{
    uint8_t *codes = room + EFS_LOWER_ROOM;

    memcpy(room, span->rest, span->size[span->levels]);
    for (unsigned level = span->levels; level-- > 1;) {
        efs_planes_unpack(span->planes[level], span->size[level], 2, codes);
        if (!decode_codes(codes, span->size[level], span->table[level], span->size[level + 1], room))
            return NULL;
    }
    return room;
}

/* Not inlined, because it has a buffer on the stack, as its caller does. */
static __attribute__((noinline)) void scalar_merge(enum efs_format format, const uint8_t *e, const uint8_t *sm,
                                                   size_t m, uint8_t *dst)
{
    efs_merge_block(format, e, sm, m, dst);
}

static bool scalar_decode_merge(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                                uint8_t *dst, bool stream)
{
    uint8_t e[EFS_BLOCK], *codes = dst; /* replaced by the elements, which are no smaller */

    (void)stream;
    memcpy(e, block->below, block->escaped);
    if (block->planes != NULL) {
        efs_planes_unpack(block->planes, block->size, 2, codes);
        if (!decode_codes(codes, block->size, block->table, block->escaped, e))
            return false;
    }
    if (format == EFS_FORMAT_BYTES)
        memcpy(dst, e, block->size);
    else
        scalar_merge(format, e, sm, block->size, dst);
    return true;
}

const struct efs_kernel_ops efs_ops_scalar = {
    .name = "scalar",
    .supported = scalar_supported,
    .histogram = scalar_histogram,
    .split = efs_split_block,
    .merge = scalar_merge,
    .encode = scalar_encode,
    .lower = scalar_lower,
    .decode_merge = scalar_decode_merge,
    .matvec = &efs_matvec_scalar,
};
