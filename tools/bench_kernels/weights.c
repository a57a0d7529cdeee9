/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - see bench.h: weights, memory, reads, threads. */
#include "bench.h"

#include "measure.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define ROW 4096u
#define DRAWN (1024u * ROW)
#define HUGE_PAGE (2u << 20)

void bench_fail(const char *what, int error)
{
    fprintf(stderr, "bench_kernels: %s: %s\n", what, strerror(error));
    exit(1);
}

void *bench_memory(size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *p = aligned_alloc(HUGE_PAGE, whole);
    if (!p)
        bench_fail("memory", ENOMEM);
    (void)madvise(p, whole, MADV_HUGEPAGE);
    return memset(p, 1, bytes);
}

static size_t read_file(const char *path, float **values)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        bench_fail(path, errno);
    size_t count = (size_t)ftell(f) / sizeof(float) / ROW * ROW;
    rewind(f);
    *values = malloc(count * sizeof(float) + 1);
    if (!*values || !count || fread(*values, sizeof(float), count, f) != count)
        bench_fail(path, *values && !ferror(f) ? EINVAL : errno);
    fclose(f);
    return count;
}

/* A standard normal number. */
static double normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(tools_uniform(state)));
    return radius * cos(6.283185307179586 * tools_uniform(state));
}

static size_t draw(float **values)
{
    uint64_t seed = 1;
    float scale = 0;
    *values = malloc(DRAWN * sizeof(float));
    if (!*values)
        bench_fail("memory", ENOMEM);
    for (size_t i = 0; i < DRAWN; i++) {
        if (i % ROW == 0)
            scale = (float)(0.02 * exp(0.4 * normal(&seed)));
        (*values)[i] = (float)normal(&seed) * scale;
    }
    return DRAWN;
}

/* Rounds to the nearest BF16, ties to even; not for NaN. */
static uint16_t bf16_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The sign, exponent and fraction of an F16 without the last `without` bits, rounded to the nearest, ties to even. */
static uint32_t f16_bits(float v, unsigned without)
{
    _Float16 half = (_Float16)v;
    uint16_t bits;
    memcpy(&bits, &half, sizeof(bits));
    if (!without)
        return bits;
    uint32_t size = bits & 0x7fffu, odd = size >> without & 1;
    return (uint32_t)(bits >> 8 & 0x80) | (size + (1u << (without - 1)) - 1 + odd) >> without;
}

static uint32_t element(enum efs_format format, float v, float largest)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof(bits));
    switch (format) {
    case EFS_FORMAT_BF16:
        return bf16_bits(v);
    case EFS_FORMAT_BYTES:
        return bf16_bits(v) >> 7 & 0xff;
    case EFS_FORMAT_F16:
        return f16_bits(v, 0);
    case EFS_FORMAT_E4M3: /* its exponent bias is 8 less than that of F16 */
        return f16_bits(v * 448 / largest / 256, 7);
    case EFS_FORMAT_E5M2:
        return f16_bits(v * 57344 / largest, 8);
    default:
        return bits;
    }
}

void bench_weights(const char *file, enum efs_format format, size_t n, void *out)
{
    float *values;
    size_t count = file ? read_file(file, &values) : draw(&values), each = efs_format_bytes(format);
    size_t done = count < n ? count : n;
    uint8_t *raw = out;
    for (size_t first = 0; first < done; first += ROW) {
        float largest = 0x1p-100f;
        for (size_t i = 0; i < ROW; i++)
            largest = fmaxf(largest, fabsf(values[first + i]));
        for (size_t i = first; i < first + ROW && i < done; i++) {
            uint32_t bits = element(format, values[i], largest);
            memcpy(raw + i * each, &bits, each);
        }
    }
    for (size_t more; done < n; done += more) {
        more = n - done < done ? n - done : done;
        memcpy(raw + done * each, raw, more * each);
    }
    free(values);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) /* TSan is not initialized in the resolver */
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
uint64_t
bench_read_words(const uint64_t *words, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum ^= words[i];
    return sum;
}

double bench_run(unsigned parts, bool busy, void (*work)(void *arg, unsigned part), void *arg)
{
    clockid_t clock = parts == 1 && busy ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    struct timespec begin, end;
    clock_gettime(clock, &begin);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (unsigned part = 0; part < parts; part++)
        work(arg, part);
    clock_gettime(clock, &end);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}
