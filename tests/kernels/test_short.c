/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_short.c - cascade chunks with short spans: as kernels.h specifies them, equal on every path, decoded whole, in
 * part and from pieces; damaged chunks are refused alike on every path.
 */
#include "test.h"
#include "cases.h"

#include <errno.h>

static unsigned get_u16(const uint8_t *p)
{
    return p[0] + 256u * p[1];
}

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

/* Decodes a span as specified in kernels.h: symbol by symbol, with a cursor for each level. Returns its bytes. */
static size_t decode_span_by_the_text(const uint8_t *shared, const uint8_t *p, size_t n, uint8_t *out)
{
    const uint8_t *begin = p, *part[6];
    unsigned levels = *p & 0x7f, own = *p >> 7;
    size_t cursor[6] = {0}, entering[6] = {n};

    p++;
    for (unsigned l = 0; l < levels; l++, p += 2)
        entering[l + 1] = get_u16(p);
    const uint8_t *table = own ? p : shared;
    p += own ? 3 * levels : 0;
    part[levels] = p;
    p += entering[levels];
    for (unsigned l = levels; l-- > 0; p += (entering[l] + 3) / 4)
        part[l] = p;
    for (size_t i = 0; i < n; i++) {
        unsigned symbol = 3;
        for (unsigned l = 0; l < levels && symbol == 3; l++) {
            size_t at = cursor[l]++, width = (entering[l] + 3) / 4;
            symbol = part[l][at % width] >> (2 * (at / width)) & 3;
            out[i] = table[3 * l + symbol];
        }
        if (symbol == 3)
            out[i] = part[levels][cursor[levels]++];
    }
    for (unsigned l = 0; l < levels; l++)
        assert_int_equal(cursor[l + 1], entering[l + 1]);
    return (size_t)(p - begin);
}

/* Returns a mask: bit 0, spans with the shared table; bit 1, with their own. */
static unsigned decode_by_the_text(const uint8_t *chunk, size_t bytes, size_t n, unsigned log2, uint8_t *out)
{
    const size_t span = (size_t)1 << log2, spans = (n + span - 1) / span;
    const uint8_t *p = chunk + 32 + 2 * spans;
    unsigned seen = 0;

    assert_int_equal(get_u32(chunk), n);
    assert_int_equal(get_u32(chunk + 4), spans);
    assert_int_equal(get_u32(chunk + 8), bytes - EFS_CASCADE_SLACK);
    assert_int_equal(get_u32(chunk + 12), log2);
    assert_int_equal(chunk[31], 0);
    for (size_t s = 0; s < spans; s++) {
        size_t left = n - s * span, length = get_u16(chunk + 32 + 2 * s);
        seen |= *p & 0x7f ? 1u << (*p >> 7) : 0;
        assert_int_equal(decode_span_by_the_text(chunk + 16, p, left < span ? left : span, out + s * span), length);
        p += length;
    }
    assert_int_equal(p - chunk, bytes - EFS_CASCADE_SLACK);
    return seen;
}

struct shard {
    enum efs_format format;
    size_t n, chunk_bytes, sm_bytes;
    unsigned log2;
    uint8_t *raw, *e, *sm, *chunk;
};

static struct shard shard_new(enum efs_format format, enum symbol_kind kind, size_t n, unsigned log2, uint64_t *rng)
{
    struct shard s = {.format = format, .n = n, .log2 = log2, .sm_bytes = efs_sm_bytes(format, n)};
    size_t bytes = n * efs_format_bytes(format);

