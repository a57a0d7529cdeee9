/*
 * merge_avx512.h - 64 exponents in a register and their SM, made into elements. Private.
 *
 * Only for whole blocks, where the planes' widths are known: a plane of 1, 2 or 4-bit values of EFS_BLOCK elements is
 * 1024, 2048 or 4096 bytes wide, so the 1024 elements of a *unit* have the same shift in every plane.
 */
#ifndef EFS_KERNELS_MERGE_AVX512_H
#define EFS_KERNELS_MERGE_AVX512_H

#include "ops.h"

#include <immintrin.h>

#define EFS_INLINE static inline __attribute__((always_inline))
#define EFS_UNIT 1024
#define EFS_UNITS (EFS_BLOCK / EFS_UNIT)

/* a where mask has ones, else b. */
EFS_INLINE __m512i efs_select(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}

/* Control for efs_shift: every byte of the result is the 8 bits that begin `bits` above the byte's own place (they
 * wrap around in 64 bits, and the caller masks what it does not want). bits may be negative. */
EFS_INLINE __m512i efs_shift_control(int bits)
{
    return _mm512_add_epi8(_mm512_set1_epi64(0x3830282018100800), _mm512_set1_epi8((char)bits));
}

EFS_INLINE __m512i efs_shift(__m512i control, __m512i v)
{
    return _mm512_multishift_epi64_epi8(control, v);
}

EFS_INLINE void efs_put(uint8_t *dst, __m512i v, bool stream)
{
    if (stream)
        _mm512_stream_si512((void *)dst, v);
    else
        _mm512_storeu_si512(dst, v);
}

/* Bytes low[i], high[i] as 16-bit words in order: words 0..31 and 32..63. */
EFS_INLINE void efs_interleave(__m512i low, __m512i high, __m512i words[2])
{
    const __m512i step =
        _mm512_set_epi64(0x1f1f1e1e1d1d1c1c, 0x1b1b1a1a19191818, 0x1717161615151414, 0x1313121211111010,
                         0x0f0f0e0e0d0d0c0c, 0x0b0b0a0a09090808, 0x0707060605050404, 0x0303020201010000);
    const __m512i first = _mm512_or_si512(step, _mm512_set1_epi16(0x4000)); /* bit 6: from the second operand */

    words[0] = _mm512_permutex2var_epi8(low, first, high);
    words[1] = _mm512_permutex2var_epi8(low, _mm512_or_si512(first, _mm512_set1_epi8(32)), high);
}

/* sign << 15 | e << 7 | mantissa, from e and sign << 7 | mantissa. */
EFS_INLINE void efs_join_bf16(__m512i e, __m512i sm, __m512i words[2])
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    __m512i low = efs_select(sign, _mm512_slli_epi16(e, 7), sm);
    __m512i high = efs_select(sign, sm, _mm512_srli_epi16(e, 1));

    efs_interleave(low, high, words);
}

/* Sign, exponent, mantissa bytes: mantissa has its bits below `exponent_at`, sign its own in bit 7; others are junk. */
EFS_INLINE __m512i efs_join_small(__m512i sign, __m512i e, __m512i mantissa, unsigned exponent_at)
{
    __m512i shifted = exponent_at == 2 ? _mm512_slli_epi16(e, 2) : _mm512_slli_epi16(e, 3);
    __m512i bits = efs_select(_mm512_set1_epi8((char)((1 << exponent_at) - 1)), mantissa, shifted);

    return efs_select(_mm512_set1_epi8((char)0x80), sign, bits);
}

/* sign << 7 | e << 2 | mantissa for the elements at `at` in `unit`, from the planes of 2-bit mantissas and signs. */
EFS_INLINE __m512i efs_join_e5(const uint8_t *planes, unsigned unit, size_t at, __m512i e)
{
    __m512i mantissas = _mm512_loadu_si512(planes + unit % 2 * EFS_UNIT + at);
    __m512i signs = _mm512_loadu_si512(planes + EFS_BLOCK / 4 + at);

    return efs_join_small(efs_shift(efs_shift_control((int)unit - 7), signs), e,
                          efs_shift(efs_shift_control((int)(unit / 2) * 2), mantissas), 2);
}

EFS_INLINE void efs_prefetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* Ask for what lies `ahead` bytes after at, in a run of run bytes of each block; blocks' runs are step bytes apart. */
EFS_INLINE void efs_prefetch_run(const uint8_t *run_begin, size_t at, size_t ahead, size_t run, size_t step)
{
    size_t then = at + ahead;
    efs_prefetch(run_begin + (then < run ? then : then - run + step));
}

