/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_decode.h - decodes a cascade chunk and SM to plain elements. Private to cuda/.
 *
 * A block of threads decodes a span. It decodes the symbols of the lower levels to shared memory, from the last level
 * to level 1 (the first level is level 0, see ops.h). For each level a thread takes up to 16 consecutive bytes of the
 * planes, and so codes of all four planes: plane p is bits 2p and 2p + 1 of every byte. It counts its escapes in each
 * plane; a scan over the threads gives the index of its first escape in each; then it writes its symbols. The last step
 * does the same with the planes of level 0, where EFS_GPU_SHARERS threads share the planes of a block, and merges the
 * result with SM.
 *
 * A damaged chunk is detected as on the CPU: headers by cascade_chunk.h; the number of escapes in a level, and in each
 * block of level 0, must be the one that the headers have.
 */
#ifndef EFS_KERNELS_GPU_DECODE_H
#define EFS_KERNELS_GPU_DECODE_H

#include "cascade_chunk.h"
#include "gpu_merge.h"

#define EFS_GPU_PART (EFS_SPAN / 4 / EFS_GPU_DECODE_THREADS)       /* plane bytes of a thread, at most */
#define EFS_GPU_SHARERS (EFS_GPU_DECODE_THREADS / EFS_SPAN_BLOCKS) /* threads that share a block of elements */
#define EFS_GPU_WORDS (EFS_CHUNK_HEADER / 4 + EFS_SPAN_HEADER / 4) /* in the headers of a chunk and a span */
EFS_STATIC_ASSERT(EFS_GPU_PART == 16, "a thread loads four words");

/* State of a block of threads, in shared memory. */
struct efs_gpu_decode {
    uint8_t symbols[2][EFS_SPAN + 16]; /* symbols that enter level l, in symbols[l % 2]; 16: loads past the end */
    /* By thread: numbers of escapes in its part of planes 0 to 3, 16 bits each; after the scan, in all parts before it.
     */
    uint64_t count[EFS_GPU_DECODE_THREADS + 1];
    uint64_t sums[EFS_GPU_DECODE_THREADS / 32];
    uint32_t header[EFS_GPU_WORDS + 1]; /* the last: the first word of the next span's */
    struct efs_chunk chunk;
    struct efs_span span;
    bool malformed; /* the headers are not well formed */
};
EFS_STATIC_ASSERT(sizeof(struct efs_gpu_decode) <= EFS_GPU_DECODE_SHARED, "EFS_GPU_DECODE_SHARED is too small");

/* Step: loads the headers, a word a thread. Words past the chunk's end are 0. */
EFS_DEVICE void efs_gpu_decode_load(unsigned thread, const struct efs_gpu_shard *shard, uint32_t span,
                                    struct efs_gpu_decode *s)
{
    const uint64_t at = thread < EFS_CHUNK_HEADER / 4 ? 4 * thread : 4 * thread + (uint64_t)span * EFS_SPAN_HEADER;

    if (thread <= EFS_GPU_WORDS)
        s->header[thread] = at + 4 <= shard->e_bytes ? *(const efs_gpu_word *)(shard->e + at) : 0;
}

/* Step: thread 0 parses the headers. */
EFS_DEVICE void efs_gpu_decode_open(unsigned thread, const struct efs_gpu_shard *shard, uint32_t span,
                                    struct efs_gpu_decode *s)
{
    const uint8_t *header = (const uint8_t *)s->header;

    if (thread == 0)
        s->malformed = efs_chunk_parse(header, shard->e, shard->e_bytes, &s->chunk) != 0 ||
                       s->chunk.symbols != shard->elements ||
                       efs_chunk_parse_span(&s->chunk, header + EFS_CHUNK_HEADER, span, &s->span) != 0;
}

/* Of the codes in bytes [j, j + 4) of planes of width bytes: a mask of the low bit of each code whose index is below
 * limit. Code i is in byte i % width, in plane i / width. */
