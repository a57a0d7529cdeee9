/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cascade.c - the cascade coder: chunks as kernels.h specifies them, equal on every path, decoded whole, in part
 * and merged with each format.
 */
#include "test.h"
#include "gpu_twin.h"

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static unsigned get_u16(const uint8_t *p)
{
    return p[0] + 256u * p[1];
}

/* Code i of n in the planes at p. */
static unsigned code_at(const uint8_t *p, size_t n, size_t i)
{
    size_t width = (n + 3) / 4;
    return p[i % width] >> (2 * (i / width)) & 3;
}

/* Decodes a span as specified in kernels.h: symbol by symbol, with a cursor for each level. */
static void decode_span_by_the_text(const uint8_t *header, const uint8_t *code, size_t n, uint8_t *out)
{
    unsigned levels = header[20];
    const uint8_t *part[6]; /* planes of a level, counted from 0; part[levels]: the rest */
    size_t cursor[6] = {0}, entering[6] = {n};

    for (unsigned l = 0; l < levels; l++)
        entering[l + 1] = get_u16(header + 4 + 2 * l);
    part[levels] = code;
    code += entering[levels];
    for (unsigned l = levels; l-- > 0; code += (entering[l] + 3) / 4)
        part[l] = code;
    for (size_t i = 0; i < n; i++) {
        size_t block = i / 8192 * 8192, m = n - block < 8192 ? n - block : 8192;
        unsigned l = 0, symbol = 3;
        if (i > 0 && i == block && levels > 0)
            assert_int_equal(get_u16(header + 14 + 2 * (i / 8192 - 1)), cursor[1]);
        for (; l < levels && symbol == 3; l++) {
            size_t at = cursor[l]++;
            symbol = l == 0 ? code_at(part[0] + block / 4, m, at - block) : code_at(part[l], entering[l], at);
            if (symbol != 3)
                out[i] = header[21 + 3 * l + symbol];
        }
        if (symbol == 3)
            out[i] = part[levels][cursor[levels]++];
    }
    for (unsigned l = 0; l < levels; l++) /* every escape was used */
        assert_int_equal(cursor[l + 1], entering[l + 1]);
    for (size_t b = (n + 8191) / 8192; b < 4; b++) /* blocks past the end of the span */
        assert_int_equal(get_u16(header + 14 + 2 * (b - 1)), levels > 0 ? entering[1] : 0);
}

static void decode_by_the_text(const uint8_t *chunk, size_t n, uint8_t *out, bool levels_seen[6])
{
    for (size_t s = 0; s < (n + 32767) / 32768; s++) {
        const uint8_t *header = chunk + 16 + 36 * s;
        size_t left = n - s * 32768;
        assert_true(header[20] <= 5);
        levels_seen[header[20]] = true;
        decode_span_by_the_text(header, chunk + get_u32(header), left < 32768 ? left : 32768, out + s * 32768);
    }
}

static void check_symbols(const uint8_t *symbols, size_t n, bool levels_seen[6])
{
    size_t bound = efs_cascade_bound(n);
    uint8_t *reference = malloc(bound), *decoded = malloc(n + 1);

    assert_true(reference && decoded);
    assert_true(efs_cpu_force("scalar"));
    size_t bytes = efs_cascade_encode(symbols, n, reference, coder_scratch());
    assert_true(bytes <= bound);
    assert_int_equal(get_u32(reference), n);
    assert_int_equal(get_u32(reference + 4), (n + 32767) / 32768);
    assert_int_equal(get_u32(reference + 8), bytes - EFS_CASCADE_SLACK);
    assert_int_equal(get_u32(reference + 12), 0);
    for (size_t i = bytes - EFS_CASCADE_SLACK; i < bytes; i++)
        assert_int_equal(reference[i], 0);
    decode_by_the_text(reference, n, decoded, levels_seen);
    assert_memory_equal(decoded, symbols, n);

    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]))
            continue;
        struct guarded in = guarded_copy(symbols, n), chunk = guarded_new(bound), out = guarded_new(n);
        memset(chunk.data, 0xa5, bound);
        assert_int_equal(efs_cascade_encode(in.data, n, chunk.data, coder_scratch()), bytes);
        assert_memory_equal(chunk.data, reference, bytes);
        struct guarded exact = guarded_copy(reference, bytes);
        assert_int_equal(efs_cascade_decode(exact.data, bytes, 0, n, out.data, coder_scratch()), 0);
        assert_memory_equal(out.data, symbols, n);
        guarded_free(&in);
        guarded_free(&chunk);
        guarded_free(&out);
        guarded_free(&exact);
    }
    gpu_twin_decodes(EFS_FORMAT_BYTES, reference, bytes, NULL, n, symbols);
    free(reference);
    free(decoded);
}

