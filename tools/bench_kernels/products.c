/* SPDX-License-Identifier: Apache-2.0 */
/*
 * products.c - benchmark of products of matrices with vectors: coded over plain, plain over reading the same bytes. The
 * matrices are together far larger than the caches. With one thread its CPU time is measured, which depends less on
 * other load.
 */
#include "bench.h"
#include "matvec.h"

#include "measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum work { WORK_READ, WORK_PLAIN, WORK_CODED, WORK_PLAIN_MANY, WORK_CODED_MANY, WORK_COUNT };
#define INPUTS_MAX (4096u / EFS_TOKENS_MAX)

/* Matrices of one shape, about --mib in total, each in both forms, and the current work. */
struct bench {
    uint32_t rows, cols;
    size_t count, plain_bytes, coded_bytes;
    struct efs_matrix *plain, *coded;
    enum work work;
    size_t some; /* number of matrices to process */
    unsigned threads, tokens;
    const void *inputs[INPUTS_MAX]; /* EFS_TOKENS_MAX vectors in each */
    void *scratch[THREADS_MAX];
    float *y;
    uint64_t sum[THREADS_MAX]; /* keeps the reads */
};

static void code_matrix(struct bench *b, const struct efs_matrix *plain, struct efs_matrix *coded, uint8_t **room)
{
    enum efs_format format = plain->f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
    size_t elements = (size_t)plain->rows * plain->cols, count = (elements + SHARD_ELEMENTS - 1) / SHARD_ELEMENTS;
    struct efs_matrix_shard *shards = calloc(count, sizeof(*shards));
    uint8_t *e = malloc(SHARD_ELEMENTS), *scratch = malloc(EFS_CASCADE_SCRATCH_BYTES);

    if (!shards || !e || !scratch)
        bench_fail("memory", ENOMEM);
    for (size_t s = 0; s < count; s++) {
        size_t first = s * SHARD_ELEMENTS, n = elements - first < SHARD_ELEMENTS ? elements - first : SHARD_ELEMENTS;
        size_t sm_bytes = efs_sm_bytes(format, n);
        uint8_t *sm = *room, *chunk = sm + (sm_bytes + 4095) / 4096 * 4096;
        efs_split(format, (const uint8_t *)plain->plain + 2 * first, n, e, sm);
        size_t chunk_bytes = efs_cascade_encode(e, n, chunk, scratch);
        shards[s] = (struct efs_matrix_shard){.e = chunk, .e_bytes = chunk_bytes, .sm = sm, .sm_bytes = sm_bytes};
        *room = chunk + (chunk_bytes + 4095) / 4096 * 4096;
        b->coded_bytes += chunk_bytes + sm_bytes;
    }
    *coded = *plain;
    coded->plain = NULL;
    coded->shards = shards;
    coded->shard_elements = SHARD_ELEMENTS;
    free(scratch);
    free(e);
}

static void make_matrices(struct bench *b, const struct bench_options *o)
{
    size_t each = (size_t)b->rows * b->cols;
    b->count = (size_t)(o->mib << 20) / (2 * each) + 1;
    b->plain_bytes = b->count * 2 * each;
    b->plain = calloc(b->count, sizeof(*b->plain));
    b->coded = calloc(b->count, sizeof(*b->coded));
    uint16_t *plain = bench_memory(b->plain_bytes);
    uint8_t *coded = bench_memory(b->plain_bytes); /* a chunk is at most about a page larger than its data */
    if (!b->plain || !b->coded)
        bench_fail("memory", ENOMEM);
    bench_weights(o->weights, o->f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16, b->count * each, plain);
    for (size_t i = 0; i < b->count; i++) {
        b->plain[i] = (struct efs_matrix){.rows = b->rows, .cols = b->cols, .f16 = o->f16, .plain = plain + i * each};
        code_matrix(b, &b->plain[i], &b->coded[i], &coded);
    }
    for (unsigned t = 0; t < THREADS_MAX; t++)
        b->scratch[t] = bench_memory(efs_matvec_scratch_bytes(b->cols > 4096 ? b->cols : 4096, EFS_TOKENS_MAX));
}