EFS_DEVICE uint32_t efs_gpu_codes_below(uint32_t limit, uint32_t width, uint32_t j)
{
    const uint32_t plane = limit / width, part = limit % width;
    const uint32_t there = width - j < 4 ? width - j : 4, in_part = part <= j ? 0 : part - j < 4 ? part - j : 4;
    const uint64_t one = 0x01010101, planes = one * (((1u << 2 * plane) - 1) & 0x55);

    return (uint32_t)((planes & (((uint64_t)1 << 8 * there) - 1)) |
                      (one << 2 * plane & (((uint64_t)1 << 8 * in_part) - 1)));
}

/* A thread's part of a level's planes: bytes [begin, end) of planes of m codes. begin is a multiple of 4. */
struct efs_gpu_part {
    const uint8_t *planes;
    uint32_t m, width, begin, end;
};

/* Part `number` of planes that are divided into parts of `each` bytes; empty past their end. */
EFS_DEVICE struct efs_gpu_part efs_gpu_part_of(const uint8_t *planes, uint32_t m, unsigned number, uint32_t each)
{
    const uint32_t width = (uint32_t)efs_plane_bytes(m, 2), begin = number * each < width ? number * each : width;

    return (struct efs_gpu_part){planes, m, width, begin, begin + each < width ? begin + each : width};
}

/* A thread's part of a level above 0, whose planes all threads share: equal parts of whole words. */
EFS_DEVICE struct efs_gpu_part efs_gpu_part_below(unsigned thread, unsigned level, const struct efs_gpu_decode *s)
{
    const uint32_t m = s->span.size[level], words = (m + 15) / 16;

    return efs_gpu_part_of(s->span.planes[level], m, thread,
                           (words + EFS_GPU_DECODE_THREADS - 1) / EFS_GPU_DECODE_THREADS * 4);
}

/* A thread's part of level 0: EFS_GPU_SHARERS threads share the planes of a block. */
EFS_DEVICE struct efs_gpu_part efs_gpu_part_first(unsigned thread, const struct efs_gpu_decode *s)
{
    const unsigned b = thread / EFS_GPU_SHARERS;

    return efs_gpu_part_of(s->span.planes[0] + b * (EFS_BLOCK / 4), efs_block_size(s->span.size[0], b),
                           thread % EFS_GPU_SHARERS, EFS_GPU_PART);
}

/* The part's codes; 0 past its end, and past the last code of the planes: only the last three bytes of planes can lack
 * codes. */
EFS_DEVICE struct efs_gpu_quad efs_gpu_part_codes(const struct efs_gpu_part *part)
{
    struct efs_gpu_quad codes = {{0, 0, 0, 0}};

    if (part->begin < part->end)
        codes = efs_gpu_load_any_quad(part->planes + part->begin);
    EFS_GPU_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t j = part->begin + 4 * i;
        if (j >= part->end)
            codes.word[i] = 0;
        else if (j + 8 > part->width && part->m % 16 != 0)
            codes.word[i] &= 3 * efs_gpu_codes_below(part->m, part->width, j);
    }
    return codes;
}

/* Copies the rest: the symbols that escape the last level, which are stored as bytes. */
EFS_DEVICE void efs_gpu_decode_rest(unsigned thread, struct efs_gpu_decode *s)
{
    const uint32_t size = s->span.size[s->span.levels];
    uint8_t *symbols = s->symbols[s->span.levels % 2];

    for (uint32_t at = 4 * thread; at < size; at += 4 * EFS_GPU_DECODE_THREADS)
        *(efs_gpu_word *)(symbols + at) = efs_gpu_load_any(s->span.rest + at);
}

/* Step: counts the escapes of this thread's part. For the last level, which is decoded first, also copies the rest. */
EFS_DEVICE void efs_gpu_decode_count(unsigned thread, unsigned level, struct efs_gpu_decode *s)
{
    const struct efs_gpu_part part = level == 0 ? efs_gpu_part_first(thread, s) : efs_gpu_part_below(thread, level, s);
    const struct efs_gpu_quad codes = efs_gpu_part_codes(&part);
    uint32_t escapes[4] = {0, 0, 0, 0};

    if (level + 1 == s->span.levels)
        efs_gpu_decode_rest(thread, s);
    EFS_GPU_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t mask = codes.word[i] & codes.word[i] >> 1;
        EFS_GPU_UNROLL
        for (unsigned plane = 0; plane < 4; plane++)
            escapes[plane] += efs_gpu_popcount(mask & 0x01010101u << 2 * plane);
    }
    s->count[thread] = (uint64_t)(escapes[3] << 16 | escapes[2]) << 32 | (escapes[1] << 16 | escapes[0]);
}

