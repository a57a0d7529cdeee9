/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_ffn.h - computes the experts of a layer from plain matrices: y = the sum over a token's experts of
 * weight * down (silu(gate x) * (up x)). Private to cuda/; gpu.h documents the arguments.
 *
 * Three kernels run one after the other: h of each route, down h of each route, and the sums over routes, which are
 * added in the order of experts, so that results are reproducible. The threads of a warp share a row: each handles
 * eight columns per load of 16 bytes, for EFS_GPU_TOKENS tokens, and sums in F32 with fused multiply-adds.
 */
#ifndef EFS_KERNELS_GPU_FFN_H
#define EFS_KERNELS_GPU_FFN_H

#include "gpu_device.h"

#include <math.h>

#define EFS_GPU_LANES 32
#define EFS_GPU_TOKENS 4

/* State of a block of threads: partial sums of each thread, for one matrix or two. */
struct efs_gpu_ffn {
    float sum[2][EFS_GPU_TOKENS][EFS_GPU_THREADS];
};

/* Work of a block of threads: rows [row, row + EFS_GPU_ROWS) of one matrix or two, for the tokens of an expert. */
struct efs_gpu_rows {
    const uint16_t *matrix[2]; /* [rows][cols]; [1] NULL: one matrix */
    const float *x;            /* [...][cols] */
    const uint32_t *token;     /* row of x of each token; NULL: token t uses row t */
    uint32_t row, rows, cols, tokens;
    bool f16;
};

