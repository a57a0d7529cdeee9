/* SPDX-License-Identifier: Apache-2.0 */
/* codec.c - working memory, and a shard's two chunks back to its raw bytes. */
#include "codec.h"

#include "codec_scratch.h"
#include "sys.h"

#include <errno.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#define BLOCK_BYTES_MAX (EFS_BLOCK * 4u) /* the widest format has 4 bytes an element */

size_t efs_codec_scratch_bytes(uint32_t shard_elements)
{
    return sizeof(struct efs_codec_scratch) + shard_elements + BLOCK_BYTES_MAX + ZSTD_estimateDCtxSize();
}

errint_t efs_codec_scratch_new(uint32_t shard_elements, struct efs_codec_scratch **out)
{
    *out = NULL;
    if (shard_elements == 0 || shard_elements > EFS_SHARD_ELEMENTS_MAX)
        return -EINVAL;
    struct efs_codec_scratch *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->shard_elements = shard_elements;
    s->e = efs_sys_aligned_alloc(64, shard_elements);
    s->block = efs_sys_aligned_alloc(64, BLOCK_BYTES_MAX);
    s->dctx = ZSTD_createDCtx();
    if (!s->e || !s->block || !s->dctx) {
        efs_codec_scratch_free(s);
        return -ENOMEM;
    }
    *out = s;
    return 0;
}

errint_t efs_codec_scratch_for_encoding(struct efs_codec_scratch *s)
{
    if (!s->other)
        s->other = efs_sys_aligned_alloc(64, efs_shard_e_bound(s->shard_elements));
    if (!s->cctx)
        s->cctx = ZSTD_createCCtx();
    if (!s->lz4)
        s->lz4 = efs_sys_malloc((size_t)LZ4_sizeofState());
    return s->other && s->cctx && s->lz4 ? 0 : -ENOMEM;
}

void efs_codec_scratch_free(struct efs_codec_scratch *s)
{
    if (!s)
        return;
    free(s->e);
    free(s->block);
    free(s->other);
    free(s->lz4);
    ZSTD_freeDCtx(s->dctx);
    ZSTD_freeCCtx(s->cctx);
    free(s);
}

/* The whole E of a zstd or lz4 chunk into e (elements bytes). */
static errint_t decode_whole_e(const struct efs_shard_view *shard, uint8_t *e, struct efs_codec_scratch *scratch)
{
    if (shard->codec == EFS_CODEC_ZSTD) {
        size_t n = ZSTD_decompressDCtx(scratch->dctx, e, shard->elements, shard->e, shard->e_bytes);
        return !ZSTD_isError(n) && n == shard->elements ? 0 : -EUCLEAN;
    }
    if (shard->e_bytes > INT32_MAX)
        return -EUCLEAN;
    int n = LZ4_decompress_safe((const char *)shard->e, (char *)e, (int)shard->e_bytes, (int)shard->elements);
    return n >= 0 && (size_t)n == shard->elements ? 0 : -EUCLEAN;
}

/* Elements [first, first + count) of block-aligned E and SM into dst; blocks that are cut go through scratch. */
static void merge_range(const struct efs_shard_view *shard, const uint8_t *e, size_t first, size_t count, uint8_t *dst,
                        struct efs_codec_scratch *scratch)
{
    const size_t width = efs_format_bytes(shard->format), block_sm = efs_sm_bytes(shard->format, EFS_BLOCK);
    while (count > 0) {
        size_t block = first >> EFS_BLOCK_LOG2, begin = block << EFS_BLOCK_LOG2, skip = first - begin;
        size_t left = shard->elements - begin, whole = left < EFS_BLOCK ? left : EFS_BLOCK;
        const uint8_t *sm = shard->sm + block * block_sm;
        size_t n;
        if (skip == 0 && count >= whole) { /* as many whole blocks as there are; the shard's end is one, too */
            n = begin + count == shard->elements ? count : count & ~(size_t)(EFS_BLOCK - 1);
            efs_merge(shard->format, e + begin, sm, n, dst);
        } else {
            n = whole - skip < count ? whole - skip : count;
            efs_merge(shard->format, e + begin, sm, whole, scratch->block);
            memcpy(dst, scratch->block + skip * width, n * width);
        }
        first += n;
        count -= n;
        dst += n * width;
    }
}

/* Sizes that do not depend on what the chunks hold. */
static bool sizes_fit(const struct efs_shard_view *shard)
{
    switch (shard->codec) {
    case EFS_CODEC_NONE:
        return shard->format == EFS_FORMAT_BYTES && shard->e_bytes == 0 && shard->sm_bytes == shard->elements;
    case EFS_CODEC_CASCADE:
    case EFS_CODEC_ZSTD:
    case EFS_CODEC_LZ4:
        return efs_format_bytes(shard->format) > 0 && shard->e_bytes > 0 &&
               shard->sm_bytes == efs_sm_bytes(shard->format, shard->elements);
    default:
        return false;
    }
}

errint_t efs_shard_exponents(const struct efs_shard_view *shard, uint8_t *e, struct efs_codec_scratch *scratch)
{
    if (!sizes_fit(shard) || shard->format == EFS_FORMAT_BYTES)
        return -EUCLEAN;
    if (shard->codec != EFS_CODEC_CASCADE)
        return decode_whole_e(shard, e, scratch);
    return efs_cascade_decode(shard->e, shard->e_bytes, 0, shard->elements, e) < 0 ? -EUCLEAN : 0;
}

static errint_t decode_cascade(const struct efs_shard_view *shard, size_t first, size_t count, void *dst, bool stream)
{
    uint32_t symbols;
    if (shard->e_bytes < sizeof(symbols))
        return -EUCLEAN;
    memcpy(&symbols, shard->e, sizeof(symbols));
    if (symbols != shard->elements)
        return -EUCLEAN;
    if (shard->format == EFS_FORMAT_BYTES)
        return efs_cascade_decode(shard->e, shard->e_bytes, first, count, dst);
    return efs_cascade_merge(shard->format, shard->e, shard->e_bytes, shard->sm, shard->sm_bytes, first, count, dst,
                             stream);
}

errint_t efs_shard_decode(const struct efs_shard_view *shard, size_t first, size_t count, void *dst, bool stream,
                          struct efs_codec_scratch *scratch)
{
    if (first > shard->elements || count > shard->elements - first)
        return -EINVAL;
    if (!sizes_fit(shard))
        return -EUCLEAN;
    if (count == 0)
        return 0;
    if (shard->codec == EFS_CODEC_NONE) {
        memcpy(dst, shard->sm + first, count);
        return 0;
    }
    if (shard->codec == EFS_CODEC_CASCADE)
        return decode_cascade(shard, first, count, dst, stream);
    if (shard->elements > scratch->shard_elements)
        return -EINVAL;
    bool bytes = shard->format == EFS_FORMAT_BYTES;
    if (bytes && count == shard->elements)
        return decode_whole_e(shard, dst, scratch);
    errint_t rc = decode_whole_e(shard, scratch->e, scratch);
    if (rc < 0)
        return rc;
    if (bytes)
        memcpy(dst, scratch->e + first, count);
    else
        merge_range(shard, scratch->e, first, count, dst, scratch);
    return 0;
}
