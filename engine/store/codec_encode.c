/* SPDX-License-Identifier: Apache-2.0 */
/* codec_encode.c - a shard's raw bytes to its two chunks, by the codec that serves best. */
#include "codec.h"

#include "codec_scratch.h"

#include <errno.h>
#include <lz4.h>
#include <math.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode; a library without it says so at run time */
#include <zstd.h>

/* Bytes that hold no float must shrink by this part at least to be coded: block-quantised weights (3.8 of 4 bits a
 * code, 7.7 of 8 a byte) are left as they are, their scales are coded. */
#define BYTES_GAIN_MIN (1.0 / 16)
/* Less than this is read in one page whatever it is coded by. */
#define BYTES_MIN 4096u
/* Of coded floats, E and SM together: another codec is taken instead of the cascade when it leaves less than this part.
 * The cascade decodes several times as fast, and in parts; experts are run as they are coded only by it. */
#define FLOATS_GAIN 0.96
#define BYTES_LEVEL 3 /* zstd's level for text and other bytes */
#define SAMPLE_BYTES 16384u

size_t efs_shard_e_bound(size_t elements)
{
    size_t cascade = efs_cascade_bound(elements), zstd = ZSTD_compressBound(elements);
    size_t lz4 = elements <= LZ4_MAX_INPUT_SIZE ? (size_t)LZ4_compressBound((int)elements) : 0;
    size_t bound = cascade > zstd ? cascade : zstd;
    return bound > lz4 ? bound : lz4;
}

size_t efs_shard_sm_bound(enum efs_format format, size_t elements)
{
    return format == EFS_FORMAT_BYTES ? elements : efs_sm_bytes(format, elements);
}

enum efs_format efs_object_format(enum efs_dtype dtype, enum efs_codec_choice choice)
{
    enum { GGML_F32 = EFS_DTYPE_GGML + 0, GGML_F16 = EFS_DTYPE_GGML + 1, GGML_BF16 = EFS_DTYPE_GGML + 30 };
    if (choice == EFS_CHOOSE_RAW)
        return EFS_FORMAT_BYTES;
    switch ((unsigned)dtype) {
    case EFS_DTYPE_BF16:
    case GGML_BF16:
        return EFS_FORMAT_BF16;
    case EFS_DTYPE_F16:
    case GGML_F16:
        return EFS_FORMAT_F16;
    case EFS_DTYPE_F32:
    case GGML_F32:
        return EFS_FORMAT_F32;
    case EFS_DTYPE_F8_E4M3:
        return EFS_FORMAT_E4M3;
    case EFS_DTYPE_F8_E5M2:
        return EFS_FORMAT_E5M2;
    default:
        return EFS_FORMAT_BYTES;
    }
}

double efs_entropy_bits(const uint64_t counts[256])
{
    uint64_t all = 0;
    double sum = 0;
    for (int i = 0; i < 256; i++) {
        all += counts[i];
        if (counts[i])
            sum += (double)counts[i] * log2((double)counts[i]);
    }
    return all ? (double)all * log2((double)all) - sum : 0;
}

/*
 * What decoding a byte costs, in bytes that could be read in that time: read at 0.5 GB/s (a slow disk, where a saved
 * byte is worth most), decoded by two workers on the slowest path that has vectors (AVX2), at 7, 1.0 and 2.4 GB/s each.
 * That cores without vectors decode the cascade at 0.6 GB/s does not count: they serve, but nobody would choose them.
 * The numbers are fixed, so that the same input gives the same store on any machine.
 */
static const double decode_cost[EFS_CODEC_COUNT] = {
    [EFS_CODEC_CASCADE] = 0.5 / (2 * 7.0), [EFS_CODEC_ZSTD] = 0.5 / (2 * 1.0), [EFS_CODEC_LZ4] = 0.5 / (2 * 2.4)};

/* What n bytes cost that are coded in so many, in bytes read; n itself as they are. */
static double bytes_cost(uint32_t codec, size_t coded, size_t n)
{
    return (double)coded + decode_cost[codec] * (double)n;
}

/*
 * Huffman-only: a match finder that all but never looks (7-byte matches, a table of 64 entries, steps of 128 KiB)
 * leaves the literals' Huffman coder, which is all that exponents need. literalCompressionMode is experimental and may
 * be missing: then a little slower and larger.
 */