EFS_DEVICE float efs_gpu_float(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* An F16 or BF16 number as a float, exact. */
EFS_DEVICE float efs_gpu_widen(bool f16, uint32_t bits)
{
    if (!f16)
        return efs_gpu_float(bits << 16);
    const uint32_t magnitude = bits & 0x7fff, sign = (bits & 0x8000) << 16;
    if (magnitude >= 0x7c00)
        return efs_gpu_float(sign | 0x7f800000 | magnitude << 13);
    return efs_gpu_float(sign | 0x3f800000) * (efs_gpu_float(magnitude << 13) * 0x1p112f); /* exact, subnormals too */
}

/* Eight numbers of a row from column `at` on; numbers past its end are 0. */
EFS_DEVICE struct efs_gpu_quad efs_gpu_row_load(const uint16_t *row, uint32_t cols, uint32_t at)
{
    struct efs_gpu_quad w = {{0, 0, 0, 0}};

    if (cols % 8 == 0) /* then rows are aligned to 16 bytes */
        return efs_gpu_load_quad((const uint8_t *)(row + at));
    for (unsigned i = 0; i < 8; i++)
        if (at + i < cols)
            w.word[i / 2] |= (uint32_t)row[at + i] << 16 * (i % 2);
    return w;
}

/* Eight numbers of a vector. */
struct efs_gpu_eight {
    float v[8];
};

EFS_DEVICE struct efs_gpu_eight efs_gpu_vector_load(const float *x, uint32_t cols, uint32_t at)
{
    struct efs_gpu_eight eight = {{0}};

    if (cols % 8 == 0) {
        const struct efs_gpu_quad a = efs_gpu_load_quad((const uint8_t *)(x + at));
        const struct efs_gpu_quad b = efs_gpu_load_quad((const uint8_t *)(x + at + 4));
        for (unsigned i = 0; i < 4; i++) {
            eight.v[i] = efs_gpu_float(a.word[i]);
            eight.v[4 + i] = efs_gpu_float(b.word[i]);
        }
        return eight;
    }
    for (unsigned i = 0; i < 8; i++)
        if (at + i < cols)
            eight.v[i] = x[at + i];
    return eight;
}

/* Step: partial sums of this thread's columns of its row, for EFS_GPU_TOKENS tokens from first on. */
EFS_DEVICE void efs_gpu_ffn_dot(unsigned thread, const struct efs_gpu_rows *r, uint32_t first, struct efs_gpu_ffn *s)
{
    const uint32_t row = r->row + thread / EFS_GPU_LANES, lane = thread % EFS_GPU_LANES;
    const float *x[EFS_GPU_TOKENS];
    float sum[2][EFS_GPU_TOKENS] = {{0}};

    if (row >= r->rows)
        return;
    for (unsigned t = 0; t < EFS_GPU_TOKENS; t++) { /* past the last token: the last one again */
        const uint32_t token = first + t < r->tokens ? first + t : r->tokens - 1;
        x[t] = r->x + (size_t)(r->token != NULL ? r->token[token] : token) * r->cols;
    }
    for (uint32_t at = 8 * lane; at < r->cols; at += 8 * EFS_GPU_LANES) {
        struct efs_gpu_eight vector[EFS_GPU_TOKENS];
        for (unsigned t = 0; t < EFS_GPU_TOKENS; t++)
            vector[t] = efs_gpu_vector_load(x[t], r->cols, at);
        for (unsigned m = 0; m < 2; m++) {
            if (r->matrix[m] == NULL)
                continue;
            const struct efs_gpu_quad w = efs_gpu_row_load(r->matrix[m] + (size_t)row * r->cols, r->cols, at);
            for (unsigned i = 0; i < 8; i++) {
                const float v = efs_gpu_widen(r->f16, w.word[i / 2] >> 16 * (i % 2) & 0xffff);
                for (unsigned t = 0; t < EFS_GPU_TOKENS; t++)
                    sum[m][t] = fmaf(v, vector[t].v[i], sum[m][t]);
            }
        }
    }
    for (unsigned m = 0; m < 2; m++)
        for (unsigned t = 0; t < EFS_GPU_TOKENS; t++)
            s->sum[m][t][thread] = sum[m][t];
}

/* The product of a row of the block and a token: the sum over the row's threads. */
EFS_DEVICE float efs_gpu_ffn_product(const struct efs_gpu_ffn *s, unsigned matrix, unsigned token, unsigned row)
{
    float sum = 0;

    for (unsigned lane = 0; lane < EFS_GPU_LANES; lane++)
        sum += s->sum[matrix][token][row * EFS_GPU_LANES + lane];
    return sum;
}

/* Step: writes h of the tokens from first on (weight NULL), or their weighted contributions to y. */
EFS_DEVICE void efs_gpu_ffn_end(unsigned thread, const struct efs_gpu_rows *r, uint32_t first, const float *weight,
                                float *out, const struct efs_gpu_ffn *s)
{
    const unsigned row = thread / EFS_GPU_TOKENS, t = thread % EFS_GPU_TOKENS;

    if (row >= EFS_GPU_ROWS || r->row + row >= r->rows || first + t >= r->tokens)
        return;
    float v = efs_gpu_ffn_product(s, 0, t, row);
    if (weight != NULL)
        v *= weight[first + t];
    else
        v = v / (1 + expf(-v)) * efs_gpu_ffn_product(s, 1, t, row);
    out[(size_t)(first + t) * r->rows + r->row + row] = v;
}

/* Kernel: h of the routes of an expert, for EFS_GPU_ROWS rows of gate and up. */
EFS_DEVICE void efs_gpu_ffn_up_block(const struct efs_gpu_mixture *m, uint32_t expert, uint32_t b,
                                     struct efs_gpu_ffn *s)
{
    const struct efs_gpu_expert *e = &m->experts[expert];
    const struct efs_gpu_rows r = {{e->gate, e->up}, m->x,  m->token + e->first, b * EFS_GPU_ROWS, m->inner, m->hidden,
                                   e->count,         m->f16};

    for (uint32_t first = 0; r.row < r.rows && first < r.tokens; first += EFS_GPU_TOKENS) {
        EFS_GPU_STEP(efs_gpu_ffn_dot(thread, &r, first, s));
        EFS_GPU_STEP(efs_gpu_ffn_end(thread, &r, first, NULL, m->h + (size_t)e->first * m->inner, s));
    }
}

/* Kernel: contributions of an expert's routes to y, for EFS_GPU_ROWS rows of down. */
EFS_DEVICE void efs_gpu_ffn_down_block(const struct efs_gpu_mixture *m, uint32_t expert, uint32_t b,
                                       struct efs_gpu_ffn *s)
{
    const struct efs_gpu_expert *e = &m->experts[expert];
    const struct efs_gpu_rows r = {
        {e->down, NULL}, m->h + (size_t)e->first * m->inner, NULL, b * EFS_GPU_ROWS, m->hidden, m->inner, e->count,
        m->f16};

    for (uint32_t first = 0; r.row < r.rows && first < r.tokens; first += EFS_GPU_TOKENS) {
        EFS_GPU_STEP(efs_gpu_ffn_dot(thread, &r, first, s));
        EFS_GPU_STEP(
            efs_gpu_ffn_end(thread, &r, first, m->weight + e->first, m->part + (size_t)e->first * m->hidden, s));
    }
}

/* Step: sums y of a token. */
EFS_DEVICE void efs_gpu_ffn_sum_step(unsigned thread, const struct efs_gpu_mixture *m, uint32_t token, uint32_t b)
{
    const uint32_t row = b * EFS_GPU_THREADS + thread;
    float sum = 0;

    if (row >= m->hidden)
        return;
    for (uint32_t i = m->token_begin[token]; i < m->token_begin[token + 1]; i++)
        sum += m->part[(size_t)m->token_route[i] * m->hidden + row];
    m->y[(size_t)token * m->hidden + row] = sum;
}

/* Kernel: y of a token, EFS_GPU_THREADS rows. */
EFS_DEVICE void efs_gpu_ffn_sum_block(const struct efs_gpu_mixture *m, uint32_t token, uint32_t b)
{
    EFS_GPU_STEP(efs_gpu_ffn_sum_step(thread, m, token, b));
}

#endif
