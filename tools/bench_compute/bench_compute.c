/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_compute.c - a hand-run benchmark of products: coded over plain, plain over reading the same bytes, an expert.
 *
 * The matrices are together far larger than the caches. Whatever is compared is taken in turns within one run; medians
 * are printed. With one thread time is that thread's processor time, so that others on the machine disturb less.
 */
#include "weights.h"

#include "measure.h"
#include "size.h"
#include "surroundings.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS_MAX 99
#define THREADS_MAX 64
#define TOKENS_MANY 16
#define TOKENS_MAX 4096

enum work {
    WORK_READ,
    WORK_PLAIN,
    WORK_CODED,
    WORK_PLAIN_MANY,
    WORK_CODED_MANY,
    WORK_COUNT,
};

struct options {
    size_t bytes;
    unsigned rounds, threads, tokens;
    const char *path;
    bool json, f16;
};

/* Vectors for products, EFS_TOKENS_MAX in each piece of memory. */
struct inputs {
    void *memory[TOKENS_MAX / EFS_TOKENS_MAX];
    unsigned tokens;
};

struct job {
    const struct weights *weights;
    enum work work;
    unsigned part, parts;
    const struct inputs *inputs;
    void *scratch;
    float *y;
    uint64_t sum; /* keeps the reads */
};

static void fail_usage(const char *what, int error)
{
    fprintf(stderr, "bench_compute: %s: %s\n", what, strerror(error));
    exit(1);
}

/* ---- the work ------------------------------------------------------------------------------------------------------
 */

static void *run_job(void *arg)
{
    struct job *job = arg;
    const struct weights *w = job->weights;
    uint32_t begin = (uint32_t)((uint64_t)w->rows * job->part / job->parts);
    uint32_t end = (uint32_t)((uint64_t)w->rows * (job->part + 1) / job->parts);

    for (size_t i = 0; i < w->count; i++) {
        const uint16_t *plain = w->plain[i].plain;
        const struct efs_matrix *matrix =
            job->work == WORK_CODED || job->work == WORK_CODED_MANY ? &w->coded[i] : &w->plain[i];
        if (job->work == WORK_READ) {
            job->sum ^= tools_read_words((const uint64_t *)(const void *)(plain + (size_t)begin * w->cols),
                                         (size_t)(end - begin) * w->cols / 4);
        } else {
            for (unsigned t = 0; t < job->inputs->tokens; t += EFS_TOKENS_MAX) {
                float *y = job->y + (size_t)t * w->rows;
                int r =
                    efs_matvec(matrix, job->inputs->memory[t / EFS_TOKENS_MAX], begin, end, y, w->rows, job->scratch);
                if (r != 0)
                    fail_usage("product", -r);
            }
        }
    }
    return NULL;
}

