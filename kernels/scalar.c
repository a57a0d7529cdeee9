/*
 * scalar.c - the reference path: every block operation in plain C.
 */
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

static void scalar_encode(const struct efs_cascade_block *plan, const uint8_t *symbols, uint8_t *dst)
{
    uint8_t entering[EFS_BLOCK], codes[EFS_BLOCK];

    memcpy(entering, symbols, plan->size[0]);
    for (unsigned level = 0; level < plan->levels; level++) {
        size_t escaped = 0;
        for (size_t i = 0; i < plan->size[level]; i++) {
            uint8_t symbol = entering[i], code = 0;
            while (code < plan->ranked[level] && plan->table[level][code] != symbol)
                code++;
            if (code == plan->ranked[level]) {
                code = 3;
                entering[escaped++] = symbol; /* never ahead of i */
            }
            codes[i] = code;
        }
        efs_planes_pack(codes, plan->size[level], 2, dst);
        dst += efs_plane_bytes(plan->size[level], 2);
    }
    memcpy(dst, entering, plan->size[plan->levels]);
}

/* From the rest up: the symbols of level l + 1 fill the escapes of level l. */
static bool scalar_decode(const struct efs_cascade_block *block, uint8_t *out)
{
    uint8_t codes[EFS_BLOCK], decoded[EFS_BLOCK];

    memcpy(decoded, block->rest, block->size[block->levels]);
    for (unsigned level = block->levels; level-- > 0;) {
        uint32_t entering = block->size[level], escaped = block->size[level + 1];
        uint32_t left = 0;

        efs_planes_unpack(block->planes[level], entering, 2, codes);
        for (uint32_t i = 0; i < entering; i++)
            left += codes[i] == 3;
        if (left != escaped)
            return false;
        for (uint32_t i = entering; i-- > 0;) { /* downwards, so that decoded[] can be filled in place */
            uint8_t symbol = codes[i] == 3 ? decoded[--left] : block->table[level][codes[i]];
            decoded[i] = symbol;
        }
    }
    memcpy(out, decoded, block->size[0]);
    return true;
}

static bool scalar_decode_merge(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                                uint8_t *dst, bool stream)
{
    uint8_t e[EFS_BLOCK];

    (void)stream;
    if (format == EFS_FORMAT_BYTES)
        return scalar_decode(block, dst);
    if (!scalar_decode(block, e))
        return false;
    efs_merge_block(format, e, sm, block->size[0], dst);
    return true;
}

const struct efs_kernel_ops efs_ops_scalar = {
    .name = "scalar",
    .supported = scalar_supported,
    .histogram = scalar_histogram,
    .split = efs_split_block,
    .merge = efs_merge_block,
    .encode = scalar_encode,
    .decode = scalar_decode,
    .decode_merge = scalar_decode_merge,
    .matvec = &efs_matvec_scalar,
};