static void work_part(void *arg, unsigned part)
{
    struct bench *b = arg;
    uint32_t begin = (uint32_t)((uint64_t)b->rows * part / b->threads);
    uint32_t end = (uint32_t)((uint64_t)b->rows * (part + 1) / b->threads);
    bool coded = b->work == WORK_CODED || b->work == WORK_CODED_MANY;

    for (size_t i = 0; i < b->some; i++) {
        if (b->work == WORK_READ) {
            const uint16_t *plain = b->plain[i].plain;
            b->sum[part] ^= bench_read_words((const uint64_t *)(const void *)(plain + (size_t)begin * b->cols),
                                             (size_t)(end - begin) * b->cols / 4);
            continue;
        }
        for (unsigned t = 0; t < b->tokens; t += EFS_TOKENS_MAX) {
            int rc = efs_matvec(coded ? &b->coded[i] : &b->plain[i], b->inputs[t / EFS_TOKENS_MAX], begin, end,
                                b->y + (size_t)t * b->rows, b->rows, b->scratch[part]);
            if (rc != 0)
                bench_fail("product", -rc);
        }
    }
}

/* Seconds for all matrices, extrapolated from the first `some`. */
static double seconds_of(struct bench *b, enum work work, unsigned threads, unsigned tokens, size_t some)
{
    b->work = work;
    b->threads = threads;
    b->tokens = tokens;
    b->some = some;
    return bench_run(threads, true, work_part, b) * (double)b->count / (double)some;
}

static void make_inputs(struct bench *b, enum efs_input_type type, uint32_t tokens)
{
    float *x = bench_memory(sizeof(float) * b->cols * tokens);
    for (size_t i = 0; i < (size_t)b->cols * tokens; i++)
        x[i] = (float)(i * 2654435761u % 1024) / 512 - 1;
    for (uint32_t t = 0; t < tokens; t += EFS_TOKENS_MAX) {
        uint32_t n = tokens - t < EFS_TOKENS_MAX ? tokens - t : EFS_TOKENS_MAX;
        void *memory = aligned_alloc(EFS_MATVEC_ALIGN, efs_input_bytes(b->cols, n));
        int rc = memory ? efs_input_prepare(type, x + (size_t)t * b->cols, b->cols, b->cols, n, memory) : -ENOMEM;
        if (rc != 0)
            bench_fail("input", -rc);
        b->inputs[t / EFS_TOKENS_MAX] = memory;
    }
    free(x);
}

/* Exits with status 1 unless plain and coded products are bit-identical. */
static void check_same(struct bench *b, unsigned tokens)
{
    size_t bytes = (size_t)b->rows * tokens * sizeof(float);
    float *plain = bench_memory(bytes);
    (void)seconds_of(b, WORK_PLAIN, 1, tokens, 1);
    memcpy(plain, b->y, bytes);
    (void)seconds_of(b, WORK_CODED, 1, tokens, 1);
    if (memcmp(plain, b->y, bytes) != 0) {
        fprintf(stderr, "bench_kernels: coded and plain differ\n");
        exit(1);
    }
    free(plain);
}

/* The median over the rounds of time of b over time of a. */
static double ratio_of(double seconds[][ROUNDS_MAX], enum work a, enum work b, unsigned rounds)
{
    double ratios[ROUNDS_MAX];
    for (unsigned r = 0; r < rounds; r++)
        ratios[r] = seconds[b][r] / seconds[a][r];
    return tools_median(ratios, rounds);
}

