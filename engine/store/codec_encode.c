/* SPDX-License-Identifier: Apache-2.0 */
/* codec_encode.c - encodes a shard's raw bytes to its two chunks and selects the codec. */
#include "codec_table.h"

#include "tsan.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* A BYTES shard is encoded only if that saves at least this fraction: block-quantised weights (3.8 of 4 bits a code,
 * 7.7 of 8 a byte) are stored raw, their scales are encoded. */
#define BYTES_GAIN_MIN (1.0 / 16)
/* Smaller shards are stored raw: they are read with one page in any encoding. */
#define BYTES_MIN 4096u
/* Another codec replaces the cascade for floats only if E and SM together are smaller than this fraction of the
 * cascade's size. The cascade decodes several times as fast and with random access, and experts can be run from
 * coded form only with it. */
#define FLOATS_GAIN 0.96
/* A codec encodes a whole shard only if its cost on a sample, decoding included, is at least SAMPLE_GAIN_MIN below
 * the sample's size, and at most SAMPLE_SLACK of that size above the cost of the best codec. */
#define SAMPLE_GAIN_MIN 0.02
#define SAMPLE_SLACK 0.125
#define SAMPLE_BYTES EFS_CODEC_SAMPLE_BYTES /* the size of a cascade span */
#define SAMPLE_PIECES 4u                    /* taken at equal distances, encoded as one */
#define VARIANTS_MAX (2 * EFS_CODEC_COUNT)

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

typedef size_t encode_fn(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room);

/* One encoder of a codec. decode_cost: cost of decoding a byte, in bytes read; 0 if only the size counts. */
struct variant {
    uint32_t codec;
    encode_fn *encode;
    double decode_cost;
};

/* Encodes src by one variant and keeps the result if it costs less than *limit bytes; lowers *limit to that cost. */
static void try_variant(const struct variant *variant, const uint8_t *src, size_t n, double *limit, uint8_t *e,
                        struct efs_shard_coded *coded, struct efs_codec_scratch *s)
{
    bool first = coded->e_bytes == 0;
    size_t bytes = variant->encode(s->encoder[variant->codec], src, n, first ? e : s->other, efs_shard_e_bound(n));
    double cost = (double)bytes + variant->decode_cost * (double)n;
    if (bytes == 0 || cost >= *limit)
        return;
    if (!first)
        memcpy(e, s->other, bytes);
    coded->codec = variant->codec;
    coded->e_bytes = bytes;
    *limit = cost;
}

/* Drops the variants whose cost on a sample predicts more than limit bytes for all n, or much more than the best
 * variant's. Returns how many remain. */
static unsigned select_promising(struct variant *variants, unsigned count, const uint8_t *src, size_t n, double limit,
                                 struct efs_codec_scratch *s)
{
    if (count == 0 || n <= 2 * SAMPLE_BYTES)
        return count;
    size_t piece = SAMPLE_BYTES / SAMPLE_PIECES;
    for (size_t i = 0; i < SAMPLE_PIECES; i++)
        memcpy(s->block + i * piece, src + (n - piece) / (SAMPLE_PIECES - 1) * i, piece);
    double costs[VARIANTS_MAX], most = limit / (double)n;
    for (unsigned i = 0; i < count; i++) {
        size_t bytes = variants[i].encode(s->encoder[variants[i].codec], s->block, SAMPLE_BYTES, s->other,
                                          efs_shard_e_bound(SAMPLE_BYTES));
        costs[i] = bytes ? (double)bytes / SAMPLE_BYTES + variants[i].decode_cost : INFINITY;
        most = fmin(most, costs[i] + SAMPLE_SLACK);
    }
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (costs[i] <= most)
            variants[kept++] = variants[i];
    return kept;
}

