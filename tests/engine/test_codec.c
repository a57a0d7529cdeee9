/* SPDX-License-Identifier: Apache-2.0 */
/* test_codec.c - encodes and decodes shards: every format, codec, size and range; cut chunks and wrong sizes are
 * refused. */
#include "test.h"
#include "codec.h"
#include "libc_symbol.h"

#include <lz4.h>
#include <math.h>

#include <zstd.h>

#define MAX_ELEMENTS (64u << 10)
#define SHARD_ELEMENTS (512u << 10) /* the packer's default */

static size_t library_bytes; /* bytes passed to ZSTD_compress2() and LZ4_compress_fast_extState() */

size_t ZSTD_compress2(ZSTD_CCtx *context, void *to, size_t room, const void *from, size_t bytes)
{
    size_t (*real)(ZSTD_CCtx *, void *, size_t, const void *, size_t) = libc_symbol("ZSTD_compress2");
    library_bytes += bytes;
    return real(context, to, room, from, bytes);
}

int LZ4_compress_fast_extState(void *state, const char *from, char *to, int bytes, int room, int acceleration)
{
    int (*real)(void *, const char *, char *, int, int, int) = libc_symbol("LZ4_compress_fast_extState");
    library_bytes += (size_t)bytes;
    return real(state, from, to, bytes, room, acceleration);
}

static uint64_t random_state;

static uint32_t next_random(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static float normal(void)
{
    double a = (next_random() + 1.0) / 2147483650.0, b = next_random() / 2147483648.0;
    return (float)(0.02 * sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
}

/* ONE_SCALE: normal weights with the same scale in all rows, where the cascade is furthest from the entropy. */
enum content { WEIGHTS, NOISE, CONSTANT, TEXT, ONE_SCALE, SCALES, CONTENT_COUNT };

/* The nearest E4M3 number; |f| must be below 448, the largest. */
static uint8_t e4m3(float f)
{
    float a = fabsf(f);
    int power = ilogbf(a < 0x1p-6f ? 0x1p-6f : a);
    int steps = (int)lrintf(ldexpf(a, 3 - power)); /* eighths of the power of two: 8 to 16; less if subnormal */
    int code = (power + 7) * 8 + steps - 8;
    return (uint8_t)((f < 0 ? 0x80 : 0) | (code > 0x7e ? 0x7e : code));
}

/* F16, truncated; numbers below the normal range become 0. */
static uint32_t f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint32_t exponent = bits >> 23 & 0xff;
    return (bits >> 16 & 0x8000) | (exponent > 112 ? (exponent - 112) << 10 | (bits >> 13 & 0x3ff) : 0);
}

static void fill(enum efs_format format, enum content content, uint8_t *raw, size_t elements)
{
    size_t width = efs_format_bytes(format);
    float row_scale = 1;
    for (size_t i = 0; i < elements; i++) {
        uint32_t bits;
        if (i % 2048 == 0) /* each row of a matrix has a different scale */
            row_scale = expf(25 * normal());
        float f = normal() * (content == ONE_SCALE ? 1 : row_scale);
        memcpy(&bits, &f, sizeof(bits));
        if (format == EFS_FORMAT_E4M3 && (content == WEIGHTS || content == ONE_SCALE))
            bits = e4m3(content == ONE_SCALE ? f * 100 : f / row_scale * 4000); /* quantised with one scale per row */
        else if (format == EFS_FORMAT_F16 && (content == WEIGHTS || content == ONE_SCALE))
            bits = f16(f);
        else if (format == EFS_FORMAT_BF16 || format == EFS_FORMAT_F16)
            bits >>= 16;
        else if (format != EFS_FORMAT_F32)
            bits >>= 24;
        if (content == NOISE)
            bits = next_random() ^ next_random() << 16;
        else if (content == CONSTANT)
            bits = 0x3f803f80;
        else if (content == TEXT)
            bits = (uint32_t) "a store of weights "[i % 19] * 0x01010101u;
        else if (content == SCALES) /* E8M0: powers of two around one */
            bits = (uint32_t)(127 + lrintf(50 * normal()));
        memcpy(raw + i * width, &bits, width);
    }
}

struct shard {
    uint8_t *raw, *e, *sm, *out;
    struct efs_shard_coded coded;
    struct efs_shard_view view;
};

static struct efs_codec_scratch *scratch;

static void code(struct shard *s, enum efs_format format, enum efs_codec_choice choice, enum content content,
                 size_t elements)
{
    size_t width = efs_format_bytes(format);
    /* Buffers have exactly the documented sizes, so that a sanitizer detects writes past the end. */
    s->raw = malloc(elements * width);
    s->out = malloc(elements * width);
    s->e = malloc(efs_shard_e_bound(elements));
    s->sm = malloc(efs_shard_sm_bound(format, elements));
    fill(format, content, s->raw, elements);
    assert_int_equal(efs_shard_encode(format, choice, s->raw, elements, s->e, s->sm, &s->coded, scratch), 0);
    assert_true(s->coded.e_bytes <= efs_shard_e_bound(elements));
    assert_true(s->coded.sm_bytes <= efs_shard_sm_bound(format, elements));
    /* Cut the buffer to the chunk's size, so that a sanitizer detects reads past the chunk. */
    s->e = realloc(s->e, s->coded.e_bytes ? s->coded.e_bytes : 1);
    s->view =
        (struct efs_shard_view){format, s->coded.codec, elements, s->e, s->sm, s->coded.e_bytes, s->coded.sm_bytes};
}

static void release(struct shard *s)
{
    free(s->raw);
    free(s->out);
    free(s->e);
    free(s->sm);
}

static void check_range(struct shard *s, size_t first, size_t count)
{
    size_t width = efs_format_bytes(s->view.format);
    memset(s->out, 0xA5, s->view.elements * width);
    assert_int_equal(efs_shard_decode(&s->view, first, count, s->out, false, scratch), 0);
    assert_memory_equal(s->out, s->raw + first * width, count * width);
    for (size_t i = count * width; i < s->view.elements * width; i++)
        assert_int_equal(s->out[i], 0xA5);
}

TEST(round_trips)
{
    static const size_t sizes[] = {1, 2, 7, 63, 64, 65, 1000, 4096, 8191, 8192, 8193, 20000, 40960, MAX_ELEMENTS};
    static const uint32_t codec_of[] = {
        [EFS_CHOOSE_CASCADE] = EFS_CODEC_CASCADE, [EFS_CHOOSE_ZSTD] = EFS_CODEC_ZSTD, [EFS_CHOOSE_LZ4] = EFS_CODEC_LZ4};
    random_state = 1;
    for (int format = 0; format < EFS_FORMAT_COUNT; format++)
        for (int choice = EFS_CHOOSE_AUTO; choice <= EFS_CHOOSE_RAW; choice++)
            for (int content = 0; content < CONTENT_COUNT; content++)
                for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                    size_t n = sizes[i];
                    if (choice == EFS_CHOOSE_RAW && format != EFS_FORMAT_BYTES)
                        continue;
                    struct shard s;
                    code(&s, (enum efs_format)format, (enum efs_codec_choice)choice, (enum content)content, n);
                    if (n == 20000 && format != EFS_FORMAT_BYTES && choice != EFS_CHOOSE_AUTO)
                        assert_int_equal(s.coded.codec, codec_of[choice]);
                    check_range(&s, 0, n);
                    for (int r = 0; r < 6; r++) {
                        size_t first = next_random() % n, count = next_random() % (n - first + 1);
                        check_range(&s, first, count);
                    }
                    check_range(&s, n, 0);
                    release(&s);
                }
}

