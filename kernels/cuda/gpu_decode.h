/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_decode.h - decodes a cascade chunk and SM to plain elements. Private to cuda/.
 *
 * A block of threads decodes a block of elements. It computes its range of symbols in each lower level: the range in
 * level 1 is in the span's header, and the number of escapes before a position of a level, counted by popcount, is the
 * position in the next level. So blocks are independent; the cost is that each block reads the codes of the lower
 * levels (about a fifth of the chunk for trained weights). The symbols of the range are decoded to shared memory from
 * the last level up: each thread counts its escapes, a scan over the threads gives the index of its first escape, and
 * each thread writes its symbols. The last step does the same with the planes of level 0 and merges the result with SM.
 *
 * A damaged chunk is detected as on the CPU: headers by cascade_chunk.h; each range must be inside its level; where it
 * ends with the level, as that of a span's last block does, the range in the next level must end with that level.
 */
#ifndef EFS_KERNELS_GPU_DECODE_H
#define EFS_KERNELS_GPU_DECODE_H

#include "cascade_chunk.h"
#include "gpu_merge.h"

#define EFS_GPU_GROUP 16
#define EFS_GPU_GROUPS (EFS_GPU_THREADS / EFS_GPU_GROUP)

/* State of a block of threads, in shared memory. */
struct efs_gpu_decode {
    struct efs_chunk chunk;
    struct efs_span span;
    bool refused; /* the headers are not well formed */
    uint32_t begin[EFS_LEVELS + 1],
        end[EFS_LEVELS + 1];         /* range of this block's symbols among those that enter a level */
    uint64_t count[EFS_GPU_THREADS]; /* escapes of each thread: up to four 16-bit counts */
    uint64_t group[EFS_GPU_GROUPS];  /* sums over groups of threads */
    uint8_t symbols[2][EFS_BLOCK];   /* of the range; two buffers for odd and even levels */
};

/* Step: thread 0 parses the headers. */
EFS_DEVICE void efs_gpu_decode_open(unsigned thread, const struct efs_gpu_shard *shard, uint32_t b,
                                    struct efs_gpu_decode *s)
{
    if (thread != 0)
        return;
    s->refused = efs_chunk_open(shard->e, shard->e_bytes, &s->chunk) != 0 || s->chunk.symbols != shard->elements ||
                 efs_chunk_span(&s->chunk, b / EFS_SPAN_BLOCKS, &s->span) != 0;
    if (s->refused)
        return;
    for (unsigned level = 0; level <= EFS_LEVELS; level++)
        s->begin[level] = s->end[level] = 0;
    s->begin[1] = s->span.entry[b % EFS_SPAN_BLOCKS];
    s->end[1] = s->span.entry[b % EFS_SPAN_BLOCKS + 1];
}

/* Mask of the low bits of the codes with index < limit, among the codes in bytes [j, j + 4) of planes of width bytes.
 * Code i is stored in byte i % width. */
EFS_DEVICE uint32_t efs_gpu_codes_below(uint32_t limit, uint32_t width, uint32_t j)
{
    const uint32_t plane = limit / width, part = limit % width;
    const uint32_t there = width - j < 4 ? width - j : 4, in_part = part <= j ? 0 : part - j < 4 ? part - j : 4;
    const uint64_t one = 0x01010101, planes = one * (((1u << 2 * plane) - 1) & 0x55);

    return (uint32_t)((planes & (((uint64_t)1 << 8 * there) - 1)) |
                      (one << 2 * plane & (((uint64_t)1 << 8 * in_part) - 1)));
}

/* Mask of the low bits of the codes that are escapes. */
EFS_DEVICE uint32_t efs_gpu_escapes(uint32_t codes)
{
    return codes & codes >> 1 & 0x55555555;
}

