/*
 * encode_avx512.c - split and cascade coding with AVX-512 VBMI2, and the table of the AVX-512 path.
 */
#include "format_block.h"
#include "histogram.h"
#include "merge_avx512.h"
#include "paths_avx512.h"

/* The three symbols of a level, and which of them are in use. */
struct level_table {
    __m512i symbol[3];
    __mmask64 used[3];
};

EFS_INLINE struct level_table load_level(const struct efs_cascade_block *plan, unsigned level)
{
    struct level_table t;

    for (unsigned r = 0; r < 3; r++) {
        t.symbol[r] = _mm512_set1_epi8((char)plan->table[level][r]);
        t.used[r] = plan->ranked[level] > r ? UINT64_MAX : 0;
    }
    return t;
}

/* Codes of 64 symbols; those that escape go to *escaped, which moves on. Lanes that are not valid get code 0. */
EFS_INLINE __m512i codes_64(__m512i v, const struct level_table *t, __mmask64 valid, uint8_t **escaped)
{
    __mmask64 is0 = _mm512_mask_cmpeq_epi8_mask(t->used[0], v, t->symbol[0]);
    __mmask64 is1 = _mm512_mask_cmpeq_epi8_mask(t->used[1], v, t->symbol[1]);
    __mmask64 is2 = _mm512_mask_cmpeq_epi8_mask(t->used[2], v, t->symbol[2]);
    __mmask64 escapes = valid & ~(is0 | is1 | is2);
    __m512i codes = _mm512_maskz_mov_epi8(is1 & valid, _mm512_set1_epi8(1));

    codes = _mm512_mask_mov_epi8(codes, is2 & valid, _mm512_set1_epi8(2));
    codes = _mm512_mask_mov_epi8(codes, escapes, _mm512_set1_epi8(3));
    _mm512_storeu_si512(*escaped, _mm512_maskz_compress_epi8(escapes, v));
    *escaped += __builtin_popcountll(escapes);
    return codes;
}

/* One level of size symbols: planes to dst, the escaped symbols to escaped, which has room for a vector more. */
static void encode_level(const uint8_t *symbols, size_t size, const struct level_table *t, uint8_t *dst,
                         uint8_t *escaped)
{
    size_t width = efs_plane_bytes(size, 2);
    unsigned shift = 0;

    for (size_t start = 0; start < size; start += width, shift += 2) {
        const __m128i count = _mm_cvtsi32_si128((int)shift);
        size_t len = size - start < width ? size - start : width;
        for (size_t j = 0; j < width; j += 64) {
            size_t left = len > j ? len - j : 0;
            __mmask64 valid = left < 64 ? _bzhi_u64(UINT64_MAX, (uint32_t)left) : UINT64_MAX;
            __mmask64 inside = width - j < 64 ? _bzhi_u64(UINT64_MAX, (uint32_t)(width - j)) : UINT64_MAX;
            __m512i v = _mm512_maskz_loadu_epi8(valid, symbols + start + j);
            __m512i codes = _mm512_sll_epi16(codes_64(v, t, valid, &escaped), count); /* codes stay in their bytes */
            if (start > 0)
                codes = _mm512_or_si512(codes, _mm512_maskz_loadu_epi8(inside, dst + j));
            _mm512_mask_storeu_epi8(dst + j, inside, codes);
        }
    }
}

void efs_encode_avx512(const struct efs_cascade_block *plan, const uint8_t *symbols, uint8_t *dst)
{
    uint8_t buffers[2][EFS_SCRATCH];

    for (unsigned level = 0; level < plan->levels; level++) {
        const struct level_table t = load_level(plan, level);
        encode_level(symbols, plan->size[level], &t, dst, buffers[level % 2]);
        symbols = buffers[level % 2];
        dst += efs_plane_bytes(plan->size[level], 2);
    }
    memcpy(dst, symbols, plan->size[plan->levels]);
}

/* The even and the odd bytes of 128. */
EFS_INLINE __m512i even_bytes(__m512i a, __m512i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)), _mm512_cvtepi16_epi8(b), 1);
}

EFS_INLINE __m512i odd_bytes(__m512i a, __m512i b)
{
    return even_bytes(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
}

static void split_bf16(const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm)
{
    const __m512i sign = _mm512_set1_epi8((char)0x80), last = _mm512_set1_epi8(1);
    size_t i = 0;

    for (; i + 64 <= m; i += 64) {
        __m512i a = _mm512_loadu_si512(src + 2 * i), b = _mm512_loadu_si512(src + 2 * i + 64);
        __m512i low = even_bytes(a, b), high = odd_bytes(a, b);
        _mm512_storeu_si512(e + i, efs_select(last, _mm512_srli_epi16(low, 7), _mm512_slli_epi16(high, 1)));
        _mm512_storeu_si512(sm + i, efs_select(sign, high, low));
    }
    efs_split_bf16(src + 2 * i, m - i, e + i, sm + i);
}

void efs_split_avx512(enum efs_format format, const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm)
{
    if (format == EFS_FORMAT_BF16)
        split_bf16(src, m, e, sm);
    else
        efs_split_block(format, src, m, e, sm);
}

static void stream_end(void)
{
    _mm_sfence();
}

static bool avx512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

const struct efs_kernel_ops efs_ops_avx512 = {
    .name = "avx512",
    .supported = avx512_supported,
    .histogram = efs_histogram_fast,
    .split = efs_split_avx512,
    .merge = efs_merge_avx512,
    .encode = efs_encode_avx512,
    .decode = efs_decode_avx512,
    .decode_merge = efs_decode_merge_avx512,
    .stream_end = stream_end,
};