static double now_s(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds. */
static double team_run(const struct weights *w, enum work work, unsigned threads, const struct inputs *inputs, float *y)
{
    static void *scratch[THREADS_MAX];
    struct job jobs[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;

    for (unsigned t = 0; t < threads; t++) {
        if (scratch[t] == NULL)
            scratch[t] = huge_memory(efs_matvec_scratch_bytes(w->cols > 4096 ? w->cols : 4096, EFS_TOKENS_MAX));
        jobs[t] = (struct job){w, work, t, threads, inputs, scratch[t], y, 0};
    }
    double start = now_s(clock);
    for (unsigned t = 0; t < threads; t++)
        if (t + 1 == threads)
            run_job(&jobs[t]);
        else if ((errno = pthread_create(&ids[t], NULL, run_job, &jobs[t])) != 0)
            fail_usage("thread", errno);
    for (unsigned t = 0; t + 1 < threads; t++)
        pthread_join(ids[t], NULL);
    double seconds = now_s(clock) - start;
    __asm__ volatile("" ::"r"(jobs[0].sum));
    return seconds;
}

/* ---- measuring -----------------------------------------------------------------------------------------------------
 */

/* The median of how many times as fast a was as b. */
static double ratio_of(double seconds[WORK_COUNT][ROUNDS_MAX], enum work a, enum work b, unsigned rounds)
{
    double ratios[ROUNDS_MAX];

    for (unsigned r = 0; r < rounds; r++)
        ratios[r] = seconds[b][r] / seconds[a][r];
    return tools_median(ratios, rounds);
}

static struct inputs inputs_make(enum efs_input_type type, uint32_t cols, uint32_t tokens)
{
    struct inputs inputs = {.tokens = tokens};
    float *x = malloc(4 * (size_t)cols * tokens);

    for (size_t i = 0; x != NULL && i < (size_t)cols * tokens; i++)
        x[i] = (float)(i * 2654435761u % 1024) / 512 - 1;
    for (uint32_t t = 0; t < tokens; t += EFS_TOKENS_MAX) {
        uint32_t n = tokens - t < EFS_TOKENS_MAX ? tokens - t : EFS_TOKENS_MAX;
        void *memory = aligned_alloc(EFS_MATVEC_ALIGN, efs_input_bytes(cols, n));
        int r = -ENOMEM;
        if (memory != NULL && x != NULL)
            r = efs_input_prepare(type, x + (size_t)t * cols, cols, cols, n, memory);
        if (r != 0)
            fail_usage("input", -r);
        inputs.memory[t / EFS_TOKENS_MAX] = memory;
    }
    free(x);
    return inputs;
}

static void inputs_free(struct inputs *inputs)
{
    for (uint32_t t = 0; t < inputs->tokens; t += EFS_TOKENS_MAX)
        free(inputs->memory[t / EFS_TOKENS_MAX]);
}

/* Plain and coded must give the same bits. */
static void check_same(const struct weights *w, const struct inputs *one, const struct inputs *many)
{
    struct weights first = *w;

    first.count = 1;
    for (unsigned i = 0; i < 2; i++) {
        const struct inputs *inputs = i == 0 ? one : many;
        size_t n = (size_t)w->rows * inputs->tokens;
        float *plain = malloc(n * sizeof(float)), *coded = malloc(n * sizeof(float));
        if (plain == NULL || coded == NULL)
            fail_usage("output", ENOMEM);
        (void)team_run(&first, i == 0 ? WORK_PLAIN : WORK_PLAIN_MANY, 1, inputs, plain);
        (void)team_run(&first, i == 0 ? WORK_CODED : WORK_CODED_MANY, 1, inputs, coded);
        if (memcmp(plain, coded, n * sizeof(float)) != 0) {
            fprintf(stderr, "bench_compute: coded and plain differ\n");
            exit(1);
        }
        free(plain);
        free(coded);
    }
}

static void print_row(const struct options *o, const struct weights *w, const char *type, unsigned threads,
                      double seconds[WORK_COUNT][ROUNDS_MAX])
{
    double gbs[WORK_COUNT], size = (double)w->coded_bytes / (double)w->plain_bytes;
    double coded = ratio_of(seconds, WORK_CODED, WORK_PLAIN, o->rounds);
    double plain = ratio_of(seconds, WORK_PLAIN, WORK_READ, o->rounds);
    double many = ratio_of(seconds, WORK_CODED_MANY, WORK_PLAIN_MANY, o->rounds);
    /* Every coded byte is read: no faster than that, next to plain as it was. */
    double limit = 1 / (size * plain);

    for (unsigned k = 0; k < WORK_COUNT; k++) /* after the ratios: it puts the rounds in order */
        gbs[k] = (double)w->plain_bytes / tools_median(seconds[k], o->rounds) * 1e-9;
    if (o->json)
        printf("{\"shape\": \"%ux%u\", \"path\": \"%s\", \"input\": \"%s\", \"threads\": %u, \"size\": %.4f, "
               "\"read_gbs\": %.3f, \"plain_gbs\": %.3f, \"coded_gbs\": %.3f, \"plain_over_read\": %.3f, "
               "\"coded_over_plain\": %.3f, \"limit\": %.3f, \"tokens\": %u, \"plain_many_gbs\": %.3f, "
               "\"coded_many_gbs\": %.3f, \"coded_many_over_plain\": %.3f}\n",
               w->rows, w->cols, efs_cpu_name(), type, threads, size, gbs[WORK_READ], gbs[WORK_PLAIN], gbs[WORK_CODED],
               plain, coded, limit, o->tokens, gbs[WORK_PLAIN_MANY], gbs[WORK_CODED_MANY], many);
    else
        printf("%4ux%-6u%-8s%-6s%3u%8.4f%8.2f%8.2f%7.2f%8.2f%7.2f%7.2f%8.2f%8.2f%7.2f\n", w->rows, w->cols,
               efs_cpu_name(), type, threads, size, gbs[WORK_READ], gbs[WORK_PLAIN], plain, gbs[WORK_CODED], coded,
               limit, gbs[WORK_PLAIN_MANY], gbs[WORK_CODED_MANY], many);
    fflush(stdout);
}

static void measure_shape(const struct options *o, const struct weights *w, enum efs_input_type type, unsigned threads)
{
    static double seconds[WORK_COUNT][ROUNDS_MAX];
    struct inputs one = inputs_make(type, w->cols, 1), many = inputs_make(type, w->cols, o->tokens);
    float *y = malloc((size_t)w->rows * o->tokens * sizeof(float));
    struct weights some = *w; /* many tokens take many times as long: some of the matrices will do */

    if (y == NULL)
        fail_usage("output", ENOMEM);
    check_same(w, &one, &many);
    some.count = (w->count + 7) / 8;
    if (o->tokens > EFS_TOKENS_MAX)
        some.count = (w->count + 63) / 64;
    for (unsigned r = 0; r < o->rounds; r++) {
        for (unsigned k = 0; k < WORK_COUNT; k++) {
            bool is_many = k == WORK_PLAIN_MANY || k == WORK_CODED_MANY;
            double s = team_run(is_many ? &some : w, (enum work)k, threads, is_many ? &many : &one, y);
            seconds[k][r] = is_many ? s * (double)w->count / (double)some.count : s;
        }
    }
    print_row(o, w, type == EFS_INPUT_F32_DOT ? "bf16" : type == EFS_INPUT_F32 ? "f32" : "f16", threads, seconds);
    inputs_free(&one);
    inputs_free(&many);
    free(y);
}

static void bench_shape(const struct options *o, uint32_t rows, uint32_t cols)
{
    static const char *const paths[] = {"avx512", "avx2", "neon", "scalar"};
    struct weights w;

    weights_make(&w, o->f16, rows, cols, o->bytes);
    for (size_t p = 0; p < sizeof(paths) / sizeof(paths[0]); p++) {
        if (o->path != NULL ? strcmp(o->path, paths[p]) != 0 : strcmp(paths[p], "scalar") == 0)
            continue;
        if (!efs_cpu_force(paths[p]))
            continue;
        for (unsigned threads = 1; threads <= o->threads;
             threads = threads == 1 && o->threads > 1 ? o->threads : threads + o->threads) {
            measure_shape(o, &w, o->f16 ? EFS_INPUT_F32_TO_F16 : EFS_INPUT_F32, threads);
            if (!o->f16)
                measure_shape(o, &w, EFS_INPUT_F32_DOT, threads);
        }
    }
}

static const char help[] =
    "Usage: bench_compute [OPTIONS] [ROWSxCOLS...]\n"
    "Measure products of BF16 matrices (2880x2880 and 4096x1536) with vectors: coded against plain.\n"
    "\n"
    "  -m, --mib=N       MiB of plain weights of each shape (512)\n"
    "  -r, --rounds=N    take the median of N rounds (7)\n"
    "  -t, --threads=N   measure with 1 thread and with N (all processors)\n"
    "  -T, --tokens=N    how many vectors at once are compared with one (16)\n"
    "  -f, --f16         matrices of F16, vectors rounded to F16\n"
    "  -p, --path=P      only scalar, avx2, avx512 or neon\n"
    "  -j, --json        print lines of JSON\n"
    "  -h, --help        print this\n"
    "\n"
    "Columns: shape; path; what the vectors are; threads; size of coded over plain; then GB/s of plain bytes: reading\n"
    "alone, plain (x: over reading), coded (x: over plain; limit: what x were if the coded bytes came as fast as\n"
    "reading alone), many tokens plain, coded (x: over plain).\n";

int main(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"mib", required_argument, NULL, 'm'},
        {"rounds", required_argument, NULL, 'r'},
        {"threads", required_argument, NULL, 't'},
        {"tokens", required_argument, NULL, 'T'},
        {"f16", no_argument, NULL, 'f'},
        {"path", required_argument, NULL, 'p'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct options o = {.bytes = (size_t)512 << 20, .rounds = 7, .tokens = TOKENS_MANY};
    int c;

    o.threads = processors < 1 ? 1 : processors > THREADS_MAX ? THREADS_MAX : (unsigned)processors;
    tools_surroundings();
    while ((c = getopt_long(argc, argv, "m:r:t:T:fp:jh", long_options, NULL)) != -1) {
        switch (c) {
        case 'm':
            o.bytes = (size_t)tools_number_or_exit("bench_compute", optarg, 1, 65536) << 20;
            break;
        case 'r':
            o.rounds = tools_number_or_exit("bench_compute", optarg, 1, ROUNDS_MAX);
            break;
        case 't':
            o.threads = tools_number_or_exit("bench_compute", optarg, 1, THREADS_MAX);
            break;
        case 'T':
            o.tokens = tools_number_or_exit("bench_compute", optarg, 2, TOKENS_MAX);
            break;
        case 'f':
            o.f16 = true;
            break;
        case 'p':
            o.path = optarg;
            break;
        case 'j':
            o.json = true;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            return 2;
        }
    }
    if (!o.json)
        printf("shape      path   input thr    size    read   plain      x   coded      x  limit plain16 coded16      "
               "x\n");
    if (optind == argc) {
        bench_shape(&o, 2880, 2880);
        bench_shape(&o, 4096, 1536);
    }
    for (; optind < argc; optind++) {
        unsigned rows, cols;
        int end = 0;
        if (sscanf(argv[optind], "%ux%u%n", &rows, &cols, &end) != 2 || argv[optind][end] != '\0' || rows < 1 ||
            rows > 65536 || cols < 4 || cols > 4096) {
            fprintf(stderr, "bench_compute: %s: not ROWSxCOLS, 1 to 65536 and 4 to 4096\n", argv[optind]);
            return 2;
        }
        bench_shape(&o, rows, cols);
    }
    return 0;
}
