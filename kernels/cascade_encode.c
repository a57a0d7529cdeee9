/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cascade_encode.c - encodes symbols to a cascade chunk: chooses the levels of each span and writes its code.
 */
#include "cascade_chunk.h"

#include <string.h>

#define RANKS (3 * EFS_LEVELS)

/* Each level costs decoding time even with few symbols, so it must save more bytes than this. */
#define LEVEL_PAYS_BYTES 16

static void write_u16(uint8_t *p, uint32_t v)
{
    uint16_t u = (uint16_t)v;

    memcpy(p, &u, sizeof(u));
}

static void write_u32(uint8_t *p, size_t v)
{
    uint32_t u = (uint32_t)v;

    memcpy(p, &u, sizeof(u));
}

size_t efs_cascade_bound(size_t n)
{
    /* A span takes at most its symbols as bytes, with 0 levels. */
    return efs_code_begin((n + EFS_SPAN - 1) / EFS_SPAN) + n + EFS_CASCADE_SLACK;
}

/* Symbols by (count falling, symbol rising), RANKS at most. Returns their number. */
static unsigned cascade_rank(const uint64_t counts[256], uint8_t ranked[RANKS], uint64_t ranked_count[RANKS])
{
    unsigned ranks = 0;

    for (unsigned symbol = 0; symbol < 256; symbol++) {
        uint64_t count = counts[symbol];
        unsigned at = ranks;
        if (count == 0 || (ranks == RANKS && count <= ranked_count[RANKS - 1]))
            continue;
        if (ranks < RANKS)
            ranks++;
        else
            at = RANKS - 1;
        for (; at > 0 && ranked_count[at - 1] < count; at--) {
            ranked[at] = ranked[at - 1];
            ranked_count[at] = ranked_count[at - 1];
        }
        ranked[at] = (uint8_t)symbol;
        ranked_count[at] = count;
    }
    return ranks;
}

/* Takes as many levels as pay. */
static void plan_span(const struct efs_kernel_ops *ops, const uint8_t *symbols, uint32_t n, struct efs_span *plan)
{
    uint8_t ranked[RANKS];
    uint64_t ranked_count[RANKS], counts[256] = {0};

    ops->histogram(symbols, n, counts);
    unsigned ranks = cascade_rank(counts, ranked, ranked_count);
    memset(plan, 0, sizeof(*plan));
    plan->size[0] = n;
    size_t plane_bytes = 0, best_bytes = n;
    for (unsigned level = 0; level < EFS_LEVELS; level++) {
        uint32_t left = plan->size[level];
        for (unsigned r = 0; r < 3 && 3 * level + r < ranks; r++) {
            plan->table[level][r] = ranked[3 * level + r];
            plan->ranked[level] = (uint8_t)(r + 1);
            left -= (uint32_t)ranked_count[3 * level + r];
        }
        plan->size[level + 1] = left;
        plane_bytes += efs_plane_bytes(plan->size[level], 2);
        if (plane_bytes + left + LEVEL_PAYS_BYTES < best_bytes) {
            best_bytes = plane_bytes + left;
            plan->levels = level + 1;
        }
    }
}

static void write_span_header(const struct efs_span *plan, size_t offset, uint8_t *header)
{
    memset(header, 0, EFS_SPAN_HEADER);
    write_u32(header, offset);
    for (unsigned b = 1; b < EFS_SPAN_BLOCKS && plan->levels > 0; b++)
        write_u16(header + 14 + 2 * (b - 1), plan->entry[b]);
    header[20] = (uint8_t)plan->levels;
    for (unsigned level = 0; level < plan->levels; level++) {
        write_u16(header + 4 + 2 * level, plan->size[level + 1]);
        memcpy(header + 21 + 3 * level, plan->table[level], 3);
    }
}

size_t efs_cascade_encode(const uint8_t *symbols, size_t n, uint8_t *dst)
{
    const struct efs_kernel_ops *ops = efs_ops();
    const uint32_t spans = efs_span_count(n);
    size_t at = efs_code_begin(spans);
    struct efs_span plan;

    for (uint32_t s = 0; s < spans; s++) {
        const size_t begin = (size_t)s * EFS_SPAN, left = n - begin;
        plan_span(ops, symbols + begin, left < EFS_SPAN ? (uint32_t)left : EFS_SPAN, &plan);
        ops->encode(&plan, symbols + begin, dst + at);
        write_span_header(&plan, at, dst + EFS_CHUNK_HEADER + (size_t)s * EFS_SPAN_HEADER);
        at += efs_lower_bytes(&plan) + efs_first_bytes(&plan);
    }
    memset(dst + at, 0, EFS_CASCADE_SLACK);
    write_u32(dst, n);
    write_u32(dst + 4, spans);
    write_u32(dst + 8, at);
    write_u32(dst + 12, 0);
    return at + EFS_CASCADE_SLACK;
}
