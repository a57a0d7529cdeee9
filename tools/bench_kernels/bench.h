/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - what both benchmarks of kernels/ share: options, weights, threads. Errors end the program. */
#ifndef BENCH_KERNELS_BENCH_H
#define BENCH_KERNELS_BENCH_H

#include "kernels.h"
#include "options.h"

#define ROUNDS_MAX 99u
#define THREADS_MAX 64u
#define SHARD_ELEMENTS (512u << 10)

struct bench_options {
    uint64_t mib; /* of weights, of each format or shape */
    unsigned rounds, threads, tokens;
    bool f16;
    const char *path, *format, *weights; /* path, format: NULL: all */
    struct tools_arguments shapes;
};

/* Each prints lines of JSON and returns an exit status. */
int bench_coder(const struct bench_options *options);
int bench_products(const struct bench_options *options);

/* Memory in huge pages where the system gives them, for free(). */
void *bench_memory(size_t bytes);
_Noreturn void bench_fail(const char *what, int error);

/* n weights as elements of format into out, the same at each call; they repeat. Those of a file of float32, or normal
 * ones whose rows have a scale each. FP8 is scaled: the largest value of 4,096 becomes the format's largest. */
void bench_weights(const char *file, enum efs_format format, size_t n, void *out);

/* Reads all words, with the widest vectors of the processor, and does nothing else. The result is to be used. */
uint64_t bench_read_words(const uint64_t *words, size_t count);

/* Calls work(arg, part) for all parts in a thread each. Seconds; of one part its thread's processor time if busy. */
double bench_run(unsigned parts, bool busy, void (*work)(void *arg, unsigned part), void *arg);

#endif
