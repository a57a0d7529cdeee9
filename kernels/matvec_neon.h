/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_neon.h - what products on 64-bit Arm processors share, of BF16 and of F16. Private.
 */
#ifndef EFS_KERNELS_MATVEC_NEON_H
#define EFS_KERNELS_MATVEC_NEON_H

#include "simd_neon.h"

#define EFS_SM_AHEAD 4096
#define EFS_EXPONENTS_FIRST 0
#define EFS_MANY_ROWS 1
#define EFS_MANY_TOKENS 3
#define EFS_IN_REGISTER(v) ((void)(v))

typedef float32x4_t efs_floats;

EFS_INLINE efs_floats efs_load_floats(const float *p)
{
    return vld1q_f32(p);
}

EFS_INLINE void efs_store_floats(float *p, efs_floats v)
{
    vst1q_f32(p, v);
}

EFS_INLINE efs_floats efs_zero_floats(void)
{
    return vdupq_n_f32(0);
}

EFS_INLINE efs_floats efs_add_floats(efs_floats a, efs_floats b)
{
    return vaddq_f32(a, b);
}

EFS_INLINE float efs_total(efs_floats v)
{
    float32x2_t pair = vadd_f32(vget_low_f32(v), vget_high_f32(v));

    return vget_lane_f32(vpadd_f32(pair, pair), 0);
}

#include "matvec_f32.h"

#ifdef EFS_F16
EFS_INLINE efs_number efs_number_of(const efs_vector words[2], unsigned k)
{
    const float16x8_t halves = vreinterpretq_f16_u8(words[k / 2]);

    return vcvt_f32_f16(k % 2 == 0 ? vget_low_f16(halves) : vget_high_f16(halves));
}
#else
EFS_INLINE efs_number efs_number_of(const efs_vector words[2], unsigned k)
{
    if (k % 2 == 0)
        return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u8(words[k / 2]), 16));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u8(words[k / 2]), vdupq_n_u32(0xffff0000)));
}
#endif

EFS_INLINE efs_floats efs_multiply_add(efs_number number, efs_xs x, efs_floats sum)
{
    return vfmaq_f32(sum, number, x);
}

EFS_INLINE void efs_plain_words(const uint8_t *w, efs_vector words[2])
{
    words[0] = efs_load(w);
    words[1] = efs_load(w + EFS_LANES);
}

EFS_INLINE void efs_rotated_join(efs_vector e, efs_vector sm, efs_vector bytes[2])
{
    const uint8x16_t sign = vdupq_n_u8(0x80);

    bytes[0] = vbslq_u8(sign, e, sm);
    bytes[1] = vbslq_u8(sign, sm, e);
}

EFS_INLINE void efs_unpack_lanes(const efs_vector bytes[2], efs_vector words[2])
{
    efs_interleave(bytes[0], bytes[1], words);
}

#endif
