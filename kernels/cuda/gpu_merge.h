/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_merge.h - merges up to sixteen exponents of a block with their SM; kernels.h defines the layout. Private to
 * cuda/.
 */
#ifndef EFS_KERNELS_GPU_MERGE_H
#define EFS_KERNELS_GPU_MERGE_H

#include "gpu_device.h"

/* Value i of a plane stream of m values. */
EFS_DEVICE uint32_t efs_gpu_plane_value(const uint8_t *planes, uint32_t m, unsigned bits, uint32_t i)
{
    const uint32_t width = (uint32_t)efs_plane_bytes(m, bits);

    return (uint32_t)planes[i % width] >> i / width * bits & ((1u << bits) - 1);
}

/* Element i of a block of m, straight from the definition in kernels.h: slow, for blocks that are not whole. */
EFS_DEVICE uint32_t efs_gpu_element(uint32_t format, uint32_t e, const uint8_t *sm, uint32_t m, uint32_t i)
{
    const uint8_t *planes = format == EFS_FORMAT_F16 ? sm + m : sm;
    uint32_t nibble;

    switch (format) {
    case EFS_FORMAT_BF16:
        return (sm[i] & 0x80u) << 8 | e << 7 | (sm[i] & 0x7fu);
    case EFS_FORMAT_F32:
        return (sm[i] & 0x80u) << 24 | e << 23 | (sm[i] & 0x7fu) << 16 | (uint32_t)sm[m + 2 * i + 1] << 8 |
               sm[m + 2 * i];
    case EFS_FORMAT_F16:
    case EFS_FORMAT_E5M2:
        e = efs_gpu_plane_value(planes + efs_plane_bytes(m, 2), m, 1, i) << 7 | (e & 0x1f) << 2 |
            efs_gpu_plane_value(planes, m, 2, i);
        return format == EFS_FORMAT_F16 ? e << 8 | sm[i] : e;
    case EFS_FORMAT_E4M3:
        nibble = efs_gpu_plane_value(sm, m, 4, i);
        return (nibble & 8) << 4 | (e & 0xf) << 3 | (nibble & 7);
    default:
        return e;
    }
}

EFS_DEVICE unsigned efs_gpu_element_bytes(uint32_t format)
{
    return format == EFS_FORMAT_F32 ? 4 : format == EFS_FORMAT_BF16 || format == EFS_FORMAT_F16 ? 2 : 1;
}

/* Four exponents of eight bits and their SM: the high byte of each element, and the one below it. */
EFS_DEVICE void efs_gpu_merge_e8(uint32_t e, uint32_t sm, uint32_t *low, uint32_t *high)
{
    *low = (e << 7 & 0x80808080) | (sm & 0x7f7f7f7f);
    *high = (sm & 0x80808080) | (e >> 1 & 0x7f7f7f7f);
}

/* Elements begin..begin + 15 of planes of a whole block, each in the low bits of a byte. */
EFS_DEVICE struct efs_gpu_quad efs_gpu_planes_of_block(const uint8_t *planes, unsigned bits, uint32_t begin)
{
    const uint32_t width = EFS_BLOCK * bits / 8, mask = 0x01010101u * ((1u << bits) - 1);
    struct efs_gpu_quad v = efs_gpu_load_quad(planes + begin % width);

    for (unsigned i = 0; i < 4; i++)
        v.word[i] = v.word[i] >> begin / width * bits & mask;
    return v;
}

/* Four bytes of 1 sign, 5 exponent and 2 mantissa bits. */
EFS_DEVICE uint32_t efs_gpu_merge_e5(uint32_t e, uint32_t mantissa, uint32_t sign)
{
    return sign << 7 | (e & 0x1f1f1f1f) << 2 | mantissa;
}

/* Stores sixteen elements of a whole block of which each has its highest byte in *high and the byte below that in *low:
 * 32 bytes, or 64 of F32, whose two low bytes come from sm. */
EFS_DEVICE void efs_gpu_merge_high(uint32_t format, const struct efs_gpu_quad *low, const struct efs_gpu_quad *high,
                                   const uint8_t *sm, uint32_t begin, uint8_t *dst)
{
    for (unsigned i = 0; i < 4; i += 2) { /* two elements a word */
        const uint32_t w0 = efs_gpu_pick(low->word[i], high->word[i], 0x5140);
        const uint32_t w1 = efs_gpu_pick(low->word[i], high->word[i], 0x7362);
        const uint32_t w2 = efs_gpu_pick(low->word[i + 1], high->word[i + 1], 0x5140);
        const uint32_t w3 = efs_gpu_pick(low->word[i + 1], high->word[i + 1], 0x7362);
        if (format != EFS_FORMAT_F32) {
            efs_gpu_store_quad(dst + 2 * begin + 8 * i, w0, w1, w2, w3);
            continue;
        }
        const struct efs_gpu_quad rest = efs_gpu_load_quad(sm + EFS_BLOCK + 2 * begin + 8 * i);
        efs_gpu_store_quad(dst + 4 * begin + 16 * i, efs_gpu_pick(rest.word[0], w0, 0x5410),
                           efs_gpu_pick(rest.word[0], w0, 0x7632), efs_gpu_pick(rest.word[1], w1, 0x5410),
                           efs_gpu_pick(rest.word[1], w1, 0x7632));
        efs_gpu_store_quad(dst + 4 * begin + 16 * i + 16, efs_gpu_pick(rest.word[2], w2, 0x5410),
                           efs_gpu_pick(rest.word[2], w2, 0x7632), efs_gpu_pick(rest.word[3], w3, 0x5410),
                           efs_gpu_pick(rest.word[3], w3, 0x7632));
    }
}

