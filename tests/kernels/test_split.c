/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_split.c - split and merge: the layout that kernels.h specifies, every value of the small formats, every path.
 */
#include "test.h"
#include "gpu_twin.h"

static const enum efs_format formats[] = {EFS_FORMAT_BYTES, EFS_FORMAT_BF16, EFS_FORMAT_F16,
                                          EFS_FORMAT_F32,   EFS_FORMAT_E4M3, EFS_FORMAT_E5M2};
#define FORMATS (sizeof(formats) / sizeof(formats[0]))

/* Value i of m in a plane stream, by the definition. */
static uint32_t plane_value(const uint8_t *planes, size_t m, unsigned bits, size_t i)
{
    size_t width = (m * bits + 7) / 8;
    return (uint32_t)planes[i % width] >> (i / width * bits) & ((1u << bits) - 1);
}

/* The element with exponent e and the block's SM, by the definition. */
static uint32_t element(enum efs_format format, uint32_t e, const uint8_t *sm, size_t m, size_t i)
{
    const uint8_t *planes = format == EFS_FORMAT_F16 ? sm + m : sm;

    switch (format) {
    case EFS_FORMAT_BF16:
        return (sm[i] & 0x80u) << 8 | e << 7 | (sm[i] & 0x7fu);
    case EFS_FORMAT_F32:
        return (sm[i] & 0x80u) << 24 | e << 23 | (sm[i] & 0x7fu) << 16 | (uint32_t)sm[m + 2 * i + 1] << 8 |
               sm[m + 2 * i];
    case EFS_FORMAT_F16:
        return plane_value(planes + (m + 3) / 4, m, 1, i) << 15 | e << 10 | plane_value(planes, m, 2, i) << 8 | sm[i];
    case EFS_FORMAT_E5M2:
        return plane_value(planes + (m + 3) / 4, m, 1, i) << 7 | e << 2 | plane_value(planes, m, 2, i);
    case EFS_FORMAT_E4M3:
        return (plane_value(sm, m, 4, i) & 8) << 4 | e << 3 | (plane_value(sm, m, 4, i) & 7);
    default:
        return e;
    }
}

static void check_layout(enum efs_format format, const uint8_t *raw, size_t n, const uint8_t *e, const uint8_t *sm)
{
    size_t bytes = efs_format_bytes(format);

    for (size_t i = 0; i < n; i++) {
        size_t block = i / EFS_BLOCK * EFS_BLOCK;
        size_t m = n - block < EFS_BLOCK ? n - block : EFS_BLOCK;
        uint32_t expected = 0;
        memcpy(&expected, raw + i * bytes, bytes);
        assert_true(e[i] < format_symbols(format));
        assert_int_equal(element(format, e[i], sm + efs_sm_bytes(format, block), m, i - block), expected);
    }
}

/* Splits and merges on one path with guard pages on every buffer; compares with the reference. */
static void check_path(enum efs_format format, const uint8_t *raw, size_t n, const uint8_t *e, const uint8_t *sm)
{
    size_t raw_bytes = n * efs_format_bytes(format), sm_bytes = efs_sm_bytes(format, n);
    struct guarded in = guarded_copy(raw, raw_bytes), e_out = guarded_new(n), sm_out = guarded_new(sm_bytes);
    struct guarded back = guarded_new(raw_bytes);

    efs_split(format, in.data, n, e_out.data, sm_out.data);
    assert_memory_equal(e_out.data, e, n);
    assert_memory_equal(sm_out.data, sm, sm_bytes);
    efs_merge(format, e_out.data, sm_out.data, n, back.data);
    assert_memory_equal(back.data, raw, raw_bytes);
    guarded_free(&in);
    guarded_free(&e_out);
    guarded_free(&sm_out);
    guarded_free(&back);
}

/* Checks that the GPU's recovery kernel makes raw from e and sm. */
static void check_twin(enum efs_format format, const uint8_t *raw, size_t n, const uint8_t *e, const uint8_t *sm)
{
    uint8_t *out = malloc(n * efs_format_bytes(format) + 1);

    assert_non_null(out);
    assert_int_equal(gpu_twin_run(false, format, e, n, sm, n, out), EFS_GPU_OK);
    assert_memory_equal(out, raw, n * efs_format_bytes(format));
    free(out);
}

