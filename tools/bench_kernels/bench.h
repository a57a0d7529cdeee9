/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - shared by the benchmarks of kernels/: options, weights, threads. Errors exit with status 1. */
#ifndef BENCH_KERNELS_BENCH_H
#define BENCH_KERNELS_BENCH_H

#include "kernels.h"
#include "options.h"

#define ROUNDS_MAX 99u
#define THREADS_MAX 64u
#define SHARD_ELEMENTS (512u << 10)

struct bench_options {
    uint64_t mib; /* of weights for each format or shape */
    unsigned rounds, threads, tokens, span;
    bool f16;
    const char *path, *format, *weights; /* path, format: NULL: all */
    struct tools_arguments shapes;
};

/* Each prints lines of JSON and returns an exit status. */
int bench_coder(const struct bench_options *options);
int bench_products(const struct bench_options *options);
int bench_gpu(const struct bench_options *options);

struct bench_format {
    const char *name;
    enum efs_format format;
};
#define BENCH_FORMATS 6
extern const struct bench_format bench_formats[BENCH_FORMATS];

/* Memory filled with ones, in huge pages if the system has them; the caller frees it with free(). */
void *bench_memory(size_t bytes);
_Noreturn void bench_fail(const char *what, int error);

/* Writes n weights in format to out, repeating a smaller set; the same at each call. file: float32 values; NULL: normal
 * values with a scale per row. FP8 is scaled so that the largest of each 4,096 values becomes the format's largest. */
void bench_weights(const char *file, enum efs_format format, size_t n, void *out);

/* Reads all words with the CPU's widest vectors and returns their XOR, which the caller must use to keep the reads. */
uint64_t bench_read_words(const uint64_t *words, size_t count);

/* Calls work(arg, part) for each part on its own thread. Returns seconds of wall time; CPU time if parts is 1 and busy.
 */
double bench_run(unsigned parts, bool busy, void (*work)(void *arg, unsigned part), void *arg);

#endif