/*
 * For float formats, auto chooses the cascade unless another codec makes the whole shard more than 4 % smaller.
 * tests/kernels checks the size that the cascade itself reaches.
 */
TEST(auto_keeps_the_cascade)
{
    static const enum efs_format formats[] = {EFS_FORMAT_BF16, EFS_FORMAT_F16, EFS_FORMAT_F32, EFS_FORMAT_E4M3};
    static const enum content contents[] = {WEIGHTS, ONE_SCALE};
    static const size_t sizes[] = {4096, 16384, MAX_ELEMENTS, SHARD_ELEMENTS};
    struct efs_codec_scratch *small = scratch;
    assert_int_equal(efs_codec_scratch_new(SHARD_ELEMENTS, &scratch), 0);
    random_state = 3;
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++)
        for (size_t c = 0; c < sizeof(contents) / sizeof(contents[0]); c++)
            for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                struct shard s;
                size_t n = sizes[i];
                code(&s, formats[f], EFS_CHOOSE_AUTO, contents[c], n);
                if (s.coded.codec != EFS_CODEC_CASCADE)
                    fail_msg("format %d, content %d, %zu elements: codec %u", (int)formats[f], (int)contents[c], n,
                             s.coded.codec);
                release(&s);
            }
    efs_codec_scratch_free(scratch);
    scratch = small;
}