static void check_elements(enum efs_format format, const uint8_t *raw, size_t n)
{
    size_t sm_bytes = efs_sm_bytes(format, n);
    uint8_t *e = malloc(n + 1), *sm = malloc(sm_bytes + 1);

    assert_true(e && sm);
    assert_true(efs_cpu_force("scalar"));
    efs_split(format, raw, n, e, sm);
    check_layout(format, raw, n, e, sm);
    for (size_t p = 0; p < PATH_COUNT; p++)
        if (efs_cpu_force(path_names[p]))
            check_path(format, raw, n, e, sm);
    check_twin(format, raw, n, e, sm);
    free(e);
    free(sm);
}

TEST(every_16_bit_value)
{
    static uint16_t values[65536];

    for (unsigned v = 0; v < 65536; v++)
        values[v] = (uint16_t)v;
    check_elements(EFS_FORMAT_BF16, (const uint8_t *)values, 65536);
    check_elements(EFS_FORMAT_F16, (const uint8_t *)values, 65536);
}

TEST(every_8_bit_value)
{
    uint8_t values[256 * 33];

    for (size_t i = 0; i < sizeof(values); i++) /* each value at many places of a vector */
        values[i] = (uint8_t)(i + i / 256 * 5);
    for (size_t n = 256; n <= sizeof(values); n += 256 * 8) {
        check_elements(EFS_FORMAT_E4M3, values, n);
        check_elements(EFS_FORMAT_E5M2, values, n);
        check_elements(EFS_FORMAT_BYTES, values, n);
    }
}

TEST(f32_samples)
{
    static const uint32_t special[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000, 0x7f7fffff,
                                       0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x3f800000};
    static uint32_t values[20000];
    uint64_t rng = 32;

    for (size_t i = 0; i < 20000; i++)
        values[i] = i < 12 ? special[i] : i % 5 == 0 ? special[i % 12] : (uint32_t)random_u64(&rng);
    check_elements(EFS_FORMAT_F32, (const uint8_t *)values, 20000);
}

TEST(every_size)
{
    uint8_t *raw = malloc(4 * SIZE_MAX_TESTED);
    uint64_t rng = 1;

    assert_non_null(raw);
    for (size_t i = 0; i < 4 * SIZE_MAX_TESTED; i++)
        raw[i] = (uint8_t)random_u64(&rng);
    for (size_t f = 0; f < FORMATS; f++)
        for (size_t i = 0; i < SIZES; i++)
            check_elements(formats[f], raw, size_at(i));
    free(raw);
}

TEST(sm_sizes)
{
    assert_int_equal(efs_sm_bytes(EFS_FORMAT_BYTES, 12345), 0);
    assert_int_equal(efs_sm_bytes(EFS_FORMAT_BF16, 12345), 12345);
    assert_int_equal(efs_sm_bytes(EFS_FORMAT_F32, 12345), 3 * 12345);
    assert_int_equal(efs_sm_bytes(EFS_FORMAT_F16, 8192 + 9), 8192 + 2048 + 1024 + 9 + 3 + 2);
    assert_int_equal(efs_sm_bytes(EFS_FORMAT_E4M3, 8192 + 9), 4096 + 5);
    assert_int_equal(efs_sm_bytes(EFS_FORMAT_E5M2, 8192 + 9), 2048 + 1024 + 3 + 2);
    assert_int_equal(efs_format_bytes(EFS_FORMAT_COUNT), 0);
}

TEST(histogram)
{
    uint64_t rng = 3;
    uint8_t data[5000];

    for (size_t n = 0; n <= sizeof(data); n = n < 300 ? n + 1 : n + 1567) {
        uint64_t expected[256];
        for (size_t s = 0; s < 256; s++)
            expected[s] = s;
        for (size_t i = 0; i < n; i++) {
            data[i] = i % 3 ? 7 : (uint8_t)random_u64(&rng);
            expected[data[i]]++;
        }
        for (size_t p = 0; p < PATH_COUNT; p++) {
            if (!efs_cpu_force(path_names[p]))
                continue;
            struct guarded in = guarded_copy(data, n);
            uint64_t counts[256];
            for (size_t s = 0; s < 256; s++)
                counts[s] = s; /* efs_histogram() adds to counts */
            efs_histogram(in.data, n, counts);
            assert_memory_equal(counts, expected, sizeof(counts));
            guarded_free(&in);
        }
    }
}

TEST_MAIN(NULL, NULL)