/* Step: computes the start and end of the range in the next level. */
EFS_DEVICE void efs_gpu_decode_find(unsigned thread, unsigned level, struct efs_gpu_decode *s)
{
    const uint32_t width = (uint32_t)efs_plane_bytes(s->span.size[level], 2);
    uint32_t before = 0, through = 0;

    for (uint32_t j = 4 * thread; j < width; j += 4 * EFS_GPU_THREADS) {
        const uint32_t escapes = efs_gpu_escapes(efs_gpu_load_any(s->span.planes[level] + j).word[0]);
        before += efs_gpu_popcount(escapes & efs_gpu_codes_below(s->begin[level], width, j));
        through += efs_gpu_popcount(escapes & efs_gpu_codes_below(s->end[level], width, j));
    }
    if (through > 0) {
        efs_gpu_add(&s->begin[level + 1], before);
        efs_gpu_add(&s->end[level + 1], through);
    }
}

/* Whether this block's range shows that the planes of a level contradict the sizes in the header. */
EFS_DEVICE bool efs_gpu_decode_differs(unsigned level, const struct efs_gpu_decode *s)
{
    const uint32_t size = s->span.size[level + 1], end = s->end[level + 1];

    return end > size || (s->end[level] == s->span.size[level] && end != size);
}

/* The part of the range's codes in a level that one thread handles: consecutive, of nearly equal size for all threads.
 */
struct efs_gpu_codes {
    const uint8_t *planes;
    uint32_t width, at, end; /* at: index in the range, also as byte and shift: */
    uint32_t byte, shift;
};

EFS_DEVICE struct efs_gpu_codes efs_gpu_codes_of(unsigned thread, unsigned level, const struct efs_gpu_decode *s)
{
    const uint32_t n = s->end[level] - s->begin[level], run = (n + EFS_GPU_THREADS - 1) / EFS_GPU_THREADS;
    const uint32_t at = thread * run < n ? thread * run : n, end = at + run < n ? at + run : n;
    const uint32_t width = (uint32_t)efs_plane_bytes(s->span.size[level], 2);
    struct efs_gpu_codes codes = {s->span.planes[level], width, at, end, 0, 0};

    if (at < end) { /* then width > 0 */
        codes.byte = (s->begin[level] + at) % width;
        codes.shift = (s->begin[level] + at) / width * 2;
    }
    return codes;
}

EFS_DEVICE unsigned efs_gpu_codes_next(struct efs_gpu_codes *codes)
{
    const unsigned code = codes->planes[codes->byte] >> codes->shift & 3u;

    codes->at++;
    if (++codes->byte == codes->width) {
        codes->byte = 0;
        codes->shift += 2;
    }
    return code;
}

/* Step: each thread counts its escapes in a level of the range. */
EFS_DEVICE void efs_gpu_decode_count(unsigned thread, unsigned level, struct efs_gpu_decode *s)
{
    struct efs_gpu_codes codes = efs_gpu_codes_of(thread, level, s);
    uint32_t escapes = 0;

    while (codes.at < codes.end)
        escapes += efs_gpu_codes_next(&codes) == 3;
    s->count[thread] = escapes;
}

/* Step: first half of the scan; the second half is efs_gpu_decode_rank(). */
EFS_DEVICE void efs_gpu_decode_scan(unsigned thread, struct efs_gpu_decode *s)
{
    uint64_t sum = 0;

    if (thread >= EFS_GPU_GROUPS)
        return;
    for (unsigned i = 0; i < EFS_GPU_GROUP; i++)
        sum += s->count[thread * EFS_GPU_GROUP + i];
    s->group[thread] = sum;
}

/* Escapes of the threads before this one; for thread EFS_GPU_THREADS: of all threads. */
EFS_DEVICE uint64_t efs_gpu_decode_rank(unsigned thread, const struct efs_gpu_decode *s)
{
    uint64_t rank = 0;

    for (unsigned i = 0; i < thread / EFS_GPU_GROUP; i++)
        rank += s->group[i];
    for (unsigned i = thread - thread % EFS_GPU_GROUP; i < thread; i++)
        rank += s->count[i];
    return rank;
}