static size_t zstd_huffman(struct efs_codec_scratch *s, const uint8_t *src, size_t n, uint8_t *dst)
{
    ZSTD_CCtx_reset(s->cctx, ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(s->cctx, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(s->cctx, ZSTD_c_strategy, ZSTD_fast);
    ZSTD_CCtx_setParameter(s->cctx, ZSTD_c_minMatch, 7);
    ZSTD_CCtx_setParameter(s->cctx, ZSTD_c_targetLength, ZSTD_BLOCKSIZE_MAX);
    ZSTD_CCtx_setParameter(s->cctx, ZSTD_c_hashLog, 6);
    ZSTD_CCtx_setParameter(s->cctx, ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman);
    size_t bytes = ZSTD_compress2(s->cctx, dst, efs_shard_e_bound(n), src, n);
    return ZSTD_isError(bytes) ? 0 : bytes;
}

static size_t zstd_level(struct efs_codec_scratch *s, const uint8_t *src, size_t n, uint8_t *dst)
{
    ZSTD_CCtx_reset(s->cctx, ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(s->cctx, ZSTD_c_compressionLevel, BYTES_LEVEL);
    size_t bytes = ZSTD_compress2(s->cctx, dst, efs_shard_e_bound(n), src, n);
    return ZSTD_isError(bytes) ? 0 : bytes;
}

static size_t lz4(struct efs_codec_scratch *s, const uint8_t *src, size_t n, uint8_t *dst)
{
    int bytes =
        LZ4_compress_fast_extState(s->lz4, (const char *)src, (char *)dst, (int)n, (int)efs_shard_e_bound(n), 1);
    return bytes > 0 ? (size_t)bytes : 0;
}

typedef size_t encode_fn(struct efs_codec_scratch *s, const uint8_t *src, size_t n, uint8_t *dst); /* 0: failed */

/* Keep what was coded into s->other. */
static void take_other(uint32_t codec, size_t bytes, uint8_t *e, struct efs_shard_coded *coded,
                       struct efs_codec_scratch *s)
{
    memcpy(e, s->other, bytes);
    coded->codec = codec;
    coded->e_bytes = bytes;
}

/* Code src again by another codec and keep the result if there is none yet or it is smaller; by_cost: or if reading and
 * decoding it takes less. */
static void try_other(encode_fn *encode, uint32_t codec, const uint8_t *src, size_t n, bool by_cost, uint8_t *e,
                      struct efs_shard_coded *coded, struct efs_codec_scratch *s)
{
    size_t bytes = encode(s, src, n, s->other);
    if (bytes == 0)
        return;
    bool better =
        by_cost ? bytes_cost(codec, bytes, n) < bytes_cost(coded->codec, coded->e_bytes, n) : bytes < coded->e_bytes;
    if (coded->e_bytes == 0 || better)
        take_other(codec, bytes, e, coded, s);
}

static void encode_cascade(const uint8_t *src, size_t n, uint8_t *e, struct efs_shard_coded *coded)
{
    coded->codec = EFS_CODEC_CASCADE;
    coded->e_bytes = efs_cascade_encode(src, n, e);
}

/* Whether a small part of bytes whose single values are spread evenly shows repeats. */
static bool repeats(const uint8_t *raw, size_t n, struct efs_codec_scratch *s)
{
    if (n <= 4 * SAMPLE_BYTES)
        return true;
    size_t in = 0, out = 0;
    for (size_t i = 0; i < 4; i++) {
        out += zstd_level(s, raw + (n - SAMPLE_BYTES) / 3 * i, SAMPLE_BYTES, s->other);
        in += SAMPLE_BYTES;
    }
    return (double)out <= (double)in * (1 - BYTES_GAIN_MIN);
}

static void encode_bytes(enum efs_codec_choice choice, const uint8_t *raw, size_t n, uint8_t *e, uint8_t *sm,
                         struct efs_shard_coded *coded, struct efs_codec_scratch *s)
{
    bool automatic = choice == EFS_CHOOSE_AUTO;
    bool hopeless = choice == EFS_CHOOSE_RAW || n < BYTES_MIN ||
                    (efs_entropy_bits(coded->counts) > 8.0 * (double)n * (1 - BYTES_GAIN_MIN) && !repeats(raw, n, s));
    coded->e_bytes = 0;
    if (!hopeless) {
        if (automatic || choice == EFS_CHOOSE_CASCADE)
            encode_cascade(raw, n, e, coded);
        if (automatic || choice == EFS_CHOOSE_ZSTD) {
            try_other(zstd_huffman, EFS_CODEC_ZSTD, raw, n, automatic, e, coded, s);
            try_other(zstd_level, EFS_CODEC_ZSTD, raw, n, automatic, e, coded, s);
        }
        if (automatic || choice == EFS_CHOOSE_LZ4)
            try_other(lz4, EFS_CODEC_LZ4, raw, n, automatic, e, coded, s);
    }
    bool pays = coded->e_bytes != 0 && (double)coded->e_bytes <= (double)n * (1 - BYTES_GAIN_MIN) &&
                (!automatic || bytes_cost(coded->codec, coded->e_bytes, n) < (double)n);
    if (pays) {
        coded->sm_bytes = 0;
        return;
    }
    memcpy(sm, raw, n);
    coded->codec = EFS_CODEC_NONE;
    coded->e_bytes = 0;
    coded->sm_bytes = n;
}

static void encode_exponents(enum efs_codec_choice choice, const uint8_t *symbols, size_t n, uint8_t *e,
                             struct efs_shard_coded *coded, struct efs_codec_scratch *s)
{
    coded->e_bytes = 0;
    if (choice == EFS_CHOOSE_ZSTD)
        try_other(zstd_huffman, EFS_CODEC_ZSTD, symbols, n, false, e, coded, s);
    if (choice == EFS_CHOOSE_LZ4)
        try_other(lz4, EFS_CODEC_LZ4, symbols, n, false, e, coded, s);
    if (coded->e_bytes != 0)
        return;
    encode_cascade(symbols, n, e, coded);
    double sm = (double)coded->sm_bytes, enough = FLOATS_GAIN * (sm + (double)coded->e_bytes) - sm;
    if (choice != EFS_CHOOSE_AUTO || efs_entropy_bits(coded->counts) / 8 >= enough)
        return; /* nothing that codes single symbols can reach that */
    size_t zstd = zstd_huffman(s, symbols, n, s->other);
    if (zstd != 0 && (double)zstd < enough)
        take_other(EFS_CODEC_ZSTD, zstd, e, coded, s);
    size_t other = lz4(s, symbols, n, s->other);
    if (other != 0 && (double)other < enough && other < coded->e_bytes)
        take_other(EFS_CODEC_LZ4, other, e, coded, s);
}

void efs_exponent_counts(enum efs_format format, const void *raw, size_t elements, uint64_t counts[256],
                         struct efs_codec_scratch *scratch)
{
    const uint8_t *src = raw;
    size_t width = efs_format_bytes(format);
    memset(counts, 0, 256 * sizeof(counts[0]));
    while (elements > 0) { /* by blocks: SM of one fits scratch->block, E of one fits any scratch->e */
        size_t n = elements < EFS_BLOCK ? elements : EFS_BLOCK;
        efs_split(format, src, n, scratch->e, scratch->block);
        efs_histogram(scratch->e, n, counts);
        src += n * width;
        elements -= n;
    }
}

errint_t efs_shard_encode(enum efs_format format, enum efs_codec_choice choice, const void *raw, size_t elements,
                          uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded, struct efs_codec_scratch *scratch)
{
    if (efs_format_bytes(format) == 0 || elements == 0 || elements > scratch->shard_elements ||
        (choice == EFS_CHOOSE_RAW && format != EFS_FORMAT_BYTES))
        return -EINVAL;
    errint_t rc = efs_codec_scratch_for_encoding(scratch);
    if (rc < 0)
        return rc;
    memset(coded->counts, 0, sizeof(coded->counts));
    if (format == EFS_FORMAT_BYTES) {
        if (choice != EFS_CHOOSE_RAW)
            efs_histogram(raw, elements, coded->counts);
        encode_bytes(choice, raw, elements, e, sm, coded, scratch);
        return 0;
    }
    efs_split(format, raw, elements, scratch->e, sm);
    efs_histogram(scratch->e, elements, coded->counts);
    coded->sm_bytes = efs_sm_bytes(format, elements);
    encode_exponents(choice, scratch->e, elements, e, coded, scratch);
    return 0;
}