/*
 * While 64 elements are merged, ask for a piece of the SM that comes later, evenly: bursts of requests cost more than
 * they gain (measured on Zen 4). Planes are read several times within a block, so they are asked for a block ahead.
 */
EFS_INLINE void efs_prefetch_sm(enum efs_format format, unsigned unit, size_t at, const uint8_t *sm, bool stream)
{
    const size_t ahead = 1024, i = unit * EFS_UNIT + at;
    const size_t e5_planes = EFS_BLOCK / 4 + EFS_BLOCK / 8;

    switch (format) {
    case EFS_FORMAT_BF16:
        if (stream)
            efs_prefetch(sm + i + ahead);
        break;
    case EFS_FORMAT_F16:
        efs_prefetch_run(sm, i, ahead, EFS_BLOCK, EFS_BLOCK + e5_planes);
        efs_prefetch(sm + EFS_BLOCK + e5_planes + EFS_BLOCK + i * 3 / 8);
        break;
    case EFS_FORMAT_F32:
        if (!stream)
            break;
        efs_prefetch_run(sm, i, ahead, EFS_BLOCK, 3 * EFS_BLOCK);
        efs_prefetch_run(sm + EFS_BLOCK, 2 * i, ahead, 2 * EFS_BLOCK, 3 * EFS_BLOCK);
        efs_prefetch_run(sm + EFS_BLOCK, 2 * i + 64, ahead, 2 * EFS_BLOCK, 3 * EFS_BLOCK);
        break;
    case EFS_FORMAT_E4M3:
        efs_prefetch(sm + EFS_BLOCK / 2 + i / 2);
        break;
    case EFS_FORMAT_E5M2:
        efs_prefetch(sm + e5_planes + i * 3 / 8);
        break;
    case EFS_FORMAT_BYTES:
    case EFS_FORMAT_COUNT:
        break;
    }
}

/* Elements [unit * EFS_UNIT + at, + 64) of a whole block, whose first element goes to dst and whose SM begins at sm. */
EFS_INLINE void efs_merge_64(enum efs_format format, unsigned unit, size_t at, __m512i e, const uint8_t *sm,
                             uint8_t *dst, bool stream)
{
    size_t i = unit * EFS_UNIT + at;
    __m512i words[2];

    switch (format) {
    case EFS_FORMAT_BYTES:
        efs_put(dst + i, e, stream);
        break;
    case EFS_FORMAT_BF16:
        efs_join_bf16(e, _mm512_loadu_si512(sm + i), words);
        efs_put(dst + 2 * i, words[0], stream);
        efs_put(dst + 2 * i + 64, words[1], stream);
        break;
    case EFS_FORMAT_F16:
        efs_interleave(_mm512_loadu_si512(sm + i), efs_join_e5(sm + EFS_BLOCK, unit, at, e), words);
        efs_put(dst + 2 * i, words[0], stream);
        efs_put(dst + 2 * i + 64, words[1], stream);
        break;
    case EFS_FORMAT_F32:
        efs_join_bf16(e, _mm512_loadu_si512(sm + i), words);
        for (unsigned half = 0; half < 2; half++) {
            const __m512i step =
                _mm512_set_epi64(0x002f000f002e000e, 0x002d000d002c000c, 0x002b000b002a000a, 0x0029000900280008,
                                 0x0027000700260006, 0x0025000500240004, 0x0023000300220002, 0x0021000100200000);
            __m512i low = _mm512_loadu_si512(sm + EFS_BLOCK + 2 * i + 64 * half);
            uint8_t *to = dst + 4 * i + 128 * half;
            efs_put(to, _mm512_permutex2var_epi16(low, step, words[half]), stream);
            efs_put(to + 64, _mm512_permutex2var_epi16(low, _mm512_or_si512(step, _mm512_set1_epi16(16)), words[half]),
                    stream);
        }
        break;
    case EFS_FORMAT_E4M3: {
        __m512i nibbles = _mm512_loadu_si512(sm + unit % 4 * EFS_UNIT + at);
        int shift = (int)(unit / 4) * 4;
        efs_put(dst + i,
                efs_join_small(efs_shift(efs_shift_control(shift - 4), nibbles), e,
                               efs_shift(efs_shift_control(shift), nibbles), 3),
                stream);
        break;
    }
    case EFS_FORMAT_E5M2:
        efs_put(dst + i, efs_join_e5(sm, unit, at, e), stream);
        break;
    case EFS_FORMAT_COUNT:
        break;
    }
}

#endif
