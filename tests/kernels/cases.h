/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h - shared by the kernels' tests: inputs, buffers with guard pages, the names of code paths.
 */
#ifndef EFS_TESTS_KERNELS_CASES_H
#define EFS_TESTS_KERNELS_CASES_H

#include "test.h"
#include "kernels.h"

#include <sys/mman.h>
#include <unistd.h>

/* Every path that may exist on a CPU; the first one is the reference. */
static const char *const path_names[] = {"scalar", "avx2", "avx512", "neon"};
#define PATH_COUNT (sizeof(path_names) / sizeof(path_names[0]))

static inline uint64_t random_u64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint32_t random_below(uint64_t *state, uint32_t limit)
{
    return (uint32_t)((random_u64(state) >> 32) * limit >> 32);
}

/* Number of values that an E byte can take. */
static inline unsigned format_symbols(enum efs_format format)
{
    return format == EFS_FORMAT_F16 || format == EFS_FORMAT_E5M2 ? 32 : format == EFS_FORMAT_E4M3 ? 16 : 256;
}

/* A buffer that ends at an inaccessible page, in a mapping that starts with one. */
struct guarded {
    uint8_t *map, *data; /* data: `bytes` bytes up to the guard page */
    size_t map_bytes, bytes;
};

static inline struct guarded guarded_new(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inside = (bytes + page - 1) / page * page;
    struct guarded g = {.map_bytes = inside + 2 * page, .bytes = bytes};
    void *map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(map != MAP_FAILED);
    g.map = map;
    if (inside > 0)
        assert_int_equal(mprotect(g.map + page, inside, PROT_READ | PROT_WRITE), 0);
    g.data = g.map + page + inside - bytes;
    return g;
}

static inline struct guarded guarded_copy(const void *from, size_t bytes)
{
    struct guarded g = guarded_new(bytes);
    if (bytes > 0)
        memcpy(g.data, from, bytes);
    return g;
}

static inline void guarded_free(struct guarded *g)
{
    munmap(g->map, g->map_bytes);
}

/* Working memory for the coder, of exactly the bytes that it may use. */
static inline void *coder_scratch(void)
{
    static struct guarded scratch;
    if (scratch.data == NULL)
        scratch = guarded_new(EFS_CASCADE_SCRATCH_BYTES);
    return scratch.data;
}

/* ---- exponent bytes to code ----------------------------------------------------------------------------------- */

enum symbol_kind {
    SYMBOLS_ZERO,
    SYMBOLS_FF,
    SYMBOLS_UNIFORM,
    SYMBOLS_SAWTOOTH,
    SYMBOLS_WEIGHTS,    /* exponents of normally distributed weights */
    SYMBOLS_LAST_ALONE, /* three symbols, and a fourth in the last place only */
    SYMBOLS_FIRST_ALONE,
    SYMBOLS_RUNS,
    SYMBOLS_DEEP,     /* 17 symbols, each half as frequent as the one before */
    SYMBOLS_TRIPLES,  /* each level halves the remaining symbols, evenly within the level: 5 levels pay */
    SYMBOLS_DISTINCT, /* DISTINCT + k: k + 1 symbols equally frequent */
    SYMBOLS_KINDS = SYMBOLS_DISTINCT + 18
};

static inline uint8_t symbol_of(enum symbol_kind kind, size_t i, size_t n, uint64_t *state)
{
    uint64_t r = random_u64(state);

    switch (kind) {
    case SYMBOLS_ZERO:
        return 0;
    case SYMBOLS_FF:
        return 255;
    case SYMBOLS_UNIFORM:
        return (uint8_t)r;
    case SYMBOLS_SAWTOOTH:
        return (uint8_t)i;
    case SYMBOLS_WEIGHTS: { /* exponent of a sum of uniform numbers */
        int32_t sum = -4 * 32768;
        for (int k = 0; k < 4; k++)
            sum += (int32_t)(r >> 16 * k & 0xffff);
        uint32_t magnitude = (uint32_t)(sum < 0 ? -sum : sum) | 1;
        return (uint8_t)(121 - __builtin_clz(magnitude));
    }
    case SYMBOLS_LAST_ALONE:
        return i + 1 == n ? 0 : (uint8_t)(7 + r % 3);
    case SYMBOLS_FIRST_ALONE:
        return i == 0 ? 255 : (uint8_t)(r % 3);
    case SYMBOLS_RUNS:
        return (uint8_t)(i / 37 * 59);
    case SYMBOLS_DEEP:
        return (uint8_t)(100 + __builtin_ctzll(r | 1u << 16));
    case SYMBOLS_TRIPLES:
        return (uint8_t)(3 * (unsigned)__builtin_ctzll(r >> 8 | 1u << 5) + r % 3);
    default:
        return (uint8_t)(r % (unsigned)(kind - SYMBOLS_DISTINCT + 1) * 13 + 1);
    }
}

static inline void symbols_fill(enum symbol_kind kind, uint8_t *symbols, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++)
        symbols[i] = symbol_of(kind, i, n, state);
}

/* Sizes at the edges of vectors and blocks: 0..299, and around multiples of blocks and spans. */
#define SMALL_SIZES 300
static const size_t edge_sizes[] = {
    511,
    512,
    513,
    1000,
    2047,
    2048,
    2049,
    4096,
    6143,
    8128,
    8190,
    8191,
    8192,
    8193,
    8194,
    8255,
    16383,
    16384,
    16385,
    24575,
    24576,
    24577,
    3 * 8192 + 4099,
    32767,
    32768,
    32769,
    32768 + 8192,
    2 * 32768 + 3 * 8192 + 4099,
};
#define SIZES (SMALL_SIZES + sizeof(edge_sizes) / sizeof(edge_sizes[0]))
#define SIZE_MAX_TESTED (2 * 32768 + 3 * 8192 + 4099)

static inline size_t size_at(size_t i)
{
    return i < SMALL_SIZES ? i : edge_sizes[i - SMALL_SIZES];
}

#endif