TEST(every_kind_and_size)
{
    uint8_t *symbols = malloc(SIZE_MAX_TESTED);
    bool levels_seen[6] = {false};
    uint64_t rng = 11;

    assert_non_null(symbols);
    for (int kind = 0; kind < SYMBOLS_KINDS; kind++) {
        for (size_t i = 0; i < SIZES; i++) {
            symbols_fill((enum symbol_kind)kind, symbols, size_at(i), &rng);
            check_symbols(symbols, size_at(i), levels_seen);
        }
    }
    for (unsigned levels = 0; levels <= 5; levels++)
        assert_true(levels_seen[levels]);
    free(symbols);
}

/* A level exists if with it, and those before it, a span is more than 16 bytes shorter than the best with fewer levels:
 * recomputed here from the definition of the sizes. */
TEST(number_of_levels)
{
    uint8_t symbols[32768];
    uint64_t rng = 12;

    for (int kind = 0; kind < SYMBOLS_KINDS; kind++) {
        uint8_t *chunk = malloc(efs_cascade_bound(sizeof(symbols)));
        uint32_t counts[256] = {0};
        size_t sizes[6], best = 0, planes = 0, left = sizeof(symbols);

        assert_non_null(chunk);
        symbols_fill((enum symbol_kind)kind, symbols, sizeof(symbols), &rng);
        for (size_t i = 0; i < sizeof(symbols); i++)
            counts[symbols[i]]++;
        sizes[0] = left;
        for (size_t level = 1; level <= 5; level++) {
            planes += (left + 3) / 4;
            for (int r = 0; r < 3; r++) {
                size_t top = 0;
                for (size_t s = 1; s < 256; s++)
                    top = counts[s] > counts[top] ? s : top;
                left -= counts[top];
                counts[top] = 0;
            }
            sizes[level] = planes + left;
            best = sizes[level] + 16 < sizes[best] ? level : best;
        }
        assert_true(efs_cpu_force("auto"));
        size_t bytes = efs_cascade_encode(symbols, sizeof(symbols), chunk, coder_scratch());
        assert_int_equal(chunk[16 + 20], best);
        assert_int_equal(bytes, 16 + 36 + sizes[best] + EFS_CASCADE_SLACK);
        free(chunk);
    }
}

/* Elements of the format with these exponents, cut to the format's width; all other bits are random. */
static void make_elements(enum efs_format format, const uint8_t *symbols, size_t n, uint8_t *raw, uint64_t *rng)
{
    size_t sm_bytes = efs_sm_bytes(format, n);
    uint8_t *e = malloc(n + 1), *sm = malloc(sm_bytes + 1);

    assert_true(e && sm);
    for (size_t i = 0; i < n; i++)
        e[i] = symbols[i] & (uint8_t)(format_symbols(format) - 1);
    for (size_t i = 0; i < sm_bytes; i++)
        sm[i] = (uint8_t)random_u64(rng);
    efs_merge(format, e, sm, n, raw);
    free(e);
    free(sm);
}

struct shard {
    enum efs_format format;
    size_t n, chunk_bytes, sm_bytes;
    uint8_t *raw, *e, *sm, *chunk;
};

static struct shard shard_new(enum efs_format format, enum symbol_kind kind, size_t n, uint64_t *rng)
{
    struct shard s = {.format = format, .n = n, .sm_bytes = efs_sm_bytes(format, n)};
    uint8_t *symbols = malloc(n + 1);

    s.raw = malloc(n * efs_format_bytes(format) + 1);
    s.e = malloc(n + 1);
    s.sm = malloc(s.sm_bytes + 1);
    s.chunk = malloc(efs_cascade_bound(n));
    assert_true(symbols && s.raw && s.e && s.sm && s.chunk);
    assert_true(efs_cpu_force("scalar"));
    symbols_fill(kind, symbols, n, rng);
    make_elements(format, symbols, n, s.raw, rng);
    efs_split(format, s.raw, n, s.e, s.sm);
    s.chunk_bytes = efs_cascade_encode(s.e, n, s.chunk, coder_scratch());
    free(symbols);
    return s;
}

static void shard_free(struct shard *s)
{
    free(s->raw);
    free(s->e);
    free(s->sm);
    free(s->chunk);
}

