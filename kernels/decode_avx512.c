/*
 * decode_avx512.c - cascade decoding with AVX-512 VBMI and VBMI2.
 *
 * From the rest up: 64 codes come from a plane by one shift and one mask; the table gives the symbols of codes 0..2,
 * byte-expand under the mask of the escapes puts the next symbols of the level below into the others. The register form
 * of the expand is used: the memory form is microcoded on Zen 4. The first level is fused with the merge.
 */
#include "format_block.h"
#include "merge_avx512.h"
#include "paths_avx512.h"

/* 64 symbols of a level from 64 bytes of its plane; *below moves past the escapes that were filled, those in valid. */
EFS_INLINE __m512i symbols_64(__m512i plane, __m512i control, __m512i table, uint64_t valid, const uint8_t **below)
{
    const __m512i three = _mm512_set1_epi8(3);
    __m512i codes = _mm512_and_si512(efs_shift(control, plane), three);
    __mmask64 escapes = _mm512_mask_cmpeq_epi8_mask(valid, codes, three);
    __m512i next = _mm512_loadu_si512(*below);

    __asm__("" : "+v"(next)); /* keeps the load apart from the expand */
    *below += __builtin_popcountll(escapes);
    return _mm512_mask_expand_epi8(_mm512_shuffle_epi8(table, codes), escapes, next);
}

EFS_INLINE __m512i load_table(const uint8_t table[4])
{
    int32_t word;

    memcpy(&word, table, sizeof(word));
    return _mm512_set1_epi32(word);
}

/*
 * One level, size symbols, into out, which has room for a vector more. below has the symbols of the next level, and
 * readable bytes after them for size + 64 in all. Returns how many of them were used.
 */
static size_t decode_level(const uint8_t *planes, size_t size, const uint8_t table_bytes[4], const uint8_t *below,
                           uint8_t *out)
{
    const __m512i table = load_table(table_bytes);
    const uint8_t *used = below;
    size_t width = efs_plane_bytes(size, 2);
    int shift = 0;

    for (size_t start = 0; start < size; start += width, shift += 2) {
        const __m512i control = efs_shift_control(shift);
        size_t len = size - start < width ? size - start : width;
        size_t j = 0;
        for (; j + 64 <= len; j += 64)
            _mm512_storeu_si512(out + start + j,
                                symbols_64(_mm512_loadu_si512(planes + j), control, table, UINT64_MAX, &used));
        if (j < len) /* what is stored too much is overwritten by the next plane, or is in the room after it */
            _mm512_storeu_si512(out + start + j, symbols_64(_mm512_loadu_si512(planes + j), control, table,
                                                            _bzhi_u64(UINT64_MAX, (uint32_t)(len - j)), &used));
    }
    return (size_t)(used - below);
}

/* The symbols that enter level `until`, from the levels below it; NULL when the planes contradict the sizes. Needs
 * block->levels > until. The result lies in one of the two buffers. */
static const uint8_t *decode_below(const struct efs_cascade_block *block, unsigned until, uint8_t *a, uint8_t *b)
{
    /* The rest is copied, so that planes with too many escapes do not read past the chunk. */
    for (size_t i = 0; i < block->size[block->levels]; i += 64)
        _mm512_storeu_si512(a + i, _mm512_loadu_si512(block->rest + i));
    for (unsigned level = block->levels; level-- > until;) {
        if (decode_level(block->planes[level], block->size[level], block->table[level], a, b) != block->size[level + 1])
            return NULL;
        uint8_t *swap = a;
        a = b;
        b = swap;
    }
    return a;
}

bool efs_decode_avx512(const struct efs_cascade_block *block, uint8_t *out)
{
    uint8_t a[EFS_SCRATCH], b[EFS_SCRATCH];

    if (block->levels == 0) {
        memcpy(out, block->rest, block->size[0]);
        return true;
    }
    if (block->size[0] != EFS_BLOCK) {
        const uint8_t *symbols = decode_below(block, 0, a, b);
        if (symbols != NULL)
            memcpy(out, symbols, block->size[0]);
        return symbols != NULL;
    }
    const uint8_t *below = decode_below(block, 1, a, b);
    return below != NULL && decode_level(block->planes[0], EFS_BLOCK, block->table[0], below, out) == block->size[1];
}

