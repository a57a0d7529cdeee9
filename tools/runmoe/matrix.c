/* SPDX-License-Identifier: Apache-2.0 */
/* matrix.c - products of matrix rows and activations: 16 lanes, up to four tokens per pass over a row. */
#include "matrix.h"

#include <string.h>

#define LANES 16
#define CHAINS 2 /* independent sums per token, to hide the latency of additions */
#define TOKENS 4

/* The instructions depend on the CPU; the order of the sums does not. (Not under TSan, which is not initialized yet
 * when the resolver of target_clones runs.) */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define FOR_EACH_CPU __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOR_EACH_CPU
#endif
#define ALWAYS_INLINE inline __attribute__((always_inline))

typedef float f32_lanes __attribute__((vector_size(LANES * 4)));
typedef uint32_t u32_lanes __attribute__((vector_size(LANES * 4)));
typedef uint16_t u16_lanes __attribute__((vector_size(LANES * 2)));

struct product {
    const struct matrix *w;
    const float *x;
    float *y;
    uint32_t tokens;
};

static float weight_at(const void *row, bool bf16, size_t i)
{
    uint32_t bits = 0;
    if (bf16)
        memcpy((uint8_t *)&bits + 2, (const uint8_t *)row + 2 * i, 2);
    else
        memcpy(&bits, (const uint8_t *)row + 4 * i, 4);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* y[t * y_step] = row . x[t * count], t < tokens. Sums by lane in CHAINS vectors, then all lanes in order, then the
 * rest of the row. */
static ALWAYS_INLINE void row_dots(const void *row, bool bf16, const float *x, size_t count, float *y, size_t y_step,
                                   const unsigned tokens)
{
    f32_lanes sums[TOKENS][CHAINS] = {{{0}}};
    size_t whole = count / (LANES * CHAINS) * (LANES * CHAINS);
    for (size_t i = 0; i < whole; i += LANES * CHAINS)
        for (unsigned c = 0; c < CHAINS; c++) {
            size_t at = i + c * LANES;
            f32_lanes w, v;
            if (bf16) {
                u16_lanes half;
                memcpy(&half, (const uint8_t *)row + 2 * at, sizeof(half));
                u32_lanes bits = __builtin_convertvector(half, u32_lanes) << 16;
                memcpy(&w, &bits, sizeof(w));
            } else {
                memcpy(&w, (const uint8_t *)row + 4 * at, sizeof(w));
            }
            for (unsigned t = 0; t < tokens; t++) {
                memcpy(&v, x + t * count + at, sizeof(v));
                sums[t][c] += w * v;
            }
        }
    for (unsigned t = 0; t < tokens; t++) {
        float sum = 0;
        for (unsigned c = 0; c < CHAINS; c++)
            for (unsigned i = 0; i < LANES; i++)
                sum += sums[t][c][i];
        for (size_t i = whole; i < count; i++)
            sum += weight_at(row, bf16, i) * x[t * count + i];
        y[t * y_step] = sum;
    }
}

FOR_EACH_CPU static void rows_bf16(const struct product *p, size_t begin, size_t end)
{
    for (size_t r = begin; r < end; r++) {
        const uint8_t *row = (const uint8_t *)p->w->data + r * p->w->columns * 2;
        size_t count = p->w->columns, step = p->w->rows, t = 0;
        for (; t + TOKENS <= p->tokens; t += TOKENS)
            row_dots(row, true, p->x + t * count, count, p->y + t * step + r, step, TOKENS);
        for (; t < p->tokens; t++)
            row_dots(row, true, p->x + t * count, count, p->y + t * step + r, step, 1);
    }
}

FOR_EACH_CPU static void row_f32(const void *row, const float *x, size_t count, float *y)
{
    row_dots(row, false, x, count, y, 1, 1);
}

static void product_rows(void *arg, size_t begin, size_t end)
{
    const struct product *p = arg;
    if (p->w->bf16) {
        rows_bf16(p, begin, end);
        return;
    }
    for (size_t r = begin; r < end; r++)
        for (size_t t = 0; t < p->tokens; t++)
            row_f32((const uint8_t *)p->w->data + r * p->w->columns * 4, p->x + t * p->w->columns, p->w->columns,
                    p->y + t * p->w->rows + r);
}

float dot(const float *a, const float *b, size_t count)
{
    float sum;
    row_f32(a, b, count, &sum);
    return sum;
}

void matrix_row(const struct matrix *matrix, uint32_t row, float *out)
{
    const uint8_t *data = (const uint8_t *)matrix->data + (size_t)row * matrix->columns * (matrix->bf16 ? 2 : 4);
    for (size_t i = 0; i < matrix->columns; i++)
        out[i] = weight_at(data, matrix->bf16, i);
}

void to_bf16(const float *x, uint16_t *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        y[i] = (uint16_t)(x[i] != x[i] ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

void round_bf16(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        to_bf16(&x[i], &half, 1);
        x[i] = weight_at(&half, true, 0);
    }
}

void parallel(unsigned threads, void (*work)(void *arg, size_t begin, size_t end), void *arg, size_t count)
{
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (unsigned t = 0; t < threads; t++)
        work(arg, count * t / threads, count * (t + 1) / threads);
}

void parallel_product(unsigned threads, const struct matrix *w, const float *x, float *y, uint32_t tokens)
{
    struct product p = {w, x, y, tokens};
    parallel(threads, product_rows, &p, w->rows);
}
