/* SPDX-License-Identifier: Apache-2.0 */
/* codec_zstd.c - one zstd frame, by the library: Huffman-only for exponents, an ordinary level for other bytes. */
#include "codec_table.h"

#include <errno.h>
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode; a library without it says so at run time */
#include <zstd.h>

#define REPEATS_LEVEL 3 /* zstd's level for text and other bytes */

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
 * Huffman-only: a match finder that all but never looks (7-byte matches, a table of 64 entries, steps of 128 KiB)
 * leaves the literals' Huffman coder, which is all that exponents need. literalCompressionMode is experimental and may
 * be missing: then a little slower and larger.
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

const struct efs_codec efs_codec_zstd = {
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
