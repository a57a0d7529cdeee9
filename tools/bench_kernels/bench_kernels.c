/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_kernels.c - a hand-run benchmark of kernels/: size against the entropy bound, encode, decode and merge, with
 * and without streaming stores, as ratios to memcpy of the same bytes taken in turns within the same run.
 *
 * Memory to memory: the buffers are far larger than any cache. It prints medians over rounds, and the two bandwidths
 * that bound it: reading alone, and writing alone.
 */
#include "weights.h"

#include "clock.h"
#include "measure.h"
#include "size.h"
#include "surroundings.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SHARD_ELEMENTS (512u << 10)
#define PATHS 4
#define FORMATS 6
#define ROUNDS_MAX 99
#define THREADS_MAX 64

static const char *const path_names[PATHS] = {"scalar", "avx2", "avx512", "neon"};
static const struct {
    const char *name;
    enum efs_format format;
} formats[FORMATS] = {
    {"bf16", EFS_FORMAT_BF16}, {"f16", EFS_FORMAT_F16},   {"f32", EFS_FORMAT_F32},
    {"e4m3", EFS_FORMAT_E4M3}, {"e5m2", EFS_FORMAT_E5M2}, {"bytes", EFS_FORMAT_BYTES},
};

struct options {
    size_t raw_bytes;
    unsigned rounds, threads, offset;
    const char *path, *format; /* NULL: all */
    const char *kind;          /* of weights */
    struct weights weights;
    bool json;
};

/* One format's data: raw, split, coded, shard by shard, and a place to decode to. */
struct data {
    enum efs_format format;
    size_t elements, shards, raw_bytes, chunk_room, sm_room, element_bytes;
    uint8_t *raw, *e, *sm, *chunks; /* shard s: sm + s * sm_room, chunks + s * chunk_room */
    uint8_t *back_room, *back;      /* back: offset bytes past an aligned address */
    size_t *chunk_bytes;
};

enum work { WORK_MEMCPY, WORK_READ, WORK_WRITE, WORK_SPLIT, WORK_ENCODE, WORK_MERGE, WORK_MERGE_STREAM, WORK_COUNT };

