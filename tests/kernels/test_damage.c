/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_damage.c - damaged and forged chunks: every path and the twin of the GPU kernel return -EUCLEAN or decode the
 * same bytes as the reference, and access no memory outside the chunk, the SM and the destination, which all end at
 * guard pages.
 */
#include "test.h"
#include "gpu_twin.h"

struct buffers {
    enum efs_format format;
    size_t n;
    struct guarded sm, out;
    uint8_t *expected;
};

static struct buffers buffers_new(enum efs_format format, size_t n)
{
    struct buffers b = {.format = format, .n = n, .sm = guarded_new(efs_sm_bytes(format, n))};

    b.out = guarded_new(n * efs_format_bytes(format));
    b.expected = calloc(n * efs_format_bytes(format) + 1, 1);
    assert_non_null(b.expected);
    memset(b.sm.data, 0x6b, b.sm.bytes);
    return b;
}

static void buffers_free(struct buffers *b)
{
    guarded_free(&b->sm);
    guarded_free(&b->out);
    free(b->expected);
}

/* The twin returns the same as the reference, except that it also refuses a chunk with more elements than requested. */
static void check_twin(struct buffers *b, const struct guarded *chunk, int expected)
{
    uint32_t symbols = 0;

    if (chunk->bytes >= 4)
        memcpy(&symbols, chunk->data, 4);
    uint32_t status = gpu_twin_run(true, b->format, chunk->data, chunk->bytes, b->sm.data, b->n, b->out.data);
    assert_int_equal(status, expected == 0 && symbols == b->n ? EFS_GPU_OK : EFS_GPU_DAMAGED);
    if (status == EFS_GPU_OK)
        assert_memory_equal(b->out.data, b->expected, b->out.bytes);
}

/* Decodes the chunk on every path; all return the same value, which is the result. */
static int check_chunk(struct buffers *b, const struct guarded *chunk, bool stream)
{
    int expected = 0;

    for (size_t p = 0; p < PATH_COUNT; p++) {
        if (!efs_cpu_force(path_names[p]))
            continue;
        int r = efs_cascade_merge(b->format, chunk->data, chunk->bytes, b->sm.data, b->sm.bytes, 0, b->n, b->out.data,
                                  stream, coder_scratch());
        if (p == 0) {
            expected = r;
            assert_true(r == 0 || r == -EUCLEAN || r == -EINVAL);
            memcpy(b->expected, b->out.data, b->out.bytes);
        }
        assert_int_equal(r, expected);
        if (r == 0)
            assert_memory_equal(b->out.data, b->expected, b->out.bytes);
    }
    check_twin(b, chunk, expected);
    return expected;
}

static struct guarded encode(enum symbol_kind kind, size_t n, uint64_t *rng)
{
    uint8_t *symbols = malloc(n), *chunk = malloc(efs_cascade_bound(n));