    s.raw = malloc(bytes + 1);
    s.e = malloc(n + 1);
    s.sm = malloc(s.sm_bytes + 1);
    s.chunk = malloc(efs_cascade_bound(n));
    assert_true(s.raw && s.e && s.sm && s.chunk);
    assert_true(efs_cpu_force("scalar"));
    symbols_fill(kind, s.e, n, rng);
    for (size_t i = 0; i < n; i++)
        s.e[i] &= (uint8_t)(format_symbols(format) - 1);
    for (size_t i = 0; i < s.sm_bytes; i++)
        s.sm[i] = (uint8_t)random_u64(rng);
    efs_merge(format, s.e, s.sm, n, s.raw); /* any elements with these exponents */
    efs_split_short(format, s.raw, n, s.e, s.sm);
    s.chunk_bytes = efs_cascade_encode_short(s.e, n, log2, s.chunk, coder_scratch());
    assert_true(s.chunk_bytes <= efs_cascade_bound(n));
    return s;
}

static void shard_free(struct shard *s)
{
    free(s->raw);
    free(s->e);
    free(s->sm);
    free(s->chunk);
}

/* Decodes a range from the pieces that it needs, each in memory that ends at a guard page. */
static void check_pieces(const struct shard *s, size_t first, size_t count)
{
    const size_t bytes = efs_format_bytes(s->format), most = efs_cascade_head_bytes(s->n);
    struct guarded head = guarded_copy(s->chunk, most < s->chunk_bytes ? most : s->chunk_bytes);
    struct efs_cascade_range range;

    assert_int_equal(efs_cascade_locate(s->format, head.data, head.bytes, s->chunk_bytes, s->n, first, count, &range),
                     0);
    assert_true(range.code_begin <= range.code_end && range.code_end <= s->chunk_bytes - EFS_CASCADE_SLACK);
    assert_true(range.sm_begin <= range.sm_end && range.sm_end <= s->sm_bytes);
    struct guarded code = guarded_new(range.code_end - range.code_begin + EFS_CASCADE_SLACK);
    struct guarded sm = guarded_copy(s->sm + range.sm_begin, range.sm_end - range.sm_begin);
    struct guarded out = guarded_new(count * bytes);
    memset(code.data, 0xee, code.bytes);
    memcpy(code.data, s->chunk + range.code_begin, range.code_end - range.code_begin);
    assert_int_equal(efs_cascade_merge_range(s->format, head.data, head.bytes, s->chunk_bytes, code.data, sm.data,
                                             first, count, out.data, coder_scratch()),
                     0);
    assert_memory_equal(out.data, s->raw + first * bytes, out.bytes);
    guarded_free(&head);
    guarded_free(&code);
    guarded_free(&sm);
    guarded_free(&out);
}

static void check_range(const struct shard *s, const uint8_t *chunk, const uint8_t *sm, size_t first, size_t count,
                        size_t offset, bool stream)
{
    const size_t bytes = efs_format_bytes(s->format), room = offset + count * bytes + 128;
    uint8_t *dst = aligned_alloc(128, (room + 127) / 128 * 128);

    assert_non_null(dst);
    memset(dst, 0x5c, room);
    assert_int_equal(efs_cascade_merge(s->format, chunk, s->chunk_bytes, sm, s->sm_bytes, first, count, dst + offset,
                                       stream, coder_scratch()),
                     0);
    for (size_t i = 0; i < room; i++)
        if (i < offset || i >= offset + count * bytes)
            assert_int_equal(dst[i], 0x5c);
    assert_memory_equal(dst + offset, s->raw + first * bytes, count * bytes);
    free(dst);
    if (count > 0 && count < 20000)
        check_pieces(s, first, count);
}

