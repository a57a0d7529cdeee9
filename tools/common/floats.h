/* SPDX-License-Identifier: Apache-2.0 */
/* floats.h - float32 to the formats of checkpoints, rounding to nearest even. */
#ifndef MKMODEL_FLOATS_H
#define MKMODEL_FLOATS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t mk_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float mk_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint16_t mk_bf16(float x)
{
    uint32_t bits = mk_float_bits(x);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static inline float mk_from_bf16(uint16_t x)
{
    return mk_bits_float((uint32_t)x << 16);
}

/* Values too large become the largest finite one. Both cases are computed and one is chosen: no branch to guess. */
static inline uint16_t mk_f16(float x)
{
    uint32_t bits = mk_float_bits(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    /* below 2^-14 values are multiples of 2^-24, which adding 0.5 rounds to */
    uint32_t small = mk_float_bits(mk_bits_float(size) + 0.5f) - mk_float_bits(0.5f);
    uint32_t large = ((size + 0xfffu + (size >> 13 & 1)) >> 13) - ((127u - 15u) << 10);
    large = large > 0x7bffu ? 0x7bffu : large;
    return (uint16_t)(sign | (size < 0x38800000u ? small : large));
}

static inline float mk_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, size = x & 0x7fffu;
    float value = size < 0x400u ? (float)size * 0x1p-24f : mk_bits_float((size << 13) + ((127u - 15u) << 23));
    return mk_bits_float(mk_float_bits(value) | sign);
}

/* FP8 with 4 exponent and 3 mantissa bits, no infinities; values too large become 448. */
static inline uint8_t mk_e4m3(float x)
{
    uint32_t bits = mk_float_bits(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    /* below 2^-6 values are multiples of 2^-9, which adding 2^14 rounds to */
    uint32_t small = mk_float_bits(mk_bits_float(size) + 16384.0f) - mk_float_bits(16384.0f);
    uint32_t large = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - ((127u - 7u) << 3);
    large = large > 0x7eu ? 0x7eu : large;
    return (uint8_t)(sign | (size < 0x3c800000u ? small : large));
}

#endif
