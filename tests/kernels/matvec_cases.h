/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_cases.h - matrices for the tests of products: weights of every kind, in every form.
 */
#ifndef EFS_TESTS_KERNELS_MATVEC_CASES_H
#define EFS_TESTS_KERNELS_MATVEC_CASES_H

#include "cases.h"
#include "matvec.h"

#include <math.h>

/* ---- numbers -------------------------------------------------------------------------------------------------------
 */

enum number_kind {
    NUMBERS_WEIGHTS, /* approximately normal */
    NUMBERS_WIDE,    /* a wide range of exponents, so that sums lose many bits; no sum overflows */
    NUMBERS_SPECIAL, /* NaN, infinities, subnormals, zeros of both signs, among weights */
    NUMBERS_ZEROS,   /* of both signs */
    NUMBERS_TINY,    /* subnormals and numbers with subnormal products */
    NUMBERS_BITS,    /* arbitrary bits */
    NUMBERS_KINDS
};

static inline uint16_t bf16_of(enum number_kind kind, uint64_t *state)
{
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f,
                                       0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x3f80, 0xbf80, 0x807f};
    uint64_t r = random_u64(state);
    uint16_t sign_mantissa = (uint16_t)((r & 0x7f) | (r >> 8 & 1) << 15);
    uint16_t weight = (uint16_t)(sign_mantissa | (uint16_t)symbol_of(SYMBOLS_WEIGHTS, 0, 1, state) << 7);

    switch (kind) {
    case NUMBERS_WIDE:
        return (uint16_t)(sign_mantissa | (100 + (r >> 16) % 50) << 7);
    case NUMBERS_SPECIAL:
        return (r >> 32) % 200 == 0 ? special[(r >> 16) % 16] : weight;
    case NUMBERS_ZEROS:
        return (uint16_t)(sign_mantissa & 0x8000);
    case NUMBERS_TINY:
        return (uint16_t)(sign_mantissa | ((r >> 16) % 70) << 7);
    case NUMBERS_BITS:
        return (uint16_t)(r >> 24);
    default:
        return weight;
    }
}

static inline float f32_of(enum number_kind kind, uint64_t *state)
{
    uint32_t bits = (uint32_t)bf16_of(kind, state) << 16;
    float f;

    if (kind != NUMBERS_ZEROS)
        bits |= (uint32_t)random_u64(state) & 0xffff;
    memcpy(&f, &bits, 4);
    return f;
}

static inline float widened(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float f;

    memcpy(&f, &bits, 4);
    return f;
}

/* Converts an F16 number by the definition of the format. */
static inline float widened_f16(uint16_t f16)
{
    int exponent = f16 >> 10 & 0x1f, mantissa = f16 & 0x3ff;
    float size = exponent == 31  ? mantissa ? NAN : INFINITY
                 : exponent == 0 ? ldexpf((float)mantissa, -24)
                                 : ldexpf((float)(1024 + mantissa), exponent - 25);

    return f16 >> 15 ? -size : size;
}

static inline uint16_t f16_of(enum number_kind kind, uint64_t *state)
{
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
                                       0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x3c00, 0xbc00, 0x83ff};
    uint64_t r = random_u64(state);
    uint16_t sign_mantissa = (uint16_t)((r & 0x3ff) | (r >> 10 & 1) << 15);
    uint16_t weight = (uint16_t)(sign_mantissa | (15 - __builtin_ctzll(r >> 20 | 1u << 12)) << 10);

    switch (kind) {
    case NUMBERS_WIDE:
        return (uint16_t)(sign_mantissa | (r >> 16) % 31 << 10);
    case NUMBERS_SPECIAL:
        return (r >> 32) % 200 == 0 ? special[(r >> 16) % 16] : weight;
    case NUMBERS_ZEROS:
        return (uint16_t)(sign_mantissa & 0x8000);
    case NUMBERS_TINY:
        return sign_mantissa;
    case NUMBERS_BITS:
        return (uint16_t)(r >> 24);
    default:
        return weight;
    }
}