TEST(auto_prefers_much_smaller_codec)
{
    struct shard s, cascade;
    random_state = 3;
    for (int content = 0; content < CONTENT_COUNT; content++)
        for (int format = EFS_FORMAT_BF16; format < EFS_FORMAT_COUNT; format++) {
            uint64_t seed = random_state;
            code(&cascade, (enum efs_format)format, EFS_CHOOSE_CASCADE, (enum content)content, MAX_ELEMENTS);
            random_state = seed;
            code(&s, (enum efs_format)format, EFS_CHOOSE_AUTO, (enum content)content, MAX_ELEMENTS);
            size_t mine = s.coded.e_bytes + s.coded.sm_bytes, its = cascade.coded.e_bytes + cascade.coded.sm_bytes;
            if (s.coded.codec == EFS_CODEC_CASCADE)
                assert_int_equal(mine, its);
            else
                assert_true((double)mine < 0.96 * (double)its);
            release(&s);
            release(&cascade);
        }
    /* One value everywhere: zstd and LZ4 need a few bytes. */
    code(&s, EFS_FORMAT_BF16, EFS_CHOOSE_AUTO, CONSTANT, MAX_ELEMENTS);
    assert_true(s.coded.e_bytes < 4096);
    release(&s);
}

TEST(auto_compares_sizes)
{
    struct shard s;
    random_state = 3;
    code(&s, EFS_FORMAT_BYTES, EFS_CHOOSE_AUTO, NOISE, MAX_ELEMENTS);
    assert_int_equal(s.coded.codec, EFS_CODEC_NONE);
    assert_int_equal(s.coded.sm_bytes, MAX_ELEMENTS);
    release(&s);
    /* Text: the saved bytes outweigh the cost of decoding. */
    code(&s, EFS_FORMAT_BYTES, EFS_CHOOSE_AUTO, TEXT, MAX_ELEMENTS);
    assert_true(s.coded.codec == EFS_CODEC_ZSTD || s.coded.codec == EFS_CODEC_LZ4);
    assert_true(s.coded.e_bytes < MAX_ELEMENTS / 4);
    release(&s);
    /* Scales of block formats: few distinct values. */
    code(&s, EFS_FORMAT_BYTES, EFS_CHOOSE_AUTO, SCALES, MAX_ELEMENTS);
    assert_int_equal(s.coded.codec, EFS_CODEC_CASCADE);
    assert_true(s.coded.e_bytes < MAX_ELEMENTS / 2);
    release(&s);
    /* 8-bit integers of a normal distribution: zstd saves a fifth, but decoding takes longer than reading that fifth.
     */
    uint8_t *raw = malloc(MAX_ELEMENTS), *memfile = malloc(efs_shard_e_bound(MAX_ELEMENTS));
    struct efs_shard_coded coded;
    for (size_t i = 0; i < MAX_ELEMENTS; i++)
        raw[i] = (uint8_t)(int8_t)lrintf(normal() * 800);
    assert_int_equal(
        efs_shard_encode(EFS_FORMAT_BYTES, EFS_CHOOSE_ZSTD, raw, MAX_ELEMENTS, memfile, memfile, &coded, scratch), 0);
    assert_int_equal(coded.codec, EFS_CODEC_ZSTD); /* as requested */
    assert_true(coded.e_bytes < MAX_ELEMENTS / 8 * 7);
    assert_int_equal(
        efs_shard_encode(EFS_FORMAT_BYTES, EFS_CHOOSE_AUTO, raw, MAX_ELEMENTS, memfile, memfile, &coded, scratch), 0);
    assert_int_equal(coded.codec, EFS_CODEC_NONE);
    free(raw);
    free(memfile);
    /* A chunk that fits in one page anyway stays raw. */
    code(&s, EFS_FORMAT_BYTES, EFS_CHOOSE_AUTO, TEXT, 2048);
    assert_int_equal(s.coded.codec, EFS_CODEC_NONE);
    release(&s);
}

/* A normal number, quantised to 2 * most + 1 values. */
static int quantised(float sigma, int most)
{
    int value = (int)lrintf(normal() / 0.02f * sigma);
    return value > most ? most : value < -most ? -most : value;
}

/* Formats of quantised weights, and inputs that compress well for comparison. */
enum quantised {
    INT8_ROWS,     /* one scale per row: 7 bits of entropy, which only zstd reaches, but with too expensive decoding */
    Q8_0,          /* blocks of a 2-byte scale and 32 codes */
    MXFP4_SCALES,  /* coded by the cascade */
    NF4_PAIRS,     /* bitsandbytes: two 4-bit codes per byte */
    AWQ_WORDS,     /* eight 4-bit codes per word, in another order; the top code has fewer values */
    HALF_ZEROS,    /* 256 KiB of noise, then 256 KiB of zeros: the sample has both */
    CONSTANT_BYTE, /* zero points of symmetric quantisation */
    QUANTISED_COUNT
};