/* Stores the elements begin..begin + 15 of a whole block by loads and stores of 16 bytes; begin is a multiple of 16. */
EFS_DEVICE void efs_gpu_merge_whole(uint32_t format, struct efs_gpu_quad e, const uint8_t *sm, uint32_t begin,
                                    uint8_t *dst)
{
    const uint8_t *planes = format == EFS_FORMAT_F16 ? sm + EFS_BLOCK : sm;
    struct efs_gpu_quad a, b;

    switch (format) {
    case EFS_FORMAT_BYTES:
        efs_gpu_store_quad(dst + begin, e.word[0], e.word[1], e.word[2], e.word[3]);
        return;
    case EFS_FORMAT_E4M3:
        a = efs_gpu_planes_of_block(sm, 4, begin);
        for (unsigned i = 0; i < 4; i++)
            a.word[i] = (a.word[i] & 0x08080808) << 4 | (e.word[i] & 0x0f0f0f0f) << 3 | (a.word[i] & 0x07070707);
        efs_gpu_store_quad(dst + begin, a.word[0], a.word[1], a.word[2], a.word[3]);
        return;
    case EFS_FORMAT_F16:
    case EFS_FORMAT_E5M2:
        a = efs_gpu_planes_of_block(planes, 2, begin);
        b = efs_gpu_planes_of_block(planes + EFS_BLOCK / 4, 1, begin);
        for (unsigned i = 0; i < 4; i++)
            b.word[i] = efs_gpu_merge_e5(e.word[i], a.word[i], b.word[i]);
        if (format == EFS_FORMAT_E5M2) {
            efs_gpu_store_quad(dst + begin, b.word[0], b.word[1], b.word[2], b.word[3]);
            return;
        }
        a = efs_gpu_load_quad(sm + begin);
        break;
    default: /* BF16, and the two high bytes of F32 */
        a = efs_gpu_load_quad(sm + begin);
        for (unsigned i = 0; i < 4; i++)
            efs_gpu_merge_e8(e.word[i], a.word[i], &a.word[i], &b.word[i]);
        break;
    }
    efs_gpu_merge_high(format, &a, &b, sm, begin, dst);
}

/* Stores count <= 4 elements of a block of m, from element begin on, whose exponents are the bytes of e. */
EFS_DEVICE void efs_gpu_merge_few(uint32_t format, uint32_t e, const uint8_t *sm, uint32_t m, uint32_t begin,
                                  uint32_t count, uint8_t *dst)
{
    const unsigned bytes = efs_gpu_element_bytes(format);

    for (uint32_t i = 0; i < count; i++) {
        const uint32_t value = efs_gpu_element(format, e >> 8 * i & 0xff, sm, m, begin + i);
        for (unsigned b = 0; b < bytes; b++)
            dst[(size_t)(begin + i) * bytes + b] = (uint8_t)(value >> 8 * b);
    }
}

/* Stores count <= 16 elements of a block of m, from element begin on; e has their exponents, sm and dst are those of
 * the whole block. If m is EFS_BLOCK, begin is a multiple of 16 and count is 16. */
EFS_DEVICE void efs_gpu_merge(uint32_t format, struct efs_gpu_quad e, const uint8_t *sm, uint32_t m, uint32_t begin,
                              uint32_t count, uint8_t *dst)
{
    if (m == EFS_BLOCK) {
        efs_gpu_merge_whole(format, e, sm, begin, dst);
        return;
    }
    EFS_GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        if (4 * i < count)
            efs_gpu_merge_few(format, e.word[i], sm, m, begin + 4 * i, count - 4 * i < 4 ? count - 4 * i : 4, dst);
}

/* SM bytes of a whole block. */
EFS_DEVICE uint32_t efs_gpu_block_sm_bytes(uint32_t format)
{
    switch (format) {
    case EFS_FORMAT_BF16:
        return EFS_BLOCK;
    case EFS_FORMAT_F32:
        return 3 * EFS_BLOCK;
    case EFS_FORMAT_F16:
        return EFS_BLOCK + EFS_BLOCK / 4 + EFS_BLOCK / 8;
    case EFS_FORMAT_E4M3:
        return EFS_BLOCK / 2;
    case EFS_FORMAT_E5M2:
        return EFS_BLOCK / 4 + EFS_BLOCK / 8;
    default:
        return 0;
    }
}

#endif