static void measure(struct bench *b, const struct bench_options *o, enum efs_input_type type, unsigned threads)
{
    static const char *const names[] = {"read", "plain", "coded", "plain_many", "coded_many"};
    static double seconds[WORK_COUNT][ROUNDS_MAX];
    /* Products with many tokens take longer, so use a part of the matrices. */
    size_t some = (b->count + 7) / 8, few = o->tokens > EFS_TOKENS_MAX ? (b->count + 63) / 64 : some;

    b->y = bench_memory((size_t)b->rows * o->tokens * sizeof(float));
    make_inputs(b, type, o->tokens);
    check_same(b, o->tokens);
    for (unsigned r = 0; r < o->rounds; r++)
        for (unsigned w = WORK_PLAIN_MANY; w < WORK_COUNT; w++)
            seconds[w][r] = seconds_of(b, (enum work)w, threads, o->tokens, few);
    make_inputs(b, type, 1);
    check_same(b, 1);
    for (unsigned r = 0; r < o->rounds; r++)
        for (unsigned w = WORK_READ; w <= WORK_CODED; w++)
            seconds[w][r] = seconds_of(b, (enum work)w, threads, 1, b->count);
    double size = (double)b->coded_bytes / (double)b->plain_bytes,
           plain = ratio_of(seconds, WORK_PLAIN, WORK_READ, o->rounds);
    /* limit: coded over plain if reading the coded bytes were all that the coded product does. */
    printf(
        "{\"shape\": \"%ux%u\", \"path\": \"%s\", \"input\": \"%s\", \"threads\": %u, \"size\": %.4f, \"tokens\": %u, "
        "\"plain_over_read\": %.3f, \"coded_over_plain\": %.3f, \"limit\": %.3f, \"coded_many_over_plain\": %.3f",
        b->rows, b->cols, efs_cpu_name(),
        type == EFS_INPUT_F32_DOT ? "bf16"
        : type == EFS_INPUT_F32   ? "f32"
                                  : "f16",
        threads, size, o->tokens, plain, ratio_of(seconds, WORK_CODED, WORK_PLAIN, o->rounds), 1 / (size * plain),
        ratio_of(seconds, WORK_CODED_MANY, WORK_PLAIN_MANY, o->rounds));
    for (unsigned w = 0; w < WORK_COUNT; w++) /* after the ratios, because tools_median() sorts */
        printf(", \"%s_gbs\": %.3f", names[w], (double)b->plain_bytes / tools_median(seconds[w], o->rounds) * 1e-9);
    printf("}\n");
    fflush(stdout);
    free(b->y);
}

static void bench_shape(const struct bench_options *o, uint32_t rows, uint32_t cols)
{
    static const char *const paths[] = {"avx512", "avx2", "neon", "scalar"};
    struct bench b = {.rows = rows, .cols = cols};
    make_matrices(&b, o);
    for (size_t p = 0; p < sizeof(paths) / sizeof(paths[0]); p++) {
        if (o->path ? strcmp(o->path, paths[p]) != 0 : strcmp(paths[p], "scalar") == 0)
            continue;
        if (!efs_cpu_force(paths[p]))
            continue;
        for (unsigned turn = 0; turn < (o->threads > 1 ? 2 : 1); turn++) {
            measure(&b, o, o->f16 ? EFS_INPUT_F32_TO_F16 : EFS_INPUT_F32, turn ? o->threads : 1);
            if (!o->f16)
                measure(&b, o, EFS_INPUT_F32_DOT, turn ? o->threads : 1);
        }
    }
}

int bench_products(const struct bench_options *o)
{
    static const char *const usual[] = {"2880x2880", "4096x1536"};
    for (unsigned i = 0; i < (o->shapes.count ? o->shapes.count : 2); i++) {
        unsigned rows, cols;
        const char *shape = o->shapes.count ? o->shapes.word[i] : usual[i];
        int end = 0;
        if (sscanf(shape, "%ux%u%n", &rows, &cols, &end) != 2 || shape[end] || rows < 1 || rows > 65536 || cols < 4 ||
            cols > 4096) {
            fprintf(stderr, "bench_kernels: %s: not ROWSxCOLS, 1 to 65536 and 4 to 4096\n", shape);
            return 2;
        }
        bench_shape(o, rows, cols);
    }
    return 0;
}