/* Merges a range of the shard to dst at an offset from an aligned address; the bytes around it must not change. */
static void check_range(const struct shard *s, const uint8_t *chunk, const uint8_t *sm, size_t first, size_t count,
                        size_t offset, bool stream)
{
    size_t bytes = efs_format_bytes(s->format);
    size_t room = offset + count * bytes + 128;
    uint8_t *dst = aligned_alloc(128, (room + 127) / 128 * 128);

    assert_non_null(dst);
    memset(dst, 0x5c, room);
    assert_int_equal(efs_cascade_merge(s->format, chunk, s->chunk_bytes, sm, s->sm_bytes, first, count, dst + offset,
                                       stream, coder_scratch()),
                     0);
    for (size_t i = 0; i < offset; i++)
        assert_int_equal(dst[i], 0x5c);
    assert_memory_equal(dst + offset, s->raw + first * bytes, count * bytes);
    for (size_t i = offset + count * bytes; i < room; i++)
        assert_int_equal(dst[i], 0x5c);
    free(dst);

    struct guarded out = guarded_new(count);
    assert_int_equal(efs_cascade_decode(chunk, s->chunk_bytes, first, count, out.data, coder_scratch()), 0);
    assert_memory_equal(out.data, s->e + first, count);
    guarded_free(&out);
}

/* Decodes a range from chunks of which only the bytes that it needs are right. */
static void check_parts(const struct shard *s, size_t first, size_t count)
{
    const size_t head = efs_cascade_long_head_bytes(s->n), width = efs_format_bytes(s->format);
    struct guarded chunk = guarded_new(s->chunk_bytes), sm = guarded_new(s->sm_bytes), out = guarded_new(count * width);
    struct efs_cascade_range range;

    assert_int_equal(efs_cascade_long_locate(s->format, s->chunk, s->chunk_bytes, s->n, first, count, &range), 0);
    assert_true(head <= range.code_begin && range.code_begin <= range.code_end && range.code_end <= s->chunk_bytes);
    assert_true(range.sm_begin <= range.sm_end && range.sm_end <= s->sm_bytes);
    memset(chunk.data, 0xee, chunk.bytes);
    memset(sm.data, 0xee, sm.bytes);
    memcpy(chunk.data, s->chunk, head);
    memcpy(chunk.data + range.code_begin, s->chunk + range.code_begin, range.code_end - range.code_begin);
    memcpy(sm.data + range.sm_begin, s->sm + range.sm_begin, range.sm_end - range.sm_begin);
    assert_int_equal(efs_cascade_merge(s->format, chunk.data, s->chunk_bytes, sm.data, s->sm_bytes, first, count,
                                       out.data, false, coder_scratch()),
                     0);
    assert_memory_equal(out.data, s->raw + first * width, out.bytes);
    guarded_free(&chunk);
    guarded_free(&sm);
    guarded_free(&out);
}

static void check_shard(const struct shard *s, uint64_t *rng, unsigned ranges)
{
    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]))
            continue;
        struct guarded chunk = guarded_copy(s->chunk, s->chunk_bytes), sm = guarded_copy(s->sm, s->sm_bytes);
        struct guarded whole = guarded_new(s->n * efs_format_bytes(s->format));
        for (int stream = 0; stream < 2; stream++) {
            memset(whole.data, 0, whole.bytes);
            assert_int_equal(efs_cascade_merge(s->format, chunk.data, s->chunk_bytes, sm.data, s->sm_bytes, 0, s->n,
                                               whole.data, stream != 0, coder_scratch()),
                             0);
            assert_memory_equal(whole.data, s->raw, whole.bytes);
            check_range(s, chunk.data, sm.data, 0, s->n, 0, stream != 0);
            check_range(s, chunk.data, sm.data, 0, s->n, 1, stream != 0);
        }
        for (unsigned i = 0; i < ranges; i++) {
            size_t first = random_below(rng, (uint32_t)s->n + 1);
            size_t count = random_below(rng, (uint32_t)(s->n - first) + 1);
            check_range(s, chunk.data, sm.data, first, count, random_below(rng, 128), i % 2 != 0);
            if (count > 0)
                check_parts(s, first, count);
        }
        guarded_free(&chunk);
        guarded_free(&sm);
        guarded_free(&whole);
    }
    gpu_twin_decodes(s->format, s->chunk, s->chunk_bytes, s->sm, s->n, s->raw);
}