static void encode_bytes(enum efs_codec_choice choice, const uint8_t *raw, size_t n, uint8_t *e, uint8_t *sm,
                         struct efs_shard_coded *coded, struct efs_codec_scratch *s)
{
    bool automatic = choice == EFS_CHOOSE_AUTO;
    struct variant variants[VARIANTS_MAX];
    unsigned count = 0;
    for (uint32_t c = EFS_CODEC_NONE + 1; n >= BYTES_MIN && c < EFS_CODEC_COUNT; c++) {
        const struct efs_codec *codec = efs_codec_of(c);
        if (!automatic && choice != codec->choice)
            continue;
        double decode_cost = automatic ? codec->decode_cost : 0;
        variants[count++] = (struct variant){c, codec->encode, decode_cost};
        if (codec->encode_repeats)
            variants[count++] = (struct variant){c, codec->encode_repeats, decode_cost};
    }
    double limit = (double)n;
    coded->e_bytes = 0;
    count = select_promising(variants, count, raw, n, limit * (1 - SAMPLE_GAIN_MIN), s);
    for (unsigned i = 0; i < count; i++)
        try_variant(&variants[i], raw, n, &limit, e, coded, s);
    coded->sm_bytes = 0;
    if (coded->e_bytes != 0 && (double)coded->e_bytes <= (double)n * (1 - BYTES_GAIN_MIN))
        return;
    memcpy(sm, raw, n);
    coded->codec = EFS_CODEC_NONE;
    coded->e_bytes = 0;
    coded->sm_bytes = n;
}

static void encode_exponents(enum efs_codec_choice choice, const uint8_t *symbols, size_t n, uint8_t *e,
                             struct efs_shard_coded *coded, struct efs_codec_scratch *s)
{
    struct variant variants[VARIANTS_MAX];
    unsigned count = 0;
    double limit = INFINITY;
    coded->e_bytes = 0;
    for (uint32_t c = EFS_CODEC_NONE + 1; c < EFS_CODEC_COUNT; c++) {
        struct variant variant = {c, efs_codec_of(c)->encode, 0};
        if (choice == efs_codec_of(c)->choice)
            try_variant(&variant, symbols, n, &limit, e, coded, s);
        if (c != EFS_CODEC_CASCADE)
            variants[count++] = variant;
    }
    if (coded->e_bytes != 0)
        return;
    try_variant(&(struct variant){EFS_CODEC_CASCADE, efs_codec_of(EFS_CODEC_CASCADE)->encode, 0}, symbols, n, &limit, e,
                coded, s);
    double sm = (double)coded->sm_bytes;
    limit = FLOATS_GAIN * (sm + (double)coded->e_bytes) - sm;
    if (choice != EFS_CHOOSE_AUTO || efs_entropy_bits(coded->counts) / 8 >= limit)
        return; /* no codec of single symbols can get below the entropy */
    count = select_promising(variants, count, symbols, n, limit, s);
    for (unsigned i = 0; i < count; i++)
        try_variant(&variants[i], symbols, n, &limit, e, coded, s);
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
        encode_bytes(choice, raw, elements, e, sm, coded, scratch);
        return 0;
    }
    efs_tsan_reads(raw, elements * efs_format_bytes(format));
    efs_tsan_writes(sm, efs_sm_bytes(format, elements));
    efs_split(format, raw, elements, scratch->e, sm);
    efs_histogram(scratch->e, elements, coded->counts);
    coded->sm_bytes = efs_sm_bytes(format, elements);
    encode_exponents(choice, scratch->e, elements, e, coded, scratch);
    return 0;
}

/* FP8 has longer spans: its elements are half as large, so that the headers weigh twice. */
static unsigned short_span_log2(enum efs_format format)
{
    return format == EFS_FORMAT_E4M3 || format == EFS_FORMAT_E5M2 ? 13 : 12;
}

errint_t efs_shard_encode_short(enum efs_format format, enum efs_codec_choice choice, const void *raw, size_t elements,
                                uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded,
                                struct efs_codec_scratch *scratch)
{
    errint_t rc = efs_shard_encode(format, choice, raw, elements, e, sm, coded, scratch);
    if (rc < 0 || coded->codec != EFS_CODEC_CASCADE)
        return rc;
    const uint8_t *symbols = format == EFS_FORMAT_BYTES ? raw : scratch->e;
    coded->e_bytes =
        efs_cascade_encode_short(symbols, elements, short_span_log2(format), e, scratch->encoder[EFS_CODEC_CASCADE]);
    if (format != EFS_FORMAT_BYTES && format != EFS_FORMAT_BF16) /* BF16's SM has no blocks */
        efs_split_short(format, raw, elements, scratch->e, sm);
    return 0;
}
