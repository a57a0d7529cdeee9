/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_input.c - lays out vectors for products (layout: matvec_ops.h).
 */
#include "matvec_ops.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define INPUT_MAGIC 0x6e693031u

/* Numbers from token to token. The gap avoids that tokens of wide inputs map to the same cache sets. */
static size_t token_numbers(uint32_t cols)
{
    return ((size_t)cols + EFS_GROUP - 1) / EFS_GROUP * EFS_GROUP + EFS_GROUP;
}

size_t efs_input_bytes(uint32_t cols, uint32_t tokens)
{
    if (cols == 0 || cols > EFS_COLS_MAX || tokens == 0 || tokens > EFS_TOKENS_MAX)
        return 0;
    return sizeof(struct efs_input) + tokens * token_numbers(cols) * sizeof(float);
}

uint16_t efs_rounded_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (f != f)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* f as the nearest F16 number, ties to even; a NaN stays a NaN. */
static float input_rounded_f16(float f)
{
    const float size = f < 0 ? -f : f;
    uint32_t bits;

    if (f != f || size >= 65520)
        return f != f ? f : f < 0 ? -INFINITY : INFINITY;
    if (size < 0x1p-14f) /* a multiple of 2^-24: adding makes it one */
        return copysignf((size + 0.75f) - 0.75f, f);
    memcpy(&bits, &f, sizeof(bits));
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~(uint32_t)0x1fff;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Number i of x as a float, rounded to BF16 or F16 if the type says so. */
static float input_number(enum efs_input_type type, const void *x, size_t i)
{
    uint16_t half;
    float f;

    if (type == EFS_INPUT_BF16 || type == EFS_INPUT_BF16_DOT)
        return efs_widened((const uint8_t *)x + 2 * i);
    if (type == EFS_INPUT_F16)
        return efs_f16_widened((const uint8_t *)x + 2 * i);
    memcpy(&f, (const uint8_t *)x + 4 * i, sizeof(f));
    if (type == EFS_INPUT_F32 || type == EFS_INPUT_F32_BY_F16)
        return f;
    if (type == EFS_INPUT_F32_TO_F16)
        return input_rounded_f16(f);
    half = efs_rounded_bf16(f);
    return efs_widened((const uint8_t *)&half);
}

void efs_widen(bool f16, void *memory, size_t n)
{
    const uint8_t *narrow = memory;

    for (size_t i = n; i-- > 0;) { /* from the end, so that unread numbers are not overwritten */
        float f = f16 ? efs_f16_widened(narrow + 2 * i) : efs_widened(narrow + 2 * i);
        memcpy((uint8_t *)memory + 4 * i, &f, sizeof(f));
    }
}

/* Numbers first..first + n - 1 of x, n <= EFS_GROUP, as a group of floats. */
static void put_floats(enum efs_input_type type, const void *x, size_t first, size_t n, float *group)
{
    for (unsigned c = 0; c < EFS_GROUP; c++)
        group[efs_float_place(c)] = c < n ? input_number(type, x, first + c) : 0;
}

/* The same as a group of BF16. */
static void put_bf16(enum efs_input_type type, const void *x, size_t first, size_t n, uint16_t *group)
{
    for (unsigned c = 0; c < EFS_GROUP; c++)
        group[efs_pair_place(c)] = c < n ? efs_rounded_bf16(input_number(type, x, first + c)) : 0;
}

/* The same as a group of floats in order, for matrices of F16. */
static void put_in_order(enum efs_input_type type, const void *x, size_t first, size_t n, float *group)
{
    for (unsigned c = 0; c < EFS_GROUP; c++)
        group[c] = c < n ? input_number(type, x, first + c) : 0;
}

/* The path's products in ggml's order; NULL: not implemented. */
static const struct efs_matvec_ops *input_dot(void)
{
    const struct efs_matvec_ops *dot = efs_ops()->matvec->dot;

    return dot != NULL && (dot->supported == NULL || dot->supported()) ? dot : NULL;
}

const char *efs_matvec_order(void)
{
    return input_dot() != NULL ? input_dot()->order : NULL;
}

int efs_input_prepare(enum efs_input_type type, const void *x, size_t x_stride, uint32_t cols, uint32_t tokens,
                      void *memory)
{
    struct efs_input *input = memory;

    if (efs_input_bytes(cols, tokens) == 0 || (unsigned)type > EFS_INPUT_F32_TO_F16 || x == NULL || memory == NULL ||
        (uintptr_t)memory % EFS_MATVEC_ALIGN != 0)
        return -EINVAL;
    *input = (struct efs_input){.magic = INPUT_MAGIC, .cols = cols, .tokens = tokens};
    if (type >= EFS_INPUT_F32_BY_F16)
        input->products = EFS_PRODUCTS_F16;
    else if ((type == EFS_INPUT_BF16_DOT || type == EFS_INPUT_F32_DOT) && input_dot() != NULL)
        input->products = EFS_PRODUCTS_DOT;
    const bool pairs = input->products == EFS_PRODUCTS_DOT && input_dot()->pairs;
    input->stride = token_numbers(cols) * (pairs ? sizeof(uint16_t) : sizeof(float));
    for (size_t t = 0; t < tokens; t++) {
        uint8_t *to = input->x + t * input->stride;
        for (size_t c = 0; c < cols; c += EFS_GROUP) {
            size_t n = cols - c < EFS_GROUP ? cols - c : EFS_GROUP;
            if (pairs)
                put_bf16(type, x, t * x_stride + c, n, (uint16_t *)(void *)to + c);
            else if (input->products == EFS_PRODUCTS_F16)
                put_in_order(type, x, t * x_stride + c, n, (float *)(void *)to + c);
            else
                put_floats(type, x, t * x_stride + c, n, (float *)(void *)to + c);
        }
    }
    return 0;
}

const struct efs_input *efs_input_checked(const void *memory, const struct efs_matrix *w)
{
    const struct efs_input *input = memory;

    if (memory == NULL || (uintptr_t)memory % EFS_MATVEC_ALIGN != 0 || input->magic != INPUT_MAGIC ||
        input->cols != w->cols || w->f16 != (input->products == EFS_PRODUCTS_F16) || input->tokens == 0 ||
        input->tokens > EFS_TOKENS_MAX)
        return NULL;
    return input;
}

const struct efs_matvec_ops *efs_input_ops(const struct efs_input *input)
{
    const struct efs_matvec_ops *ops = efs_ops()->matvec;

    return input->products == EFS_PRODUCTS_DOT ? ops->dot : input->products == EFS_PRODUCTS_F16 ? ops->f16 : ops;
}
