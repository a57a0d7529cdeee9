/* SPDX-License-Identifier: Apache-2.0 */
/* codec_table.c - the codecs of E-chunks by their numbers on disk. */
#include "codec_table.h"

#include "sys.h"

#define ZSTD_STATIC_LINKING_ONLY /* for ZSTD_c_literalCompressionMode; a library may lack it */
#include <errno.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

/* ---- none: stores the bytes unchanged ---- */

static errint_t none_decode_range(void *decoder, const struct efs_shard_view *shard, size_t first, size_t count,
                                  void *dst, bool stream)
{
    (void)decoder;
    (void)stream;
    memcpy(dst, shard->sm + first, count);
    return 0;
}

static const struct efs_codec efs_codec_none = {
    .name = "none",
    .choice = EFS_CHOOSE_RAW,
    .decode_range = none_decode_range,
};

/* ---- cascade (kernels/): vectorized, random access within a shard ---- */

static size_t cascade_memory_bytes(void)
{
    return EFS_CASCADE_SCRATCH_BYTES;
}

static void *cascade_memory_new(void)
{
    return efs_sys_aligned_alloc(64, EFS_CASCADE_SCRATCH_BYTES);
}

static errint_t cascade_decode(void *decoder, const uint8_t *coded, size_t bytes, uint8_t *symbols, size_t n)
{
    return efs_cascade_decode(coded, bytes, 0, n, symbols, decoder) < 0 ? -EUCLEAN : 0;
}

static errint_t cascade_decode_range(void *decoder, const struct efs_shard_view *shard, size_t first, size_t count,
                                     void *dst, bool stream)
{
    uint32_t symbols;
    if (shard->e_bytes < sizeof(symbols))
        return -EUCLEAN;
    memcpy(&symbols, shard->e, sizeof(symbols));
    if (symbols != shard->elements)
        return -EUCLEAN;
    if (shard->format == EFS_FORMAT_BYTES)
        return efs_cascade_decode(shard->e, shard->e_bytes, first, count, dst, decoder);
    return efs_cascade_merge(shard->format, shard->e, shard->e_bytes, shard->sm, shard->sm_bytes, first, count, dst,
                             stream, decoder);
}

static size_t cascade_encode(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room)
{
    (void)room;
    return efs_cascade_encode(symbols, n, chunk, encoder);
}

static const struct efs_codec efs_codec_cascade = {
    .name = "cascade",
    .choice = EFS_CHOOSE_CASCADE,
    .decode_cost = EFS_CODEC_COST(7.0),
    .decoder_bytes = cascade_memory_bytes,
    .decoder_new = cascade_memory_new,
    .decoder_free = free,
    .decode = cascade_decode,
    .decode_range = cascade_decode_range,
    .encoder_new = cascade_memory_new,
    .encoder_free = free,
    .bound = efs_cascade_bound,
    .encode = cascade_encode,
};

/* ---- zstd: one frame; Huffman-only for exponents, an ordinary level for other bytes ---- */

#define REPEATS_LEVEL 3 /* zstd level for text and other bytes */

static void *zstd_decoder_new(void)
{
    return ZSTD_createDCtx();
}

static void zstd_decoder_free(void *decoder)
{
    ZSTD_freeDCtx(decoder);
}

static errint_t zstd_decode(void *decoder, const uint8_t *coded, size_t bytes, uint8_t *symbols, size_t n)
{
    size_t got = ZSTD_decompressDCtx(decoder, symbols, n, coded, bytes);
    return !ZSTD_isError(got) && got == n ? 0 : -EUCLEAN;
}

static void *zstd_encoder_new(void)
{
    return ZSTD_createCCtx();
}

static void zstd_encoder_free(void *encoder)
{
    ZSTD_freeCCtx(encoder);
}

/*
 * Huffman-only: a match finder that is almost disabled (7-byte matches, a table of 64 entries, steps of 128 KiB) leaves
 * the Huffman coder of literals, which is all that exponents need. literalCompressionMode is experimental; without it
 * the result is slightly slower and larger.
 */
