/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cascade_encode.c - encodes symbols to a cascade chunk: chooses the levels of each span and writes its code.
 */
#include "cascade_short.h"

#include <string.h>

#define RANKS (3 * EFS_LEVELS)

/* Each level costs decoding time even with few symbols, so it must save more bytes than this. */
#define LEVEL_PAYS_BYTES 16
/* The same for a short span, in addition to the level's part of the header. */
#define SHORT_LEVEL_PAYS_BYTES 6

/* The most frequent symbols: count falling, symbol rising. */
struct ranking {
    uint8_t symbol[RANKS];
    uint64_t count[RANKS];
    unsigned ranks;
};

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
    /* A span takes at most its symbols as bytes, with 0 levels; a short one a byte more. */
    size_t spans = (n + EFS_SPAN - 1) / EFS_SPAN, shorts = (n + (1u << EFS_SHORT_SPAN_MIN) - 1) >> EFS_SHORT_SPAN_MIN;
    size_t long_bytes = efs_code_begin(spans), short_bytes = EFS_SHORT_HEADER + 3 * shorts;

    return (long_bytes > short_bytes ? long_bytes : short_bytes) + n + EFS_CASCADE_SLACK;
}

static void cascade_rank(const uint64_t counts[256], struct ranking *ranking)
{
    unsigned ranks = 0;

    for (unsigned symbol = 0; symbol < 256; symbol++) {
        uint64_t count = counts[symbol];
        unsigned at = ranks;
        if (count == 0 || (ranks == RANKS && count <= ranking->count[RANKS - 1]))
            continue;
        if (ranks < RANKS)
            ranks++;
        else
            at = RANKS - 1;
        for (; at > 0 && ranking->count[at - 1] < count; at--) {
            ranking->symbol[at] = ranking->symbol[at - 1];
            ranking->count[at] = ranking->count[at - 1];
        }
        ranking->symbol[at] = (uint8_t)symbol;
        ranking->count[at] = count;
    }
    ranking->ranks = ranks;
}

/* Plans a span of n symbols with these counts by the ranking: as many levels as save more than pays_bytes each. Returns
 * the bytes of its code. */
static size_t plan_levels(const uint64_t counts[256], uint32_t n, const struct ranking *ranking, size_t pays_bytes,
                          struct efs_span *plan)
{
    size_t plane_bytes = 0, best_bytes = n;

    memset(plan, 0, sizeof(*plan));
    plan->size[0] = n;
    for (unsigned level = 0; level < EFS_LEVELS; level++) {
        uint32_t left = plan->size[level];
        for (unsigned r = 0; r < 3 && 3 * level + r < ranking->ranks; r++) {
            plan->table[level][r] = ranking->symbol[3 * level + r];
            plan->ranked[level] = (uint8_t)(r + 1);
            left -= (uint32_t)counts[plan->table[level][r]];
        }
        plan->size[level + 1] = left;
        plane_bytes += efs_plane_bytes(plan->size[level], 2);
        if (plane_bytes + left + pays_bytes < best_bytes) {
            best_bytes = plane_bytes + left;
            plan->levels = level + 1;
        }
    }
    return best_bytes;
}

static void plan_span(const struct efs_kernel_ops *ops, const uint8_t *symbols, uint32_t n, struct efs_span *plan)
{
    uint64_t counts[256] = {0};
    struct ranking ranking;

    ops->histogram(symbols, n, counts);
    cascade_rank(counts, &ranking);
    plan_levels(counts, n, &ranking, LEVEL_PAYS_BYTES, plan);
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

size_t efs_cascade_encode(const uint8_t *symbols, size_t n, uint8_t *dst, void *scratch)
{
    const struct efs_kernel_ops *ops = efs_ops();
    const uint32_t spans = efs_span_count(n);
    size_t at = efs_code_begin(spans);
    struct efs_span plan;

    for (uint32_t s = 0; s < spans; s++) {
        const size_t begin = (size_t)s * EFS_SPAN, left = n - begin;
        plan_span(ops, symbols + begin, left < EFS_SPAN ? (uint32_t)left : EFS_SPAN, &plan);
        ops->encode(&plan, symbols + begin, dst + at, scratch);
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

/* ---- short spans ---- */

/* Writes a short span with the shared table, or with its own if that is smaller. Returns its bytes. */
static size_t encode_short_span(const struct efs_kernel_ops *ops, const struct ranking *shared, const uint8_t *symbols,
                                uint32_t n, uint8_t *dst, uint8_t *scratch)
{
    uint64_t counts[256] = {0};
    struct ranking own_ranking;
    struct efs_span plans[2];
    size_t bytes[2];

    ops->histogram(symbols, n, counts);
    cascade_rank(counts, &own_ranking);
    for (unsigned own = 0; own < 2; own++) {
        bytes[own] = plan_levels(counts, n, own ? &own_ranking : shared,
                                 efs_short_span_header(1, own) - 1 + SHORT_LEVEL_PAYS_BYTES, &plans[own]);
        bytes[own] += efs_short_span_header(plans[own].levels, own);
    }
    const bool own = bytes[1] < bytes[0] && plans[1].levels > 0;
    struct efs_span *plan = &plans[own];
    uint8_t *counts_at = dst + 1, *table = counts_at + 2 * plan->levels;
    *dst = (uint8_t)(plan->levels | (own ? EFS_SHORT_OWN : 0));
    for (unsigned level = 0; level < plan->levels; level++) {
        write_u16(counts_at + 2 * level, plan->size[level + 1]);
        if (own)
            memcpy(table + 3 * level, plan->table[level], 3);
    }
    ops->encode(plan, symbols, dst + efs_short_span_header(plan->levels, own), scratch);
    return bytes[own];
}

size_t efs_cascade_encode_short(const uint8_t *symbols, size_t n, unsigned span_log2, uint8_t *dst, void *scratch)
{
    const struct efs_kernel_ops *ops = efs_ops();
    const size_t span = (size_t)1 << span_log2, spans = (n + span - 1) >> span_log2;
    uint64_t counts[256] = {0};
    struct ranking shared;
    size_t at = EFS_SHORT_HEADER + 2 * spans;

    ops->histogram(symbols, n, counts);
    cascade_rank(counts, &shared);
    memset(dst, 0, EFS_SHORT_HEADER);
    memcpy(dst + EFS_SHORT_TABLE, shared.symbol, shared.ranks);
    for (size_t s = 0; s < spans; s++) {
        const size_t left = n - s * span;
        size_t bytes = encode_short_span(ops, &shared, symbols + s * span, (uint32_t)(left < span ? left : span),
                                         dst + at, scratch);
        write_u16(dst + EFS_SHORT_HEADER + 2 * s, (uint32_t)bytes);
        at += bytes;
    }
    memset(dst + at, 0, EFS_CASCADE_SLACK);
    write_u32(dst, n);
    write_u32(dst + 4, spans);
    write_u32(dst + 8, at);
    write_u32(dst + 12, span_log2);
    return at + EFS_CASCADE_SLACK;
}