/* The first level of a whole block, fused with the merge. */
EFS_INLINE bool merge_first_level(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *below,
                                  const uint8_t *sm, uint8_t *dst, bool stream)
{
    const __m512i table = load_table(block->table[0]);
    const uint8_t *used = below;
    /* The next block's code lies behind this one's and is read from its end to its beginning, which no processor
     * foresees: ask for it bit by bit. A guess of its size is enough, and no address does harm. */
    const uint8_t *next = block->rest + block->size[block->levels];
    const size_t next_step = (size_t)(next - block->planes[0]) / (EFS_BLOCK / 64) + 1;

    for (unsigned unit = 0; unit < EFS_UNITS; unit++) {
        const __m512i control = efs_shift_control((int)(unit / 2) * 2);
        const uint8_t *plane = block->planes[0] + unit % 2 * EFS_UNIT;
        for (size_t at = 0; at < EFS_UNIT; at += 64) {
            efs_prefetch(next);
            next += next_step;
            efs_prefetch_sm(format, unit, at, sm, stream);
            __m512i e = symbols_64(_mm512_loadu_si512(plane + at), control, table, UINT64_MAX, &used);
            efs_merge_64(format, unit, at, e, sm, dst, stream);
        }
    }
    return (size_t)(used - below) == block->size[1];
}

/* Merge a whole block whose exponents are bytes in memory. */
EFS_INLINE void merge_bytes(enum efs_format format, const uint8_t *e, const uint8_t *sm, uint8_t *dst, bool stream)
{
    for (unsigned unit = 0; unit < EFS_UNITS; unit++) {
        for (size_t at = 0; at < EFS_UNIT; at += 64)
            efs_merge_64(format, unit, at, _mm512_loadu_si512(e + unit * EFS_UNIT + at), sm, dst, stream);
    }
}

EFS_INLINE bool decode_merge_whole(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                                   uint8_t *dst, bool stream)
{
    uint8_t a[EFS_SCRATCH], b[EFS_SCRATCH];

    if (block->levels == 0) {
        merge_bytes(format, block->rest, sm, dst, stream);
        return true;
    }
    const uint8_t *below = decode_below(block, 1, a, b);
    return below != NULL && merge_first_level(format, block, below, sm, dst, stream);
}

/* One copy of the code for each format, plain and streaming. */
#define EFS_FOR_FORMAT(name)                                                                                           \
    case EFS_FORMAT_##name:                                                                                            \
        return stream ? decode_merge_whole(EFS_FORMAT_##name, block, sm, dst, true)                                    \
                      : decode_merge_whole(EFS_FORMAT_##name, block, sm, dst, false);

static bool decode_merge_format(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                                uint8_t *dst, bool stream)
{
    switch (format) {
        EFS_FOR_FORMAT(BYTES)
        EFS_FOR_FORMAT(BF16)
        EFS_FOR_FORMAT(F16)
        EFS_FOR_FORMAT(F32)
        EFS_FOR_FORMAT(E4M3)
        EFS_FOR_FORMAT(E5M2)
    case EFS_FORMAT_COUNT:
        break;
    }
    return false;
}

/* Streaming stores want whole aligned lines: the edges are copied as usual. from and dst are equally aligned. */
static void stream_copy(uint8_t *dst, const uint8_t *from, size_t bytes)
{
    size_t head = -(uintptr_t)dst % 64, i = head;

    memcpy(dst, from, head);
    for (; i + 64 <= bytes; i += 64)
        _mm512_stream_si512((void *)(dst + i), _mm512_load_si512(from + i));
    memcpy(dst + i, from + i, bytes - i);
}

bool efs_decode_merge_avx512(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                             uint8_t *dst, bool stream)
{
    size_t misaligned = (uintptr_t)dst % 64;

    if (block->size[0] != EFS_BLOCK) {
        uint8_t e[EFS_BLOCK];
        if (format == EFS_FORMAT_BYTES)
            return efs_decode_avx512(block, dst);
        if (!efs_decode_avx512(block, e))
            return false;
        efs_merge_block(format, e, sm, block->size[0], dst);
        return true;
    }
    if (stream && misaligned != 0) {
        uint8_t staged[4 * EFS_BLOCK + 64] __attribute__((aligned(64)));
        if (!decode_merge_format(format, block, sm, staged + misaligned, false))
            return false;
        stream_copy(dst, staged + misaligned, EFS_BLOCK * efs_format_bytes(format));
        return true;
    }
    return decode_merge_format(format, block, sm, dst, stream);
}

#define EFS_MERGE_FORMAT(name)                                                                                         \
    case EFS_FORMAT_##name:                                                                                            \
        merge_bytes(EFS_FORMAT_##name, e, sm, dst, false);                                                             \
        break;

void efs_merge_avx512(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst)
{
    if (m != EFS_BLOCK) {
        efs_merge_block(format, e, sm, m, dst);
        return;
    }
    switch (format) {
        EFS_MERGE_FORMAT(BYTES)
        EFS_MERGE_FORMAT(BF16)
        EFS_MERGE_FORMAT(F16)
        EFS_MERGE_FORMAT(F32)
        EFS_MERGE_FORMAT(E4M3)
        EFS_MERGE_FORMAT(E5M2)
    case EFS_FORMAT_COUNT:
        break;
    }
}