/* True if the bits are equal, or both are NaN. */
static inline bool same_float(float a, float b)
{
    return (a != a && b != b) || memcmp(&a, &b, 4) == 0;
}

/* ---- matrices ------------------------------------------------------------------------------------------------------
 */

enum matrix_form { FORM_PLAIN, FORM_CASCADE, FORM_BYTES, FORM_ASK, FORM_MIXED, FORMS };

/* A matrix each piece of which ends at a guard page. */
struct matrix {
    struct efs_matrix w;
    struct guarded plain, *e, *sm, asked;
    struct efs_matrix_shard *shards;
    size_t shard_count;
};

static inline size_t matrix_shard_elements(const struct matrix *m, size_t s)
{
    size_t left = (size_t)m->w.rows * m->w.cols - s * m->w.shard_elements;

    return left < m->w.shard_elements ? left : m->w.shard_elements;
}

/* exponents(): decodes the shard's chunk, which the kernels do not see, to a buffer of its exact size. */
static inline int matrix_asked(void *user, size_t shard, const uint8_t **e)
{
    struct matrix *m = user;
    size_t n = matrix_shard_elements(m, shard);

    if (m->asked.map != NULL)
        guarded_free(&m->asked);
    m->asked = guarded_new(n);
    *e = m->asked.data;
    return efs_cascade_decode(m->e[shard].data, m->e[shard].bytes, 0, n, m->asked.data, coder_scratch());
}

static inline void matrix_add_shard(struct matrix *m, size_t s, enum matrix_form form, const uint16_t *numbers)
{
    const enum efs_format format = m->w.f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
    size_t n = matrix_shard_elements(m, s), sm_bytes = efs_sm_bytes(format, n);
    uint8_t *e = malloc(n), *coded = malloc(efs_cascade_bound(n));

    assert_true(e && coded);
    m->sm[s] = guarded_new(sm_bytes);
    efs_split(format, numbers + s * m->w.shard_elements, n, e, m->sm[s].data);
    if (form == FORM_MIXED)
        form = s % 3 == 0 ? FORM_CASCADE : s % 3 == 1 ? FORM_BYTES : FORM_ASK;
    if (form == FORM_BYTES)
        m->e[s] = guarded_copy(e, n);
    else
        m->e[s] = guarded_copy(coded, efs_cascade_encode(e, n, coded, coder_scratch()));
    m->shards[s] = (struct efs_matrix_shard){
        .e = form == FORM_ASK ? NULL : m->e[s].data,
        .e_bytes = form == FORM_ASK ? 0 : m->e[s].bytes,
        .sm = m->sm[s].data,
        .sm_bytes = sm_bytes,
        .form = form == FORM_CASCADE ? EFS_E_CASCADE
                : form == FORM_BYTES ? EFS_E_BYTES
                                     : EFS_E_CALLBACK,
    };
    free(e);
    free(coded);
}

static inline struct matrix *matrix_of(enum matrix_form form, bool f16, const uint16_t *numbers, uint32_t rows,
                                       uint32_t cols, size_t shard_elements)
{
    struct matrix *m = calloc(1, sizeof(*m));
    size_t n = (size_t)rows * cols;

    assert_non_null(m);
    m->w = (struct efs_matrix){.rows = rows, .cols = cols, .f16 = f16};
    if (form == FORM_PLAIN) {
        m->plain = guarded_copy(numbers, 2 * n);
        m->w.plain = m->plain.data;
        return m;
    }
    m->w.shard_elements = shard_elements;
    m->shard_count = (n + shard_elements - 1) / shard_elements;
    m->shards = calloc(m->shard_count, sizeof(*m->shards));
    m->e = calloc(m->shard_count, sizeof(*m->e));
    m->sm = calloc(m->shard_count, sizeof(*m->sm));
    assert_true(m->shards && m->e && m->sm);
    for (size_t s = 0; s < m->shard_count; s++)
        matrix_add_shard(m, s, form, numbers);
    m->w.shards = m->shards;
    m->w.exponents = matrix_asked;
    m->w.user = m;
    return m;
}