/* The range's symbols that enter a level: in the rest, or written by efs_gpu_decode_fill(). */
EFS_DEVICE const uint8_t *efs_gpu_decode_below(unsigned level, const struct efs_gpu_decode *s)
{
    return level == s->span.levels ? s->span.rest + s->begin[level] : s->symbols[level % 2];
}

/* Step: writes the range's symbols that enter a level. */
EFS_DEVICE void efs_gpu_decode_fill(unsigned thread, unsigned level, struct efs_gpu_decode *s)
{
    const uint8_t *below = efs_gpu_decode_below(level + 1, s) + efs_gpu_decode_rank(thread, s);
    struct efs_gpu_codes codes = efs_gpu_codes_of(thread, level, s);

    while (codes.at < codes.end) {
        const uint32_t at = codes.at;
        const unsigned code = efs_gpu_codes_next(&codes);
        s->symbols[level % 2][at] = code == 3 ? *below++ : s->span.table[level][code];
    }
}

/* The codes of level 0 of this thread: eight bytes of planes, four runs of eight elements. Codes past the last element
 * are 0. */
EFS_DEVICE struct efs_gpu_pair efs_gpu_decode_own(unsigned thread, uint32_t b, const struct efs_gpu_decode *s)
{
    const uint32_t m = efs_block_size(s->span.size[0], b % EFS_SPAN_BLOCKS), j = 8 * thread;
    const uint32_t width = (uint32_t)efs_plane_bytes(m, 2);
    struct efs_gpu_pair codes = {{0, 0}};

    if (s->span.levels == 0 || j >= width)
        return codes;
    codes = efs_gpu_load_any(s->span.planes[0] + b % EFS_SPAN_BLOCKS * (EFS_BLOCK / 4) + j);
    if (m < EFS_BLOCK) {
        codes.word[0] &= 3 * efs_gpu_codes_below(m, width, j);
        codes.word[1] &= j + 4 < width ? 3 * efs_gpu_codes_below(m, width, j + 4) : 0;
    }
    return codes;
}

/* Step: each thread counts its escapes in each plane of level 0. */
EFS_DEVICE void efs_gpu_decode_count_own(unsigned thread, uint32_t b, struct efs_gpu_decode *s)
{
    const struct efs_gpu_pair codes = efs_gpu_decode_own(thread, b, s);
    const uint32_t low = efs_gpu_escapes(codes.word[0]), high = efs_gpu_escapes(codes.word[1]);
    uint64_t escapes = 0;

    for (unsigned plane = 0; plane < 4; plane++) {
        const uint32_t mask = 0x01010101u << 2 * plane;
        escapes |= (uint64_t)(efs_gpu_popcount(low & mask) + efs_gpu_popcount(high & mask)) << 16 * plane;
    }
    s->count[thread] = escapes;
}

/* Whether the number of escapes in level 0 differs from the number of symbols in level 1. */
EFS_DEVICE bool efs_gpu_decode_differs_own(const struct efs_gpu_decode *s)
{
    const uint64_t all = efs_gpu_decode_rank(EFS_GPU_THREADS, s);

    return (all & 0xffff) + (all >> 16 & 0xffff) + (all >> 32 & 0xffff) + (all >> 48) != s->end[1] - s->begin[1];
}

/* The symbols of four codes, one in the low bits of each byte. table[3] is 0. */
EFS_DEVICE uint32_t efs_gpu_symbols(uint32_t codes, uint32_t table, const uint8_t **below)
{
    const uint32_t pairs = codes | codes >> 4;
    uint32_t symbols = efs_gpu_pick(table, 0, (pairs & 0xff) | (pairs >> 8 & 0xff00));

    for (unsigned i = 0; i < 4; i++)
        if ((codes >> 8 * i & 3) == 3)
            symbols |= (uint32_t) * (*below)++ << 8 * i;
    return symbols;
}