/* Returns the mask of decode_by_the_text(). */
static unsigned check_shard(const struct shard *s, uint64_t *rng, unsigned ranges)
{
    uint8_t *decoded = malloc(s->n + 1), *again = malloc(efs_cascade_bound(s->n)), *sm = malloc(s->sm_bytes + 1);
    unsigned seen = decode_by_the_text(s->chunk, s->chunk_bytes, s->n, s->log2, decoded);

    assert_memory_equal(decoded, s->e, s->n);
    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]))
            continue;
        efs_split_short(s->format, s->raw, s->n, decoded, sm);
        assert_memory_equal(sm, s->sm, s->sm_bytes);
        memset(again, 0xa5, efs_cascade_bound(s->n));
        assert_int_equal(efs_cascade_encode_short(s->e, s->n, s->log2, again, coder_scratch()), s->chunk_bytes);
        assert_memory_equal(again, s->chunk, s->chunk_bytes);
        struct guarded chunk = guarded_copy(s->chunk, s->chunk_bytes), guarded_sm = guarded_copy(s->sm, s->sm_bytes);
        for (unsigned stream = 0; stream < 2; stream++)
            for (size_t offset = 0; offset < 2; offset++)
                check_range(s, chunk.data, guarded_sm.data, 0, s->n, offset, stream != 0);
        for (unsigned i = 0; i < ranges; i++) {
            size_t first = random_below(rng, (uint32_t)s->n + 1);
            size_t count = random_below(rng, (uint32_t)(s->n - first) + 1);
            check_range(s, chunk.data, guarded_sm.data, first, i % 3 ? count : count / 64, random_below(rng, 128),
                        i % 2 != 0);
        }
        guarded_free(&chunk);
        guarded_free(&guarded_sm);
    }
    free(decoded);
    free(again);
    free(sm);
    return seen;
}

TEST(every_format_and_size)
{
    static const size_t sizes[] = {0, 1, 63, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 12288, 3 * 8192 + 1024 + 77};
    uint64_t rng = 31;

    for (int format = 0; format < EFS_FORMAT_COUNT; format++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            for (unsigned log2 = 12; log2 <= 13; log2++) {
                struct shard s = shard_new((enum efs_format)format, SYMBOLS_WEIGHTS, sizes[i], log2, &rng);
                check_shard(&s, &rng, 6);
                shard_free(&s);
            }
}

TEST(every_kind)
{
    uint64_t rng = 32;
    unsigned seen = 0;

    for (int format = 0; format < EFS_FORMAT_COUNT; format++)
        for (int kind = 0; kind < SYMBOLS_KINDS; kind++) {
            struct shard s = shard_new((enum efs_format)format, (enum symbol_kind)kind, 5 * 4096 + 731, 12, &rng);
            seen |= check_shard(&s, &rng, 4);
            shard_free(&s);
        }
    assert_int_equal(seen, 3);
}

/* Spans with other symbols than most have their own table. */
TEST(own_table)
{
    enum { N = 128 * 4096 };
    static uint8_t symbols[N], chunk[2 * N], decoded[N];
    uint64_t rng = 33;

    symbols_fill(SYMBOLS_WEIGHTS, symbols, N, &rng);
    for (size_t i = 5 * 4096; i < 6 * 4096; i++)
        symbols[i] = (uint8_t)(symbols[i] + 40);
    size_t bytes = efs_cascade_encode_short(symbols, N, 12, chunk, coder_scratch());
    assert_int_equal(decode_by_the_text(chunk, bytes, N, 12, decoded), 3);
    assert_memory_equal(decoded, symbols, N);
    assert_true(bytes < N / 2);
}

/* Decodes a chunk, whole and by pieces, on every path; all return the same, which is the result. */
static int check_damaged(const struct shard *s, const struct guarded *chunk)
{
    struct guarded out = guarded_new(s->n * efs_format_bytes(s->format));
    int expected = 0;

    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]))
            continue;
        int r = efs_cascade_merge(s->format, chunk->data, chunk->bytes, s->sm, s->sm_bytes, 0, s->n, out.data, false,
                                  coder_scratch());
        expected = p == 0 ? r : expected;
        assert_int_equal(r, expected);
        assert_true(r == 0 || r == -EUCLEAN || r == -EINVAL);
        struct efs_cascade_range range;
        size_t head_bytes = efs_cascade_head_bytes(s->n);
        head_bytes = head_bytes < chunk->bytes ? head_bytes : chunk->bytes;
        r = efs_cascade_locate(s->format, chunk->data, head_bytes, chunk->bytes, s->n, s->n / 2, s->n / 3, &range);
        if (r != 0)
            continue;
        assert_true(range.code_end <= chunk->bytes - EFS_CASCADE_SLACK);
        r = efs_cascade_merge_range(s->format, chunk->data, head_bytes, chunk->bytes, chunk->data + range.code_begin,
                                    s->sm + range.sm_begin, s->n / 2, s->n / 3, out.data, coder_scratch());
        assert_true(r == 0 || r == -EUCLEAN);
    }
    guarded_free(&out);
    return expected;
}

