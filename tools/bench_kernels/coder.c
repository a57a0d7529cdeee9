/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coder.c - benchmark of the coder: size against the entropy bound; rates of encoding and of decoding with merge, with
 * and without streaming stores, as ratios to memcpy of the same bytes, alternating in one run. Memory to memory; the
 * buffers are far larger than any cache.
 */
#include "bench.h"

#include "measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum work { WORK_MEMCPY, WORK_READ, WORK_WRITE, WORK_SPLIT, WORK_ENCODE, WORK_MERGE, WORK_STREAM, WORK_COUNT };
static const char *const work_names[] = {"memcpy", "read", "write", "split", "encode", "merge", "stream"};
static const char *const paths[] = {"scalar", "avx2", "avx512", "neon"};
#define PATHS (sizeof(paths) / sizeof(paths[0]))
const struct bench_format bench_formats[BENCH_FORMATS] = {{"bf16", EFS_FORMAT_BF16}, {"f16", EFS_FORMAT_F16},
                                                          {"f32", EFS_FORMAT_F32},   {"e4m3", EFS_FORMAT_E4M3},
                                                          {"e5m2", EFS_FORMAT_E5M2}, {"bytes", EFS_FORMAT_BYTES}};

/* Data of one format: raw, split and coded, by shard, and the output of decoding. */
struct data {
    enum efs_format format;
    size_t elements, shards, raw_bytes, chunk_room, sm_room, each;
    uint8_t *raw, *e, *sm, *chunks, *back; /* shard s: sm + s * sm_room, chunks + s * chunk_room */
    uint8_t *scratch;                      /* of each thread */
    size_t *chunk_bytes;
    enum work work;
    unsigned threads, span_log2; /* 12, 13: short spans */
    uint64_t sum[THREADS_MAX];   /* keeps the reads */
};

static size_t shard_elements(const struct data *d, size_t s)
{
    size_t first = s * SHARD_ELEMENTS;
    return d->elements - first < SHARD_ELEMENTS ? d->elements - first : SHARD_ELEMENTS;
}

static void do_shard(const struct data *d, size_t s, uint8_t *scratch)
{
    size_t n = shard_elements(d, s), first = s * SHARD_ELEMENTS, at = first * d->each;
    uint8_t *e = d->e + first, *sm = d->sm + s * d->sm_room, *chunk = d->chunks + s * d->chunk_room;

    bool is_short = d->span_log2 < EFS_SPAN_LOG2;
    if (is_short && (d->work == WORK_SPLIT || d->work == WORK_ENCODE))
        efs_split_short(d->format, d->raw + at, n, e, sm);
    else if (d->work == WORK_SPLIT || d->work == WORK_ENCODE)
        efs_split(d->format, d->raw + at, n, e, sm);
    if (d->work == WORK_ENCODE)
        d->chunk_bytes[s] = is_short ? efs_cascade_encode_short(e, n, d->span_log2, chunk, scratch)
                                     : efs_cascade_encode(e, n, chunk, scratch);
    if ((d->work == WORK_MERGE || d->work == WORK_STREAM) &&
        efs_cascade_merge(d->format, chunk, d->chunk_bytes[s], sm, efs_sm_bytes(d->format, n), 0, n, d->back + at,
                          d->work == WORK_STREAM, scratch) != 0) {
        fprintf(stderr, "bench_kernels: a chunk does not decode\n");
        exit(1);
    }
}

static void work_part(void *arg, unsigned part)
{
    struct data *d = arg;
    size_t first = d->shards * part / d->threads, end = d->shards * (part + 1) / d->threads;
    size_t from = first * SHARD_ELEMENTS * d->each;
    size_t to = end == d->shards ? d->raw_bytes : end * SHARD_ELEMENTS * d->each;

    if (d->work == WORK_MEMCPY)
        memcpy(d->back + from, d->raw + from, to - from);
    else if (d->work == WORK_READ)
        d->sum[part] = bench_read_words((const uint64_t *)(const void *)(d->raw + from), (to - from) / 8);
    else if (d->work == WORK_WRITE)
        memset(d->back + from, 1, to - from); /* larger than the caches */
    else
        for (size_t s = first; s < end; s++)
            do_shard(d, s, d->scratch + (size_t)part * EFS_CASCADE_SCRATCH_BYTES);
}

/* GB/s of raw bytes. */
static double rate_of(struct data *d, enum work work)
{
    d->work = work;
    return (double)d->raw_bytes / bench_run(d->threads, false, work_part, d) * 1e-9;
}