    assert_true(symbols && chunk);
    symbols_fill(kind, symbols, n, rng);
    struct guarded g = guarded_copy(chunk, efs_cascade_encode(symbols, n, chunk, coder_scratch()));
    free(symbols);
    free(chunk);
    return g;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

TEST(truncated)
{
    uint64_t rng = 21;
    struct guarded whole = encode(SYMBOLS_WEIGHTS, 700, &rng);
    struct buffers b = buffers_new(EFS_FORMAT_BF16, 700);

    assert_int_equal(check_chunk(&b, &whole, false), 0);
    for (size_t bytes = 0; bytes < whole.bytes; bytes++) {
        struct guarded cut = guarded_copy(whole.data, bytes);
        assert_int_equal(check_chunk(&b, &cut, false), -EUCLEAN);
        if (bytes >= 16) { /* and with a header that has the cut size */
            put_u32(cut.data + 8, (uint32_t)bytes);
            assert_int_equal(check_chunk(&b, &cut, false), -EUCLEAN);
        }
        guarded_free(&cut);
    }
    struct guarded longer = guarded_new(whole.bytes + 100); /* bytes after the code, for later versions, are ignored */
    memset(longer.data, 0xee, longer.bytes);
    memcpy(longer.data, whole.data, whole.bytes - EFS_CASCADE_SLACK);
    assert_int_equal(check_chunk(&b, &longer, false), 0);
    put_u32(longer.data + 8, (uint32_t)whole.bytes); /* but spans must end where the code does */
    assert_int_equal(check_chunk(&b, &longer, false), -EUCLEAN);
    guarded_free(&longer);
    guarded_free(&whole);
    buffers_free(&b);
}

/* Flips every bit of small chunks with each number of levels; only flips in the tables and the padding may pass. */
TEST(every_bit)
{
    static const enum symbol_kind kinds[] = {SYMBOLS_WEIGHTS, SYMBOLS_UNIFORM, SYMBOLS_TRIPLES, SYMBOLS_ZERO};
    uint64_t rng = 22;

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct guarded chunk = encode(kinds[k], 333, &rng);
        struct buffers b = buffers_new(EFS_FORMAT_F16, 333);
        size_t refused = 0;
        for (size_t bit = 0; bit < 8 * chunk.bytes; bit++) {
            uint8_t mask = (uint8_t)(1u << bit % 8);
            chunk.data[bit / 8] ^= mask;
            int r = check_chunk(&b, &chunk, false);
            refused += r != 0;
            assert_true(r != 0 || bit >= 8 * (16 + 4)); /* each bit of the header and the offset is checked */
            chunk.data[bit / 8] ^= mask;
        }
        assert_true(refused >= 8 * (16 + 4 + 12));
        guarded_free(&chunk);
        buffers_free(&b);
    }
}

TEST(random_flips)
{
    uint64_t rng = 23;
    size_t refused = 0, passed = 0;

    for (int kind = 0; kind < SYMBOLS_KINDS; kind++) {
        enum efs_format format = (enum efs_format)(kind % EFS_FORMAT_COUNT);
        size_t n = 32768 + 3 * 8192 + 1234;
        struct guarded good = encode((enum symbol_kind)kind, n, &rng), bad = guarded_copy(good.data, good.bytes);
        struct buffers b = buffers_new(format, n);
        for (int round = 0; round < 60; round++) {
            memcpy(bad.data, good.data, good.bytes);
            for (uint32_t flips = 1 + random_below(&rng, 8); flips > 0; flips--)
                bad.data[random_below(&rng, (uint32_t)bad.bytes)] ^= (uint8_t)(1u << random_below(&rng, 8));
            if (check_chunk(&b, &bad, round % 2 != 0) == 0)
                passed++;
            else
                refused++;
        }
        guarded_free(&good);
        guarded_free(&bad);
        buffers_free(&b);
    }
    assert_true(refused > 0 && passed > 0);
}

/* Planes with only escapes, while the sizes allow few: the most bytes that a decoder could be made to read. */
TEST(all_escapes)
{
    static const size_t sizes[] = {100, 300, 900, 2700, 8100, 8192, 24576, 30000, 32768};
    uint64_t rng = 24;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct guarded chunk = encode(SYMBOLS_TRIPLES, sizes[i], &rng);
        struct buffers b = buffers_new(EFS_FORMAT_BF16, sizes[i]);
        const size_t code = 16 + 36;
        assert_true(chunk.data[code - 16] > 0);
        assert_int_equal(check_chunk(&b, &chunk, false), 0);
        memset(chunk.data + code, 0xff, chunk.bytes - EFS_CASCADE_SLACK - code);
        assert_int_equal(check_chunk(&b, &chunk, false), -EUCLEAN);
        assert_int_equal(check_chunk(&b, &chunk, true), -EUCLEAN);
        memset(chunk.data + code, 0, chunk.bytes - EFS_CASCADE_SLACK - code); /* and without any escape */
        assert_int_equal(check_chunk(&b, &chunk, false), -EUCLEAN);
        guarded_free(&chunk);
        buffers_free(&b);
    }
}