static uint8_t quantised_byte(enum quantised kind, size_t i)
{
    switch (kind) {
    case INT8_ROWS:
        return (uint8_t)quantised(30, 127);
    case Q8_0:
        return i % 34 == 1 ? (uint8_t)(0x1c + quantised(1, 3)) : (uint8_t)quantised(i % 34 == 0 ? 200 : 55, 127);
    case MXFP4_SCALES:
        return (uint8_t)(120 + quantised(1, 6));
    case NF4_PAIRS:
        return (uint8_t)((quantised(3.5f, 7) + 8) << 4 | (quantised(3.5f, 7) + 8));
    case AWQ_WORDS:
        return (uint8_t)((quantised(i % 4 == 3 ? 2.5f : 4, 7) + 8) << 4 | (quantised(4, 7) + 8));
    case HALF_ZEROS:
        return i < SHARD_ELEMENTS / 2 ? (uint8_t)next_random() : 0;
    default:
        return 0x77;
    }
}

/* zstd and LZ4 encode a sample of the shard, and the rest only if the sample shows a gain. The E- and SM-chunk of a
 * shard of bytes may share a buffer. */
TEST(sample_chooses_codec)
{
    static const struct {
        uint32_t codec;
        size_t library_bytes;
    } expected[QUANTISED_COUNT] = {
        [MXFP4_SCALES] = {EFS_CODEC_CASCADE, SHARD_ELEMENTS / 4},
        [INT8_ROWS... Q8_0] = {EFS_CODEC_NONE, SHARD_ELEMENTS / 4},
        [NF4_PAIRS... AWQ_WORDS] = {EFS_CODEC_NONE, SHARD_ELEMENTS / 4},
        [HALF_ZEROS] = {EFS_CODEC_LZ4, SIZE_MAX},
        [CONSTANT_BYTE] = {EFS_CODEC_LZ4, SIZE_MAX},
    };
    size_t n = SHARD_ELEMENTS;
    uint8_t *raw = malloc(n), *memfile = malloc(efs_shard_e_bound(n)), *out = malloc(n);
    struct efs_codec_scratch *own;
    assert_int_equal(efs_codec_scratch_new(SHARD_ELEMENTS, &own), 0);
    for (int kind = 0; kind < QUANTISED_COUNT; kind++) {
        struct efs_shard_coded c;
        random_state = 6;
        for (size_t i = 0; i < n; i++)
            raw[i] = quantised_byte((enum quantised)kind, i);
        library_bytes = 0;
        assert_int_equal(efs_shard_encode(EFS_FORMAT_BYTES, EFS_CHOOSE_AUTO, raw, n, memfile, memfile, &c, own), 0);
        print_message("kind %d: codec %u, %zu bytes, %zu given to zstd and LZ4\n", kind, c.codec,
                      c.e_bytes + c.sm_bytes, library_bytes);
        assert_int_equal(c.codec, expected[kind].codec);
        assert_true(library_bytes <= expected[kind].library_bytes);
        struct efs_shard_view view = {EFS_FORMAT_BYTES, c.codec, n, memfile, memfile, c.e_bytes, c.sm_bytes};
        assert_int_equal(efs_shard_decode(&view, 0, n, out, false, own), 0);
        assert_memory_equal(raw, out, n);
    }
    efs_codec_scratch_free(own);
    free(raw);
    free(memfile);
    free(out);
}

/* A chunk that is cut at any byte has too few elements and is refused. fuzz_codec covers changed bytes. */
TEST(truncated_chunks_are_refused)
{
    random_state = 5;
    for (int format = 0; format < EFS_FORMAT_COUNT; format++)
        for (int choice = EFS_CHOOSE_CASCADE; choice <= EFS_CHOOSE_LZ4; choice++) {
            struct shard s;
            code(&s, (enum efs_format)format, (enum efs_codec_choice)choice, format ? WEIGHTS : TEXT, 20000);
            assert_true(s.coded.e_bytes > 0);
            for (int i = 0; i < 64; i++) {
                size_t cut = next_random() % s.coded.e_bytes;
                struct efs_shard_view view = s.view;
                view.e = malloc(cut ? cut : 1);
                memcpy((uint8_t *)(uintptr_t)view.e, s.e, cut);
                view.e_bytes = cut;
                assert_int_equal(efs_shard_decode(&view, 0, 20000, s.out, false, scratch), -EUCLEAN);
                free((void *)(uintptr_t)view.e);
            }
            release(&s);
        }
}