static size_t zstd_encode(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room)
{
    ZSTD_CCtx_reset(encoder, ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_strategy, ZSTD_fast);
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_minMatch, 7);
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_targetLength, ZSTD_BLOCKSIZE_MAX);
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_hashLog, 6);
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman);
    size_t bytes = ZSTD_compress2(encoder, chunk, room, symbols, n);
    return ZSTD_isError(bytes) ? 0 : bytes;
}

static size_t zstd_encode_repeats(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room)
{
    ZSTD_CCtx_reset(encoder, ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_compressionLevel, REPEATS_LEVEL);
    size_t bytes = ZSTD_compress2(encoder, chunk, room, symbols, n);
    return ZSTD_isError(bytes) ? 0 : bytes;
}

static const struct efs_codec efs_codec_zstd = {
    .name = "zstd",
    .choice = EFS_CHOOSE_ZSTD,
    .decode_cost = EFS_CODEC_COST(1.0),
    .decoder_bytes = ZSTD_estimateDCtxSize,
    .decoder_new = zstd_decoder_new,
    .decoder_free = zstd_decoder_free,
    .decode = zstd_decode,
    .encoder_new = zstd_encoder_new,
    .encoder_free = zstd_encoder_free,
    .bound = ZSTD_compressBound,
    .encode = zstd_encode,
    .encode_repeats = zstd_encode_repeats,
};

/* ---- LZ4: one block ---- */

static errint_t lz4_decode(void *decoder, const uint8_t *coded, size_t bytes, uint8_t *symbols, size_t n)
{
    (void)decoder;
    if (bytes > INT32_MAX)
        return -EUCLEAN;
    int got = LZ4_decompress_safe((const char *)coded, (char *)symbols, (int)bytes, (int)n);
    return got >= 0 && (size_t)got == n ? 0 : -EUCLEAN;
}

static void *lz4_encoder_new(void)
{
    return efs_sys_malloc((size_t)LZ4_sizeofState());
}

static size_t lz4_bound(size_t n)
{
    return n <= LZ4_MAX_INPUT_SIZE ? (size_t)LZ4_compressBound((int)n) : 0;
}

static size_t lz4_encode(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room)
{
    int bytes = LZ4_compress_fast_extState(encoder, (const char *)symbols, (char *)chunk, (int)n, (int)room, 1);
    return bytes > 0 ? (size_t)bytes : 0;
}

static const struct efs_codec efs_codec_lz4 = {
    .name = "lz4",
    .choice = EFS_CHOOSE_LZ4,
    .decode_cost = EFS_CODEC_COST(2.4),
    .decode = lz4_decode,
    .encoder_new = lz4_encoder_new,
    .encoder_free = free,
    .bound = lz4_bound,
    .encode = lz4_encode,
};

/* ---- the table ---- */

static const struct efs_codec *const codecs[EFS_CODEC_COUNT] = {
    [EFS_CODEC_NONE] = &efs_codec_none,
    [EFS_CODEC_CASCADE] = &efs_codec_cascade,
    [EFS_CODEC_ZSTD] = &efs_codec_zstd,
    [EFS_CODEC_LZ4] = &efs_codec_lz4,
};

const struct efs_codec *efs_codec_of(uint32_t codec)
{
    return codec < EFS_CODEC_COUNT ? codecs[codec] : NULL;
}

const char *efs_codec_name(uint32_t codec)
{
    return codec < EFS_CODEC_COUNT ? codecs[codec]->name : NULL;
}

bool efs_codec_can_choose(uint64_t choice)
{
    bool can = choice == EFS_CHOOSE_AUTO;
    for (uint32_t c = 0; c < EFS_CODEC_COUNT; c++)
        can |= choice == (uint64_t)codecs[c]->choice;
    return can;
}

size_t efs_shard_e_bound(size_t elements)
{
    size_t bound = 0;
    for (uint32_t c = EFS_CODEC_NONE + 1; c < EFS_CODEC_COUNT; c++) {
        size_t bytes = efs_codec_of(c)->bound(elements);
        bound = bytes > bound ? bytes : bound;
    }
    return bound;
}