/* Escapes in all four planes, from the counts of a thread. */
EFS_DEVICE uint32_t efs_gpu_escapes(uint64_t counts)
{
    const uint32_t pairs = (uint32_t)(counts >> 32) + (uint32_t)counts;

    return (pairs & 0xffff) + (pairs >> 16);
}

/* Whether the number of escapes in a level, or in a block of level 0, differs from the headers. */
EFS_DEVICE bool efs_gpu_decode_differs(unsigned level, const struct efs_gpu_decode *s)
{
    bool differs = false;

    if (level > 0)
        return efs_gpu_escapes(s->count[EFS_GPU_DECODE_THREADS]) != s->span.size[level + 1];
    for (unsigned b = 0; b < EFS_SPAN_BLOCKS; b++)
        differs |= efs_gpu_escapes(s->count[(b + 1) * EFS_GPU_SHARERS] - s->count[b * EFS_GPU_SHARERS]) !=
                   s->span.entry[b + 1] - s->span.entry[b];
    return differs;
}

/* Packs four bytes, each below 16, into the four nibbles of a selector of efs_gpu_pick(). */
EFS_DEVICE uint32_t efs_gpu_selector(uint32_t v)
{
    return efs_gpu_pick(v | v >> 4, 0, 0x4420);
}

/* The symbols of four codes, one in the low bits of each byte of codes. table: a symbol in each byte, 0 in byte 3, for
 * the escape. An escape takes the next of the escaped symbols; *below, its index in symbols, is advanced. */
EFS_DEVICE uint32_t efs_gpu_symbols(uint32_t codes, uint32_t table, const uint8_t *symbols, uint32_t *below)
{
    const uint32_t escapes = codes & codes >> 1 & 0x01010101, whole = escapes * 0xff;
    const uint32_t before = escapes * 0x01010100; /* byte i: escapes in the bytes before it */
    const uint32_t from = (0x03020100 & ~whole) | ((before + 0x04040404) & whole);
    const uint32_t known = efs_gpu_pick(table, 0, efs_gpu_selector(codes)), next = efs_gpu_load_any(symbols + *below);

    *below += (escapes * 0x01010101) >> 24;
    return efs_gpu_pick(known, next, efs_gpu_selector(from));
}

EFS_DEVICE uint32_t efs_gpu_table(const uint8_t *table)
{
    return table[0] | (uint32_t)table[1] << 8 | (uint32_t)table[2] << 16;
}

/* Step: writes this thread's part of the symbols that enter a level above 0. */
EFS_DEVICE void efs_gpu_decode_fill(unsigned thread, unsigned level, struct efs_gpu_decode *s)
{
    const struct efs_gpu_part part = efs_gpu_part_below(thread, level, s);
    const struct efs_gpu_quad codes = efs_gpu_part_codes(&part);
    const uint64_t rank = s->count[thread], all = s->count[EFS_GPU_DECODE_THREADS];
    const uint32_t table = efs_gpu_table(s->span.table[level]);
    uint32_t first = 0;

    if (part.begin >= part.end)
        return;
    EFS_GPU_ROLLED
    for (unsigned plane = 0; plane < 4; plane++) {
        uint32_t below = first + (uint32_t)(rank >> 16 * plane & 0xffff);
        EFS_GPU_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            const uint32_t j = part.begin + 4 * i, at = plane * part.width + j;
            if (j >= part.end || at >= part.m)
                continue;
            const uint32_t symbols =
                efs_gpu_symbols(codes.word[i] >> 2 * plane & 0x03030303, table, s->symbols[(level + 1) % 2], &below);
            EFS_GPU_UNROLL
            for (unsigned k = 0; k < 4; k++)
                if (j + k < part.end && at + k < part.m)
                    s->symbols[level % 2][at + k] = (uint8_t)(symbols >> 8 * k);
        }
        first += (uint32_t)(all >> 16 * plane & 0xffff);
    }
}