TEST(wrong_sizes_are_refused)
{
    random_state = 6;
    for (int format = 0; format < EFS_FORMAT_COUNT; format++)
        for (int choice = EFS_CHOOSE_CASCADE; choice <= EFS_CHOOSE_LZ4; choice++) {
            struct shard s;
            code(&s, (enum efs_format)format, (enum efs_codec_choice)choice, format ? WEIGHTS : TEXT, 20000);
            struct efs_shard_view view = s.view;
            view.elements--; /* with the matching sm_bytes: only the chunk shows that there are 20000 elements */
            view.sm_bytes = efs_sm_bytes(view.format, view.elements);
            assert_int_equal(efs_shard_decode(&view, 0, view.elements, s.out, false, scratch), -EUCLEAN);
            view = s.view;
            view.sm_bytes++;
            assert_int_equal(efs_shard_decode(&view, 0, 20000, s.out, false, scratch), -EUCLEAN);
            view = s.view;
            view.codec = EFS_CODEC_COUNT;
            assert_int_equal(efs_shard_decode(&view, 0, 20000, s.out, false, scratch), -EUCLEAN);
            view.codec = EFS_CODEC_NONE;
            assert_int_equal(efs_shard_decode(&view, 0, 20000, s.out, false, scratch), -EUCLEAN);
            assert_int_equal(efs_shard_decode(&s.view, 20001, 0, s.out, false, scratch), -EINVAL);
            assert_int_equal(efs_shard_decode(&s.view, 1, 20000, s.out, false, scratch), -EINVAL);
            assert_int_equal(efs_shard_decode(&s.view, SIZE_MAX, 2, s.out, false, scratch), -EINVAL);
            release(&s);
        }
    struct efs_shard_coded coded;
    uint8_t raw[16] = {0}, e[4096], sm[64];
    assert_int_equal(efs_shard_encode(EFS_FORMAT_BF16, EFS_CHOOSE_RAW, raw, 8, e, sm, &coded, scratch), -EINVAL);
    assert_int_equal(efs_shard_encode(EFS_FORMAT_COUNT, EFS_CHOOSE_AUTO, raw, 8, e, sm, &coded, scratch), -EINVAL);
    assert_int_equal(efs_shard_encode(EFS_FORMAT_BF16, EFS_CHOOSE_AUTO, raw, MAX_ELEMENTS + 1, e, sm, &coded, scratch),
                     -EINVAL);
    struct efs_codec_scratch *none;
    assert_int_equal(efs_codec_scratch_new(0, &none), -EINVAL);
    assert_int_equal(efs_codec_scratch_new(EFS_SHARD_ELEMENTS_MAX + 1, &none), -EINVAL);
}

TEST(formats_of_dtypes)
{
    assert_int_equal(efs_object_format(EFS_DTYPE_BF16, EFS_CHOOSE_AUTO), EFS_FORMAT_BF16);
    assert_int_equal(efs_object_format(EFS_DTYPE_F16, EFS_CHOOSE_ZSTD), EFS_FORMAT_F16);
    assert_int_equal(efs_object_format(EFS_DTYPE_F32, EFS_CHOOSE_LZ4), EFS_FORMAT_F32);
    assert_int_equal(efs_object_format(EFS_DTYPE_F8_E4M3, EFS_CHOOSE_AUTO), EFS_FORMAT_E4M3);
    assert_int_equal(efs_object_format(EFS_DTYPE_F8_E5M2, EFS_CHOOSE_AUTO), EFS_FORMAT_E5M2);
    assert_int_equal(efs_object_format(EFS_DTYPE_F8_E8M0, EFS_CHOOSE_AUTO), EFS_FORMAT_BYTES);
    assert_int_equal(efs_object_format((enum efs_dtype)(EFS_DTYPE_GGML + 8), EFS_CHOOSE_AUTO), EFS_FORMAT_BYTES);
    assert_int_equal(efs_object_format(EFS_DTYPE_BF16, EFS_CHOOSE_RAW), EFS_FORMAT_BYTES);
}

TEST(entropy_of_known_histograms)
{
    uint64_t counts[256] = {0};
    assert_true(efs_entropy_bits(counts) == 0);
    counts[7] = 1000;
    assert_true(fabs(efs_entropy_bits(counts)) < 1e-9);
    counts[9] = 1000;
    assert_true(fabs(efs_entropy_bits(counts) - 2000) < 1e-6);
}

static int setup(void **state)
{
    (void)state;
    return efs_codec_scratch_new(MAX_ELEMENTS, &scratch);
}

static int teardown(void **state)
{
    (void)state;
    efs_codec_scratch_free(scratch);
    return 0;
}

TEST_MAIN(setup, teardown)