/* Sets one field at a time to a value that a check must catch. Spans' headers are at 16, 52 and 88. */
TEST(forged_fields)
{
    static const struct {
        size_t offset;
        uint32_t value;
    } forged[] = {
        {0, 0},           {0, 70001}, {0, 0x40000001},  {0, UINT32_MAX}, {4, 2},           {4, 4},
        {4, UINT32_MAX},  {8, 0},     {8, UINT32_MAX},  {12, 1},         {16, 0},          {16, 16},
        {16, UINT32_MAX}, {52, 0},    {52, UINT32_MAX}, {88, 52},        {88, 0x7fffffff},
    };
    uint64_t rng = 25;
    struct guarded chunk = encode(SYMBOLS_WEIGHTS, 70000, &rng);
    struct buffers b = buffers_new(EFS_FORMAT_BF16, 70000);

    for (size_t i = 0; i < sizeof(forged) / sizeof(forged[0]); i++) {
        uint32_t old;
        memcpy(&old, chunk.data + forged[i].offset, 4);
        put_u32(chunk.data + forged[i].offset, forged[i].value);
        assert_int_equal(check_chunk(&b, &chunk, false), -EUCLEAN);
        put_u32(chunk.data + forged[i].offset, old);
    }
    /* Two headers with the code of the first span. */
    memcpy(chunk.data + 52, chunk.data + 16, 4);
    assert_int_equal(check_chunk(&b, &chunk, false), -EUCLEAN);
    guarded_free(&chunk);
    buffers_free(&b);
}

/* Sizes that grow from level to level, more levels than allowed, entries that decrease, exceed a block's symbols, or
 * differ from the escapes in the planes. */
TEST(forged_span)
{
    static const struct {
        size_t offset;
        uint8_t value;
    } forged[] = {{20, 6}, {20, 255}, {20, 0}, {5, 0xff}, {7, 0xff}, {15, 0xff}, {17, 0}, {19, 0xff}, {14, 1}, {18, 1}};
    uint64_t rng = 26;
    struct guarded chunk = encode(SYMBOLS_WEIGHTS, 30000, &rng);
    struct buffers b = buffers_new(EFS_FORMAT_BF16, 30000);
    uint8_t *span = chunk.data + 16;

    for (size_t i = 0; i < sizeof(forged) / sizeof(forged[0]); i++) {
        uint8_t old = span[forged[i].offset];
        assert_true(old != forged[i].value);
        span[forged[i].offset] = forged[i].value;
        assert_int_equal(check_chunk(&b, &chunk, false), -EUCLEAN);
        span[forged[i].offset] = old;
    }
    assert_int_equal(check_chunk(&b, &chunk, false), 0);
    guarded_free(&chunk);
    buffers_free(&b);
}

/* A block whose symbols of level 1 all escape to a level of ten symbols at the end of the chunk: a decoder that trusted
 * the planes would read far past it. */
TEST(escapes_past_the_end)
{
    enum { RANGE = 8000, REST = 10, CHUNK = 16 + 36 + REST + 3 * RANGE / 4 + EFS_SPAN / 4 + EFS_CASCADE_SLACK };
    struct guarded chunk = guarded_new(CHUNK);
    struct buffers b = buffers_new(EFS_FORMAT_BF16, EFS_SPAN);
    const uint16_t counts[] = {3 * RANGE, REST, 0, 0, 0, RANGE, 2 * RANGE, 3 * RANGE};
    uint8_t *first = chunk.data + 16 + 36 + REST + 3 * RANGE / 4;

    memset(chunk.data, 0, chunk.bytes);
    put_u32(chunk.data, EFS_SPAN);
    put_u32(chunk.data + 4, 1);
    put_u32(chunk.data + 8, CHUNK - EFS_CASCADE_SLACK);
    put_u32(chunk.data + 16, 16 + 36);
    memcpy(chunk.data + 20, counts, sizeof(counts));
    chunk.data[16 + 20] = 2;
    memset(chunk.data + 16 + 36 + REST, 0xff, 3 * RANGE / 4);
    for (unsigned block = 0; block < 3; block++) /* four escapes a byte */
        memset(first + block * (EFS_BLOCK / 4), 0xff, RANGE / 4);
    assert_int_equal(check_chunk(&b, &chunk, false), -EUCLEAN);
    guarded_free(&chunk);
    buffers_free(&b);
}

TEST_MAIN(NULL, NULL)