TEST(every_bit)
{
    static const enum symbol_kind kinds[] = {SYMBOLS_WEIGHTS, SYMBOLS_UNIFORM, SYMBOLS_TRIPLES, SYMBOLS_ZERO};
    uint64_t rng = 34;

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct shard s = shard_new(EFS_FORMAT_F16, kinds[k], 4096 + 333, 12, &rng);
        struct guarded chunk = guarded_copy(s.chunk, s.chunk_bytes);
        size_t step = chunk.bytes > 1500 ? 3 : 1;
        for (size_t bit = 0; bit < 8 * chunk.bytes; bit += bit < 8 * 40 ? 1 : step) {
            chunk.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            int r = check_damaged(&s, &chunk);
            /* every bit outside the shared table, the codes and the padding is checked */
            assert_true(r != 0 || bit >= 8 * 36 || (bit >= 8 * 16 && bit < 8 * 31));
            chunk.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        guarded_free(&chunk);
        shard_free(&s);
    }
}

TEST(truncated)
{
    uint64_t rng = 35;
    struct shard s = shard_new(EFS_FORMAT_BF16, SYMBOLS_WEIGHTS, 700, 12, &rng);

    for (size_t bytes = 0; bytes < s.chunk_bytes; bytes++) {
        struct guarded cut = guarded_copy(s.chunk, bytes);
        assert_int_equal(check_damaged(&s, &cut), -EUCLEAN);
        if (bytes >= 16) { /* and with a header that has the cut size */
            put_u32(cut.data + 8, (uint32_t)bytes);
            assert_int_equal(check_damaged(&s, &cut), -EUCLEAN);
        }
        guarded_free(&cut);
    }
    shard_free(&s);
}

TEST(bad_arguments)
{
    uint64_t rng = 36;
    struct shard s = shard_new(EFS_FORMAT_BF16, SYMBOLS_WEIGHTS, 10000, 12, &rng);
    struct efs_cascade_range range;
    uint8_t out[16];

    assert_int_equal(efs_cascade_merge(s.format, s.chunk, s.chunk_bytes, s.sm, 9999, 0, 1, out, false, coder_scratch()),
                     -EUCLEAN);
    assert_int_equal(
        efs_cascade_merge(s.format, s.chunk, s.chunk_bytes, s.sm, 10000, 9999, 2, out, false, coder_scratch()),
        -EINVAL);
    assert_int_equal(efs_cascade_locate(s.format, s.chunk, 38, s.chunk_bytes, 10000, 9999, 2, &range), -EINVAL);
    assert_int_equal(efs_cascade_locate(s.format, s.chunk, 38, s.chunk_bytes, 10000, 1, SIZE_MAX, &range), -EINVAL);
    assert_int_equal(efs_cascade_locate(s.format, s.chunk, 38, s.chunk_bytes, 9999, 0, 1, &range), -EUCLEAN);
    assert_int_equal(efs_cascade_locate(s.format, s.chunk, 37, s.chunk_bytes, 10000, 0, 1, &range), -EUCLEAN);
    assert_int_equal(efs_cascade_locate(s.format, s.chunk, 38, s.chunk_bytes, 10000, 0, 1, &range), 0);
    shard_free(&s);
}

TEST_MAIN(NULL, NULL)