static inline struct matrix *matrix_new(enum matrix_form form, const uint16_t *numbers, uint32_t rows, uint32_t cols,
                                        size_t shard_elements)
{
    return matrix_of(form, false, numbers, rows, cols, shard_elements);
}

static inline void matrix_free(struct matrix *m)
{
    if (m->plain.map != NULL)
        guarded_free(&m->plain);
    if (m->asked.map != NULL)
        guarded_free(&m->asked);
    for (size_t s = 0; s < m->shard_count; s++) {
        guarded_free(&m->e[s]);
        guarded_free(&m->sm[s]);
    }
    free(m->shards);
    free(m->e);
    free(m->sm);
    free(m);
}

/* ---- products ------------------------------------------------------------------------------------------------------
 */

/* One product as specified in matvec.h. */
static inline float product_by_the_text(bool f16, const uint16_t *row, const float *x, uint32_t cols)
{
    static const unsigned bf16_bits[] = {0, 4, 3, 2, 1}, f16_bits[] = {4, 3, 2, 1, 0};
    float sums[32] = {0};

    for (uint32_t c = 0; c < (cols + 63) / 64 * 64; c++) {
        uint32_t s = f16 ? c % 32 : c / 16 % 4 * 8 + c / 2 % 4 * 2 + c % 2;
        float w = c >= cols ? 0 : f16 ? widened_f16(row[c]) : widened(row[c]);
        sums[s] = fmaf(w, c < cols ? x[c] : 0, sums[s]);
    }
    for (size_t b = 0; b < 5; b++) {
        unsigned bit = f16 ? f16_bits[b] : bf16_bits[b];
        for (unsigned s = 0; s < 32; s++)
            if ((s >> bit & 1) == 0)
                sums[s] += sums[s | 1u << bit];
    }
    return sums[0];
}

/* Computes all rows of m times the input in `splits` calls, each with a part of the rows, to y; checks the bytes around
 * the output. */
static inline int multiply_split(const struct matrix *m, const void *input, uint32_t tokens, unsigned splits, float *y)
{
    size_t stride = m->w.rows + 3u, all = stride * tokens + 1;
    size_t scratch_bytes = efs_matvec_scratch_bytes(m->w.cols, tokens);
    float *out = malloc(all * sizeof(float));
    int worst = 0;

    assert_non_null(out);
    assert_true(scratch_bytes > 0 && scratch_bytes % EFS_MATVEC_ALIGN == 0);
    for (size_t i = 0; i < all; i++)
        out[i] = 12345;
    for (unsigned part = splits; part-- > 0;) { /* the last part first */
        struct guarded scratch = guarded_new(scratch_bytes);
        uint32_t begin = (uint32_t)((uint64_t)m->w.rows * part / splits);
        uint32_t end = (uint32_t)((uint64_t)m->w.rows * (part + 1) / splits);
        int r = efs_matvec(&m->w, input, begin, end, out + 1, stride, scratch.data);
        worst = r != 0 ? r : worst;
        guarded_free(&scratch);
    }
    assert_true(out[0] == 12345);
    for (size_t t = 0; t < tokens; t++) {
        memcpy(y + t * m->w.rows, out + 1 + t * stride, m->w.rows * sizeof(float));
        for (size_t i = m->w.rows; i < stride; i++)
            assert_true(out[1 + t * stride + i] == 12345);
    }
    free(out);
    return worst;
}

static inline void *input_new(enum efs_input_type type, const void *x, size_t stride, uint32_t cols, uint32_t tokens)
{
    size_t bytes = efs_input_bytes(cols, tokens);
    void *memory = aligned_alloc(EFS_MATVEC_ALIGN, bytes);

    assert_true(bytes > 0 && bytes % EFS_MATVEC_ALIGN == 0 && memory != NULL);
    assert_int_equal(efs_input_prepare(type, x, stride, cols, tokens, memory), 0);
    return memory;
}

#endif
