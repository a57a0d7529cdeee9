/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format_block.h - split and merge one block in plain C, straight from the definitions in kernels.h. Private.
 *
 * The scalar path uses only this. The vector paths use it for the last, shorter block of a tensor, compiled with their
 * processor flags: the loops have no dependencies, so the compiler vectorises them.
 */
#ifndef EFS_KERNELS_FORMAT_BLOCK_H
#define EFS_KERNELS_FORMAT_BLOCK_H

#include "ops.h"

#include <string.h>

/* Pack values[0..m) of `bits` bits each into planes. */
static inline void efs_planes_pack(const uint8_t *values, size_t m, unsigned bits, uint8_t *planes)
{
    size_t width = efs_plane_bytes(m, bits);
    unsigned shift = 0;

    memset(planes, 0, width);
    for (size_t start = 0; start < m; start += width, shift += bits) {
        size_t len = m - start < width ? m - start : width;
        for (size_t j = 0; j < len; j++)
            planes[j] = (uint8_t)(planes[j] | values[start + j] << shift);
    }
}

/* The inverse. */
static inline void efs_planes_unpack(const uint8_t *planes, size_t m, unsigned bits, uint8_t *values)
{
    size_t width = efs_plane_bytes(m, bits);
    unsigned shift = 0;

    for (size_t start = 0; start < m; start += width, shift += bits) {
        size_t len = m - start < width ? m - start : width;
        for (size_t j = 0; j < len; j++)
            values[start + j] = (uint8_t)(planes[j] >> shift & ((1u << bits) - 1));
    }
}

static inline void efs_split_bf16(const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm)
{
    for (size_t i = 0; i < m; i++) {
        uint8_t low = src[2 * i], high = src[2 * i + 1];
        e[i] = (uint8_t)(high << 1 | low >> 7);
        sm[i] = (uint8_t)((high & 0x80) | (low & 0x7f));
    }
}

static inline void efs_merge_bf16(const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst)
{
    for (size_t i = 0; i < m; i++) {
        dst[2 * i] = (uint8_t)(e[i] << 7 | (sm[i] & 0x7f));
        dst[2 * i + 1] = (uint8_t)((sm[i] & 0x80) | e[i] >> 1);
    }
}

static inline void efs_split_f32(const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm)
{
    for (size_t i = 0; i < m; i++) {
        uint8_t low = src[4 * i + 2], high = src[4 * i + 3];
        e[i] = (uint8_t)(high << 1 | low >> 7);
        sm[i] = (uint8_t)((high & 0x80) | (low & 0x7f));
        sm[m + 2 * i] = src[4 * i];
        sm[m + 2 * i + 1] = src[4 * i + 1];
    }
}

static inline void efs_merge_f32(const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst)
{
    for (size_t i = 0; i < m; i++) {
        dst[4 * i] = sm[m + 2 * i];
        dst[4 * i + 1] = sm[m + 2 * i + 1];
        dst[4 * i + 2] = (uint8_t)(e[i] << 7 | (sm[i] & 0x7f));
        dst[4 * i + 3] = (uint8_t)((sm[i] & 0x80) | e[i] >> 1);
    }
}

/* A byte of 1 sign, 5 exponent and 2 mantissa bits: an E5M2, or the high byte of an F16. stride: bytes an element. */
static inline void efs_split_e5(const uint8_t *src, size_t stride, size_t m, uint8_t *e, uint8_t *sm)
{
    uint8_t part[EFS_BLOCK]; /* one buffer, for small stacks */

    for (size_t i = 0; i < m; i++) {
        uint8_t high = src[stride * i];
        e[i] = high >> 2 & 0x1f;
        part[i] = high & 3;
    }
    efs_planes_pack(part, m, 2, sm);
    for (size_t i = 0; i < m; i++)
        part[i] = src[stride * i] >> 7;
    efs_planes_pack(part, m, 1, sm + efs_plane_bytes(m, 2));
}

static inline void efs_merge_e5(const uint8_t *e, const uint8_t *sm, size_t stride, size_t m, uint8_t *dst)
{
    const uint8_t *signs = sm + efs_plane_bytes(m, 2);
    const size_t width = efs_plane_bytes(m, 1);
    uint8_t part[EFS_BLOCK]; /* mantissa, and the sign above it */
    unsigned shift = 0;

    efs_planes_unpack(sm, m, 2, part);
    for (size_t start = 0; start < m; start += width, shift++) {
        size_t len = m - start < width ? m - start : width;
        for (size_t j = 0; j < len; j++)
            part[start + j] = (uint8_t)(part[start + j] | (signs[j] >> shift & 1) << 7);
    }
    for (size_t i = 0; i < m; i++)
        dst[stride * i] = (uint8_t)(part[i] | (e[i] & 0x1f) << 2);
}

static inline void efs_split_f16(const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm)
{
    for (size_t i = 0; i < m; i++)
        sm[i] = src[2 * i];
    efs_split_e5(src + 1, 2, m, e, sm + m);
}

static inline void efs_merge_f16(const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst)
{
    for (size_t i = 0; i < m; i++)
        dst[2 * i] = sm[i];
    efs_merge_e5(e, sm + m, 2, m, dst + 1);
}

static inline void efs_split_e4m3(const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm)
{
    uint8_t nibble[EFS_BLOCK];

    for (size_t i = 0; i < m; i++) {
        e[i] = src[i] >> 3 & 0xf;
        nibble[i] = (uint8_t)((src[i] >> 4 & 8) | (src[i] & 7));
    }
    efs_planes_pack(nibble, m, 4, sm);
}

static inline void efs_merge_e4m3(const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst)
{
    uint8_t nibble[EFS_BLOCK];

    efs_planes_unpack(sm, m, 4, nibble);
    for (size_t i = 0; i < m; i++)
        dst[i] = (uint8_t)((nibble[i] & 8) << 4 | (e[i] & 0xf) << 3 | (nibble[i] & 7));
}

static inline void efs_split_block(enum efs_format format, const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm)
{
    switch (format) {
    case EFS_FORMAT_BF16:
        efs_split_bf16(src, m, e, sm);
        break;
    case EFS_FORMAT_F16:
        efs_split_f16(src, m, e, sm);
        break;
    case EFS_FORMAT_F32:
        efs_split_f32(src, m, e, sm);
        break;
    case EFS_FORMAT_E4M3:
        efs_split_e4m3(src, m, e, sm);
        break;
    case EFS_FORMAT_E5M2:
        efs_split_e5(src, 1, m, e, sm);
        break;
    case EFS_FORMAT_BYTES:
    case EFS_FORMAT_COUNT:
        break;
    }
}

static inline void efs_merge_block(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst)
{
    switch (format) {
    case EFS_FORMAT_BF16:
        efs_merge_bf16(e, sm, m, dst);
        break;
    case EFS_FORMAT_F16:
        efs_merge_f16(e, sm, m, dst);
        break;
    case EFS_FORMAT_F32:
        efs_merge_f32(e, sm, m, dst);
        break;
    case EFS_FORMAT_E4M3:
        efs_merge_e4m3(e, sm, m, dst);
        break;
    case EFS_FORMAT_E5M2:
        efs_merge_e5(e, sm, 1, m, dst);
        break;
    case EFS_FORMAT_BYTES:
    case EFS_FORMAT_COUNT:
        break;
    }
}

#endif