static void fail_usage(const char *what)
{
    fprintf(stderr, "bench_kernels: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        fail_usage("memory");
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

/* ---- the work, a shard at a time ------------------------------------------------------------------------------ */

/* Elements of shard s. */
static size_t shard_elements(const struct data *d, size_t s)
{
    size_t first = s * SHARD_ELEMENTS;
    return d->elements - first < SHARD_ELEMENTS ? d->elements - first : SHARD_ELEMENTS;
}

static void do_shard(const struct data *d, enum work work, size_t s)
{
    size_t n = shard_elements(d, s), first = s * SHARD_ELEMENTS, at = first * d->element_bytes;
    uint8_t *e = d->e + first, *sm = d->sm + s * d->sm_room, *chunk = d->chunks + s * d->chunk_room;

    switch (work) {
    case WORK_SPLIT:
        efs_split(d->format, d->raw + at, n, e, sm);
        break;
    case WORK_ENCODE: /* as the packer does: split, then code */
        efs_split(d->format, d->raw + at, n, e, sm);
        d->chunk_bytes[s] = efs_cascade_encode(e, n, chunk);
        break;
    case WORK_MERGE:
    case WORK_MERGE_STREAM:
        if (efs_cascade_merge(d->format, chunk, d->chunk_bytes[s], sm, efs_sm_bytes(d->format, n), 0, n, d->back + at,
                              work == WORK_MERGE_STREAM) != 0) {
            fprintf(stderr, "bench_kernels: a chunk does not decode\n");
            exit(1);
        }
        break;
    case WORK_MEMCPY:
    case WORK_READ:
    case WORK_WRITE:
    case WORK_COUNT:
        break;
    }
}

struct job {
    const struct data *d;
    enum work work;
    size_t first, end; /* shards */
    uint64_t sum;      /* keeps the reads */
};

static void *run_job(void *arg)
{
    struct job *job = arg;
    const struct data *d = job->d;
    size_t from = job->first * SHARD_ELEMENTS * d->element_bytes;
    size_t to = job->end == d->shards ? d->raw_bytes : job->end * SHARD_ELEMENTS * d->element_bytes;

    if (job->work == WORK_MEMCPY)
        memcpy(d->back + from, d->raw + from, to - from);
    else if (job->work == WORK_READ)
        job->sum = tools_read_words((const uint64_t *)(d->raw + from), (to - from) / 8);
    else if (job->work == WORK_WRITE)
        memset(d->back + from, 1, to - from); /* past the cache, at this size */
    else
        for (size_t s = job->first; s < job->end; s++)
            do_shard(d, job->work, s);
    return NULL;
}

/* GB/s of raw bytes. */
static double team_run(const struct data *d, enum work work, unsigned threads)
{
    struct job jobs[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    double start = tools_now_s();

    for (unsigned t = 0; t < threads; t++) {
        jobs[t] = (struct job){d, work, d->shards * t / threads, d->shards * (t + 1) / threads, 0};
        if (t + 1 == threads)
            run_job(&jobs[t]);
        else if ((errno = pthread_create(&ids[t], NULL, run_job, &jobs[t])) != 0)
            fail_usage("thread");
    }
    for (unsigned t = 0; t + 1 < threads; t++)
        pthread_join(ids[t], NULL);
    double seconds = tools_now_s() - start;
    __asm__ volatile("" ::"r"(jobs[0].sum));
    return (double)d->raw_bytes / seconds * 1e-9;
}

/* ---- measuring ------------------------------------------------------------------------------------------------ */

static void make_data(struct data *d, enum efs_format format, const struct options *o)
{
    d->format = format;
    d->element_bytes = efs_format_bytes(format);
    d->elements = o->raw_bytes / d->element_bytes;
    d->raw_bytes = d->elements * d->element_bytes;
    d->shards = (d->elements + SHARD_ELEMENTS - 1) / SHARD_ELEMENTS;
    d->chunk_room = (efs_cascade_bound(SHARD_ELEMENTS) + 4095) / 4096 * 4096;
    d->sm_room = (efs_sm_bytes(format, SHARD_ELEMENTS) + 4095) / 4096 * 4096;
    d->raw = memory(d->raw_bytes);
    d->back_room = memory(d->raw_bytes + 4096);
    d->back = d->back_room + o->offset;
    d->e = memory(d->elements);
    d->sm = memory(d->shards * d->sm_room + 4096);
    d->chunks = memory(d->shards * d->chunk_room);
    d->chunk_bytes = calloc(d->shards, sizeof(*d->chunk_bytes));
    if (d->chunk_bytes == NULL || weights_make(&o->weights, format, d->raw, d->elements, 1) != 0)
        fail_usage("weights");
}

static void free_data(struct data *d)
{
    munmap(d->raw, d->raw_bytes);
    munmap(d->back_room, d->raw_bytes + 4096);
    munmap(d->e, d->elements);
    munmap(d->sm, d->shards * d->sm_room + 4096);
    munmap(d->chunks, d->shards * d->chunk_room);
    free(d->chunk_bytes);
}

struct sizes {
    double coded_of_raw, bound_of_raw, exponent_bits, entropy_bits;
};

static struct sizes measure_sizes(const struct data *d)
{
    uint64_t counts[256] = {0};
    size_t coded = 0, sm = 0;

    efs_histogram(d->e, d->elements, counts);
    for (size_t s = 0; s < d->shards; s++) {
        coded += d->chunk_bytes[s];
        sm += efs_sm_bytes(d->format, shard_elements(d, s));
    }
    double entropy_bits = weights_entropy_bits(counts), raw = (double)d->raw_bytes;
    return (struct sizes){
        .coded_of_raw = (double)(coded + sm) / raw,
        .bound_of_raw = ((double)sm + (double)d->elements * entropy_bits / 8) / raw,
        .exponent_bits = (double)coded * 8 / (double)d->elements,
        .entropy_bits = entropy_bits,
    };
}

static void print_path(const struct options *o, const char *format, const struct data *d, double rates[][ROUNDS_MAX],
                       bool *first)
{
    double ratio[WORK_COUNT], rate[WORK_COUNT];

    for (unsigned w = 0; w < WORK_COUNT; w++) {
        double ratios[ROUNDS_MAX];
        for (unsigned r = 0; r < o->rounds; r++)
            ratios[r] = rates[w][r] / rates[WORK_MEMCPY][r];
        ratio[w] = tools_median(ratios, o->rounds);
    }
    for (unsigned w = 0; w < WORK_COUNT; w++) /* after the ratios: it puts the rounds in order */
        rate[w] = tools_median(rates[w], o->rounds);
    struct sizes z = measure_sizes(d);
    /* Every coded byte is read and every raw byte written, so no decoder is faster than either alone. */
    double by_reading = rate[WORK_READ] / z.coded_of_raw, by_writing = rate[WORK_WRITE];
    double limit = (by_reading < by_writing ? by_reading : by_writing) / rate[WORK_MEMCPY];

    if (o->json) {
        printf("%s\n  {\"format\": \"%s\", \"path\": \"%s\", \"threads\": %u, \"size\": %.5f, \"bound\": %.5f, "
               "\"exponent_bits\": %.4f, \"entropy_bits\": %.4f, \"memcpy_gbs\": %.3f, \"read_gbs\": %.3f, "
               "\"write_gbs\": %.3f, \"split_gbs\": %.3f, \"encode_gbs\": %.3f, \"merge_gbs\": %.3f, "
               "\"merge_ratio\": %.3f, \"stream_gbs\": %.3f, \"stream_ratio\": %.3f, \"limit_ratio\": %.3f}",
               *first ? "" : ",", format, efs_cpu_name(), o->threads, z.coded_of_raw, z.bound_of_raw, z.exponent_bits,
               z.entropy_bits, rate[WORK_MEMCPY], rate[WORK_READ], rate[WORK_WRITE], rate[WORK_SPLIT],
               rate[WORK_ENCODE], rate[WORK_MERGE], ratio[WORK_MERGE], rate[WORK_MERGE_STREAM],
               ratio[WORK_MERGE_STREAM], limit);
    } else {
        printf("%-7s%-8s%8.4f%8.4f%8.2f%8.2f%8.2f%8.2f%8.2f%9.2f%7.2f%9.2f%7.2f%7.2f\n", format, efs_cpu_name(),
               z.coded_of_raw, z.coded_of_raw / z.bound_of_raw, rate[WORK_MEMCPY], rate[WORK_READ], rate[WORK_WRITE],
               rate[WORK_SPLIT], rate[WORK_ENCODE], rate[WORK_MERGE], ratio[WORK_MERGE], rate[WORK_MERGE_STREAM],
               ratio[WORK_MERGE_STREAM], limit);
    }
    fflush(stdout);
    *first = false;
}

static void bench_format(const struct options *o, unsigned f, bool *first)
{
    static double rates[PATHS][WORK_COUNT][ROUNDS_MAX];
    struct data d;

    make_data(&d, formats[f].format, o);
    for (unsigned round = 0; round < o->rounds; round++) {
        for (unsigned p = 0; p < PATHS; p++) {
            if ((o->path && strcmp(o->path, path_names[p]) != 0) || !efs_cpu_force(path_names[p]))
                continue;
            if (round == 0)
                (void)team_run(&d, WORK_ENCODE, o->threads); /* touches everything, and makes the chunks */
            for (unsigned w = 0; w < WORK_COUNT; w++)
                rates[p][w][round] = team_run(&d, (enum work)w, o->threads);
            if (memcmp(d.raw, d.back, d.raw_bytes) != 0) {
                fprintf(stderr, "bench_kernels: decoded bytes differ\n");
                exit(1);
            }
        }
    }
    for (unsigned p = 0; p < PATHS; p++)
        if ((o->path == NULL || strcmp(o->path, path_names[p]) == 0) && efs_cpu_force(path_names[p]))
            print_path(o, formats[f].name, &d, rates[p], first);
    free_data(&d);
}

static const char help[] =
    "Usage: bench_kernels [OPTIONS]\n"
    "Measure the exponent coder and the merge, memory to memory, against memcpy in the same run.\n"
    "\n"
    "  -m, --mib=N       raw MiB of each format (512)\n"
    "  -r, --rounds=N    take the median of N rounds (7)\n"
    "  -t, --threads=N   threads, each with its own part (1)\n"
    "  -o, --offset=N    decode to N bytes past a page's begin (0; tensors in a file lie anywhere)\n"
    "  -f, --format=F    only bf16, f16, f32, e4m3, e5m2 or bytes\n"
    "  -p, --path=P      only scalar, avx2, avx512 or neon\n"
    "  -w, --weights=W   scaled (default: normal, a log-normal scale for each row), normal (one scale), heavy\n"
    "                    (Student's t, row scales), or a checkpoint: the elements of its matrices in their order\n"
    "  -j, --json        print JSON\n"
    "  -h, --help        print this\n"
    "\n"
    "Bytes are the exponents of BF16 weights. The bound is that of one table for all.\n"
    "Columns: size of raw; over the entropy bound; then GB/s of raw bytes: memcpy, reading alone, writing\n"
    "alone, split, split and encode, decode and merge (x: its ratio to memcpy), the same streaming;\n"
    "limit: the ratio that reading the coded bytes or writing the raw ones alone would have, the slower of them.\n";

int main(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"mib", required_argument, NULL, 'm'},     {"rounds", required_argument, NULL, 'r'},
        {"threads", required_argument, NULL, 't'}, {"offset", required_argument, NULL, 'o'},
        {"format", required_argument, NULL, 'f'},  {"path", required_argument, NULL, 'p'},
        {"weights", required_argument, NULL, 'w'}, {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
    };
    struct options o = {.raw_bytes = 512u << 20, .rounds = 7, .threads = 1, .kind = "scaled"};
    struct efs_error err = {""};
    bool first = true;
    int c;

    tools_surroundings();
    while ((c = getopt_long(argc, argv, "m:r:t:o:f:p:w:jh", long_options, NULL)) != -1) {
        switch (c) {
        case 'm':
            o.raw_bytes = (size_t)tools_number_or_exit("bench_kernels", optarg, 1, 1u << 16) << 20;
            break;
        case 'r':
            o.rounds = tools_number_or_exit("bench_kernels", optarg, 1, ROUNDS_MAX);
            break;
        case 't':
            o.threads = tools_number_or_exit("bench_kernels", optarg, 1, THREADS_MAX);
            break;
        case 'o':
            o.offset = tools_number_or_exit("bench_kernels", optarg, 0, 4095);
            break;
        case 'f':
            o.format = optarg;
            break;
        case 'p':
            o.path = optarg;
            break;
        case 'w':
            o.kind = optarg;
            break;
        case 'j':
            o.json = true;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            fputs("Try 'bench_kernels --help'.\n", stderr);
            return 2;
        }
    }
    if (weights_open(o.kind, &o.weights, &err) < 0) {
        fprintf(stderr, "bench_kernels: --weights: %s\n", err.text);
        weights_close(&o.weights);
        return 1;
    }
    if (o.json)
        printf("[");
    else
        printf("%-7s%-8s%8s%8s%8s%8s%8s%8s%8s%9s%7s%9s%7s%7s\n", "format", "path", "size", "/bound", "memcpy", "read",
               "write", "split", "encode", "merge", "x", "stream", "x", "limit");
    for (unsigned f = 0; f < FORMATS; f++)
        if (o.format == NULL || strcmp(o.format, formats[f].name) == 0)
            bench_format(&o, f, &first);
    if (o.json)
        printf("\n]\n");
    weights_close(&o.weights);
    if (first) {
        fprintf(stderr, "bench_kernels: no such format or path here\n");
        return 1;
    }
    return 0;
}
