/* SPDX-License-Identifier: Apache-2.0 */
/* codec_encode.c - a shard's raw bytes to its two chunks, by the codec that serves best. */
#include "codec.h"

#include "codec_scratch.h"
#include "codec_table.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Bytes that hold no float must shrink by this part at least to be coded: block-quantised weights (3.8 of 4 bits a
 * code, 7.7 of 8 a byte) are left as they are, their scales are coded. */
#define BYTES_GAIN_MIN (1.0 / 16)
/* Less than this is read in one page whatever it is coded by. */
#define BYTES_MIN 4096u
/* Of coded floats, E and SM together: another codec is taken instead of the cascade when it leaves less than this part.
 * The cascade decodes several times as fast, and in parts; experts are run as they are coded only by it. */
#define FLOATS_GAIN 0.96
#define SAMPLE_BYTES 16384u

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

/* What n bytes cost that are coded in so many, in bytes read; n itself as they are. */
static double bytes_cost(uint32_t codec, size_t coded, size_t n)
{
    return (double)coded + efs_codec_of(codec)->decode_cost * (double)n;
}

typedef size_t encode_fn(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room);

/* Code src by a codec and keep the result if there is none yet or it is smaller than `below` bytes and the one that
 * there is; by_cost: if reading and decoding it takes less than that. */
static void try_codec(uint32_t codec, encode_fn *encode, const uint8_t *src, size_t n, double below, bool by_cost,
                      uint8_t *e, struct efs_shard_coded *coded, struct efs_codec_scratch *s)
{
    bool first = coded->e_bytes == 0;
    size_t bytes = encode(s->encoder[codec], src, n, first ? e : s->other, efs_shard_e_bound(n));
    if (bytes == 0)
        return;
    if (!first) {
        bool better = by_cost ? bytes_cost(codec, bytes, n) < bytes_cost(coded->codec, coded->e_bytes, n)
                              : (double)bytes < below && bytes < coded->e_bytes;
        if (!better)
            return;
        memcpy(e, s->other, bytes);
    }
    coded->codec = codec;
    coded->e_bytes = bytes;
}

/* Whether a small part of bytes whose single values are spread evenly shows repeats to one of the codecs. */
static bool bytes_repeat(const uint8_t *raw, size_t n, struct efs_codec_scratch *s)
{
    if (n <= 4 * SAMPLE_BYTES)
        return true;
    for (uint32_t c = 0; c < EFS_CODEC_COUNT; c++) {
        encode_fn *encode = efs_codec_of(c)->encode_repeats;
        size_t out = 0;
        for (size_t i = 0; encode && i < 4; i++)
            out += encode(s->encoder[c], raw + (n - SAMPLE_BYTES) / 3 * i, SAMPLE_BYTES, s->other,
                          efs_shard_e_bound(SAMPLE_BYTES));
        if (encode && (double)out <= 4.0 * SAMPLE_BYTES * (1 - BYTES_GAIN_MIN))
            return true;
    }
    return false;
}

static void encode_bytes(enum efs_codec_choice choice, const uint8_t *raw, size_t n, uint8_t *e, uint8_t *sm,
                         struct efs_shard_coded *coded, struct efs_codec_scratch *s)
{
    bool automatic = choice == EFS_CHOOSE_AUTO;
    bool hopeless =
        choice == EFS_CHOOSE_RAW || n < BYTES_MIN ||
        (efs_entropy_bits(coded->counts) > 8.0 * (double)n * (1 - BYTES_GAIN_MIN) && !bytes_repeat(raw, n, s));
    coded->e_bytes = 0;
    for (uint32_t c = EFS_CODEC_NONE + 1; !hopeless && c < EFS_CODEC_COUNT; c++) {
        const struct efs_codec *codec = efs_codec_of(c);
        if (!automatic && choice != codec->choice)
            continue;
        try_codec(c, codec->encode, raw, n, INFINITY, automatic, e, coded, s);
        if (codec->encode_repeats)
            try_codec(c, codec->encode_repeats, raw, n, INFINITY, automatic, e, coded, s);
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
    for (uint32_t c = EFS_CODEC_NONE + 1; c < EFS_CODEC_COUNT; c++)
        if (choice == efs_codec_of(c)->choice)
            try_codec(c, efs_codec_of(c)->encode, symbols, n, INFINITY, false, e, coded, s);
    if (coded->e_bytes != 0)
        return;
    try_codec(EFS_CODEC_CASCADE, efs_codec_cascade.encode, symbols, n, INFINITY, false, e, coded, s);
    double sm = (double)coded->sm_bytes, enough = FLOATS_GAIN * (sm + (double)coded->e_bytes) - sm;
    if (choice != EFS_CHOOSE_AUTO || efs_entropy_bits(coded->counts) / 8 >= enough)
        return; /* nothing that codes single symbols can reach that */
    for (uint32_t c = EFS_CODEC_CASCADE + 1; c < EFS_CODEC_COUNT; c++)
        try_codec(c, efs_codec_of(c)->encode, symbols, n, enough, false, e, coded, s);
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