static void make_data(struct data *d, enum efs_format format, const struct bench_options *o)
{
    *d = (struct data){.format = format, .each = efs_format_bytes(format), .threads = o->threads};
    d->span_log2 = (unsigned)__builtin_ctz(o->span);
    d->elements = (o->mib << 20) / d->each;
    d->raw_bytes = d->elements * d->each;
    d->shards = (d->elements + SHARD_ELEMENTS - 1) / SHARD_ELEMENTS;
    d->chunk_room = (efs_cascade_bound(SHARD_ELEMENTS) + 4095) / 4096 * 4096;
    d->sm_room = (efs_sm_bytes(format, SHARD_ELEMENTS) + 4095) / 4096 * 4096;
    d->raw = bench_memory(d->raw_bytes);
    d->back = bench_memory(d->raw_bytes);
    d->e = bench_memory(d->elements);
    d->sm = bench_memory(d->shards * d->sm_room);
    d->chunks = bench_memory(d->shards * d->chunk_room);
    d->scratch = bench_memory(d->threads * (size_t)EFS_CASCADE_SCRATCH_BYTES);
    d->chunk_bytes = bench_memory(d->shards * sizeof(*d->chunk_bytes));
    bench_weights(o->weights, format, d->elements, d->raw);
}

static void free_data(struct data *d)
{
    void *memory[] = {d->raw, d->back, d->e, d->sm, d->chunks, d->scratch, d->chunk_bytes};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        free(memory[i]);
}

static double entropy_bits(const struct data *d)
{
    uint64_t counts[256] = {0};
    double bits = 0, total = (double)d->elements;
    efs_histogram(d->e, d->elements, counts);
    for (unsigned s = 0; s < 256; s++)
        if (counts[s])
            bits -= (double)counts[s] / total * log2((double)counts[s] / total);
    return bits;
}

static void print_path(const struct data *d, const char *format, unsigned rounds, double rates[][ROUNDS_MAX])
{
    double ratios[WORK_COUNT], rate[WORK_COUNT], coded = 0, sm = 0, entropy = entropy_bits(d);
    for (size_t s = 0; s < d->shards; s++) {
        coded += (double)d->chunk_bytes[s];
        sm += (double)efs_sm_bytes(d->format, shard_elements(d, s));
    }
    for (unsigned w = 0; w < WORK_COUNT; w++) {
        double each[ROUNDS_MAX];
        for (unsigned r = 0; r < rounds; r++)
            each[r] = rates[w][r] / rates[WORK_MEMCPY][r];
        ratios[w] = tools_median(each, rounds);
    }
    for (unsigned w = 0; w < WORK_COUNT; w++) /* after the ratios, because tools_median() sorts */
        rate[w] = tools_median(rates[w], rounds);
    /* A decoder must read all coded bytes and write all raw bytes, so it is no faster than either. */
    double size = (coded + sm) / (double)d->raw_bytes,
           bound = (sm + (double)d->elements * entropy / 8) / (double)d->raw_bytes;
    double limit = fmin(rate[WORK_READ] / size, rate[WORK_WRITE]) / rate[WORK_MEMCPY];
    printf("{\"format\": \"%s\", \"path\": \"%s\", \"threads\": %u, \"span\": %u, \"size\": %.5f, \"bound\": %.5f, "
           "\"exponent_bits\": %.4f, \"entropy_bits\": %.4f",
           format, efs_cpu_name(), d->threads, 1u << d->span_log2, size, bound, coded * 8 / (double)d->elements,
           entropy);
    for (unsigned w = 0; w < WORK_COUNT; w++)
        printf(", \"%s_gbs\": %.3f", work_names[w], rate[w]);
    printf(", \"merge_ratio\": %.3f, \"stream_ratio\": %.3f, \"limit_ratio\": %.3f}\n", ratios[WORK_MERGE],
           ratios[WORK_STREAM], limit);
    fflush(stdout);
}

static bool chosen(const char *only, const char *name)
{
    return !only || strcmp(only, name) == 0;
}

int bench_coder(const struct bench_options *o)
{
    static double rates[PATHS][WORK_COUNT][ROUNDS_MAX];
    for (size_t f = 0; f < BENCH_FORMATS; f++) {
        struct data d;
        if (!chosen(o->format, bench_formats[f].name))
            continue;
        make_data(&d, bench_formats[f].format, o);
        for (unsigned round = 0; round < o->rounds; round++)
            for (unsigned p = 0; p < PATHS; p++) {
                if (!chosen(o->path, paths[p]) || !efs_cpu_force(paths[p]))
                    continue;
                if (round == 0)
                    (void)rate_of(&d, WORK_ENCODE); /* faults in all pages and makes the chunks */
                for (unsigned w = 0; w < WORK_COUNT; w++)
                    rates[p][w][round] = rate_of(&d, (enum work)w);
                if (memcmp(d.raw, d.back, d.raw_bytes) != 0) {
                    fprintf(stderr, "bench_kernels: decoded bytes differ\n");
                    return 1;
                }
            }
        for (unsigned p = 0; p < PATHS; p++)
            if (chosen(o->path, paths[p]) && efs_cpu_force(paths[p]))
                print_path(&d, bench_formats[f].name, o->rounds, rates[p]);
        free_data(&d);
    }
    return 0;
}