/* Step: writes the block's elements. */
EFS_DEVICE void efs_gpu_decode_merge(unsigned thread, const struct efs_gpu_shard *shard, uint32_t b,
                                     struct efs_gpu_decode *s)
{
    const uint32_t in_span = b % EFS_SPAN_BLOCKS, m = efs_block_size(s->span.size[0], in_span), j = 8 * thread;
    const uint32_t width = (uint32_t)efs_plane_bytes(m, 2);
    const uint8_t *sm = shard->sm + (size_t)b * efs_gpu_block_sm_bytes(shard->format);
    const uint8_t *table = s->span.table[0], *below = efs_gpu_decode_below(1, s);
    uint8_t *dst = shard->dst + (size_t)b * EFS_BLOCK * efs_gpu_element_bytes(shard->format);
    const uint32_t first = table[0] | (uint32_t)table[1] << 8 | (uint32_t)table[2] << 16;

    if (j >= width)
        return;
    const struct efs_gpu_pair codes = efs_gpu_decode_own(thread, b, s);
    const uint64_t rank = efs_gpu_decode_rank(thread, s), all = efs_gpu_decode_rank(EFS_GPU_THREADS, s);
    for (unsigned plane = 0; plane < 4; plane++) {
        const uint32_t at = plane * width + j, there = width - j < 8 ? width - j : 8;
        const uint32_t count = at >= m ? 0 : m - at < there ? m - at : there;
        struct efs_gpu_pair e;
        if (count == 0)
            break;
        if (s->span.levels == 0) {
            e = efs_gpu_load_any(s->span.rest + in_span * EFS_BLOCK + at);
        } else {
            const uint8_t *escaped = below + (rank >> 16 * plane & 0xffff);
            e.word[0] = efs_gpu_symbols(codes.word[0] >> 2 * plane & 0x03030303, first, &escaped);
            e.word[1] = efs_gpu_symbols(codes.word[1] >> 2 * plane & 0x03030303, first, &escaped);
        }
        efs_gpu_merge(shard->format, e, sm, m, at, count, dst);
        below += all >> 16 * plane & 0xffff;
    }
}

/* Decodes the block; false when the chunk is damaged. */
EFS_DEVICE bool efs_gpu_decode_run(const struct efs_gpu_shard *shard, uint32_t b, struct efs_gpu_decode *s)
{
    EFS_GPU_STEP(efs_gpu_decode_open(thread, shard, b, s));
    if (s->refused)
        return false;
    for (unsigned level = 1; level < s->span.levels; level++) {
        EFS_GPU_STEP(efs_gpu_decode_find(thread, level, s));
        if (efs_gpu_decode_differs(level, s))
            return false;
    }
    for (unsigned level = s->span.levels; level-- > 1;) {
        EFS_GPU_STEP(efs_gpu_decode_count(thread, level, s));
        EFS_GPU_STEP(efs_gpu_decode_scan(thread, s));
        EFS_GPU_STEP(efs_gpu_decode_fill(thread, level, s));
    }
    EFS_GPU_STEP(efs_gpu_decode_count_own(thread, b, s));
    EFS_GPU_STEP(efs_gpu_decode_scan(thread, s));
    if (efs_gpu_decode_differs_own(s))
        return false;
    EFS_GPU_STEP(efs_gpu_decode_merge(thread, shard, b, s));
    return true;
}

/* Kernel: decodes block b of a shard; status is that of the shard. */
EFS_DEVICE void efs_gpu_decode_block(const struct efs_gpu_shard *shard, uint32_t b, struct efs_gpu_decode *s,
                                     uint32_t *status)
{
    if ((uint64_t)b * EFS_BLOCK < shard->elements && !efs_gpu_decode_run(shard, b, s))
        *status = EFS_GPU_DAMAGED;
}

#endif