TEST(merge_every_format_and_size)
{
    uint64_t rng = 13;

    for (int format = 0; format < EFS_FORMAT_COUNT; format++) {
        for (size_t i = 0; i < SIZES; i += i < SMALL_SIZES - 7 ? 7 : 1) {
            struct shard s = shard_new((enum efs_format)format, SYMBOLS_WEIGHTS, size_at(i), &rng);
            check_shard(&s, &rng, 4);
            shard_free(&s);
        }
    }
}

TEST(merge_every_kind)
{
    uint64_t rng = 14;

    for (int format = 0; format < EFS_FORMAT_COUNT; format++) {
        for (int kind = 0; kind < SYMBOLS_KINDS; kind++) {
            struct shard s = shard_new((enum efs_format)format, (enum symbol_kind)kind, 32768 + 2 * 8192 + 731, &rng);
            check_shard(&s, &rng, 6);
            shard_free(&s);
        }
    }
}

/* Every alignment of the destination, with streaming stores, over more than one block. */
TEST(merge_every_alignment)
{
    uint64_t rng = 15;

    for (int format = 0; format < EFS_FORMAT_COUNT; format++) {
        struct shard s = shard_new((enum efs_format)format, SYMBOLS_WEIGHTS, 5 * 8192, &rng);
        for (size_t p = 0; p < PATH_COUNT; p++) {
            if (!efs_cpu_force(path_names[p]))
                continue;
            for (size_t offset = 0; offset <= 64; offset++)
                check_range(&s, s.chunk, s.sm, 0, s.n, offset, true);
        }
        shard_free(&s);
    }
}

TEST(bad_arguments)
{
    uint64_t rng = 16;
    struct shard s = shard_new(EFS_FORMAT_BF16, SYMBOLS_WEIGHTS, 10000, &rng);
    uint8_t out[16];

    assert_int_equal(efs_cascade_decode(s.chunk, s.chunk_bytes, 10001, 0, out, coder_scratch()), -EINVAL);
    assert_int_equal(efs_cascade_decode(s.chunk, s.chunk_bytes, 9999, 2, out, coder_scratch()), -EINVAL);
    assert_int_equal(efs_cascade_decode(s.chunk, s.chunk_bytes, 1, SIZE_MAX, out, coder_scratch()), -EINVAL);
    assert_int_equal(efs_cascade_decode(s.chunk, s.chunk_bytes, 10000, 0, out, coder_scratch()), 0);
    assert_int_equal(
        efs_cascade_merge(EFS_FORMAT_BF16, s.chunk, s.chunk_bytes, s.sm, 9999, 0, 1, out, false, coder_scratch()),
        -EUCLEAN);
    assert_int_equal(
        efs_cascade_merge(EFS_FORMAT_BF16, s.chunk, s.chunk_bytes, s.sm, 10001, 0, 1, out, false, coder_scratch()),
        -EUCLEAN);
    assert_int_equal(
        efs_cascade_merge(EFS_FORMAT_COUNT, s.chunk, s.chunk_bytes, s.sm, 10000, 0, 1, out, false, coder_scratch()),
        -EINVAL);
    assert_int_equal(
        efs_cascade_merge(EFS_FORMAT_BF16, s.chunk, s.chunk_bytes, s.sm, 10000, 9999, 1, out, false, coder_scratch()),
        0);
    assert_memory_equal(out, s.raw + 2 * 9999, 2);
    struct efs_cascade_range range;
    assert_int_equal(efs_cascade_long_locate(s.format, s.chunk, s.chunk_bytes, 10000, 9999, 2, &range), -EINVAL);
    assert_int_equal(efs_cascade_long_locate(s.format, s.chunk, s.chunk_bytes, 10000, 1, SIZE_MAX, &range), -EINVAL);
    assert_int_equal(efs_cascade_long_locate(s.format, s.chunk, s.chunk_bytes, 9999, 0, 1, &range), -EUCLEAN);
    for (size_t at = 0; at < efs_cascade_long_head_bytes(10000); at++) { /* any range is inside the chunk */
        s.chunk[at] ^= 0x81;
        int r = efs_cascade_long_locate(s.format, s.chunk, s.chunk_bytes, 10000, 5, 6, &range);
        assert_true(r == -EUCLEAN || (r == 0 && range.code_begin <= range.code_end && range.code_end <= s.chunk_bytes));
        s.chunk[at] ^= 0x81;
    }
    shard_free(&s);
}

TEST_MAIN(NULL, NULL)