/* Step: decodes this thread's part of level 0, or takes its symbols from the rest in a span without levels, and writes
 * the elements. */
EFS_DEVICE void efs_gpu_decode_merge(unsigned thread, const struct efs_gpu_shard *shard, uint32_t span,
                                     struct efs_gpu_decode *s)
{
    const struct efs_gpu_part part = efs_gpu_part_first(thread, s);
    const uint32_t span_block = thread / EFS_GPU_SHARERS, b = span * EFS_SPAN_BLOCKS + span_block;
    const uint8_t *sm = shard->sm + (size_t)b * efs_gpu_block_sm_bytes(shard->format);
    uint8_t *dst = shard->dst + (size_t)b * EFS_BLOCK * efs_gpu_element_bytes(shard->format);
    const bool coded = s->span.levels > 0;
    struct efs_gpu_quad codes = {{0, 0, 0, 0}};
    uint64_t rank = 0, all = 0;

    if (part.begin >= part.end)
        return;
    if (coded) {
        codes = efs_gpu_part_codes(&part);
        rank = s->count[thread] - s->count[span_block * EFS_GPU_SHARERS];
        all = s->count[(span_block + 1) * EFS_GPU_SHARERS] - s->count[span_block * EFS_GPU_SHARERS];
    }
    const uint32_t table = efs_gpu_table(s->span.table[0]);
    uint32_t first = s->span.entry[span_block];
    EFS_GPU_ROLLED
    for (unsigned plane = 0; plane < 4; plane++) {
        const uint32_t at = plane * part.width + part.begin, there = part.end - part.begin;
        struct efs_gpu_quad e;
        if (at >= part.m)
            break;
        uint32_t below = first + (uint32_t)(rank >> 16 * plane & 0xffff);
        if (coded) {
            EFS_GPU_UNROLL
            for (unsigned i = 0; i < 4; i++)
                e.word[i] = efs_gpu_symbols(codes.word[i] >> 2 * plane & 0x03030303, table, s->symbols[1], &below);
        } else {
            e = efs_gpu_load_any_quad(s->span.rest + span_block * EFS_BLOCK + at);
        }
        efs_gpu_merge(shard->format, e, sm, part.m, at, part.m - at < there ? part.m - at : there, dst);
        first += (uint32_t)(all >> 16 * plane & 0xffff);
    }
}

#define EFS_GPU_DECODE_STEP(call) EFS_GPU_STEP_OF(EFS_GPU_DECODE_THREADS, call)

/* Decodes the span; false when the chunk is damaged. */
EFS_DEVICE bool efs_gpu_decode_run(const struct efs_gpu_shard *shard, uint32_t span, struct efs_gpu_decode *s)
{
    EFS_GPU_DECODE_STEP(efs_gpu_decode_load(thread, shard, span, s));
    EFS_GPU_DECODE_STEP(efs_gpu_decode_open(thread, shard, span, s));
    if (s->malformed)
        return false;
    for (unsigned level = s->span.levels; level-- > 0;) {
        EFS_GPU_DECODE_STEP(efs_gpu_decode_count(thread, level, s));
        efs_gpu_scan(s->count, EFS_GPU_DECODE_THREADS, s->sums);
        if (efs_gpu_decode_differs(level, s))
            return false;
        if (level > 0)
            EFS_GPU_DECODE_STEP(efs_gpu_decode_fill(thread, level, s));
    }
    EFS_GPU_DECODE_STEP(efs_gpu_decode_merge(thread, shard, span, s));
    return true;
}

/* Kernel: decodes a span of a shard. */
EFS_DEVICE void efs_gpu_decode_span(struct efs_gpu_shard *shard, uint32_t span, struct efs_gpu_decode *s)
{
    if ((uint64_t)span * EFS_SPAN < shard->elements && !efs_gpu_decode_run(shard, span, s))
        shard->status = EFS_GPU_DAMAGED;
}

#endif
