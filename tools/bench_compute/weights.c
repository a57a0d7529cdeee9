/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights.c - matrices for the benchmark.
 *
 * Drawing hundreds of millions of normal numbers would take longer than the measurement, so a row is a stretch of a
 * table of normal numbers from a random place, times the row's scale.
 */
#include "weights.h"

#include "measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define TABLE (1u << 20)
#define SHARD_ELEMENTS (512u << 10)
#define PAGE 4096u
#define HUGE_PAGE (2u << 20)

void *huge_memory(size_t bytes)
{
    char *p = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        fprintf(stderr, "bench_compute: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    p += -(uintptr_t)p % HUGE_PAGE;
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* Of a weight, which is far from the ends of what F16 holds. */
static uint16_t f16_of(float v)
{
    union {
        _Float16 half;
        uint16_t bits;
    } u = {.half = (_Float16)v};

    return u.bits;
}

static void fill_rows(uint16_t *to, bool f16, uint32_t rows, uint32_t cols, const float *normals, uint64_t *state)
{
    for (uint32_t r = 0; r < rows; r++) {
        float scale = 0.02f * (float)exp(0.3 * tools_normal(state));
        size_t at = (size_t)(tools_uniform(state) * (TABLE - cols));
        for (uint32_t c = 0; c < cols; c++)
            *to++ = f16 ? f16_of(normals[at + c] * scale) : tools_bf16(normals[at + c] * scale);
    }
}

/* The shards of a plain matrix, chunk after chunk at 4 KiB boundaries as in a store; *room moves past them. */
static void code_matrix(const struct efs_matrix *plain, struct efs_matrix *coded, uint8_t **room, size_t *bytes)
{
    const enum efs_format format = plain->f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
    size_t elements = (size_t)plain->rows * plain->cols, count = (elements + SHARD_ELEMENTS - 1) / SHARD_ELEMENTS;
    struct efs_matrix_shard *shards = calloc(count, sizeof(*shards));
    uint8_t *e = malloc(SHARD_ELEMENTS);

    if (shards == NULL || e == NULL)
        exit(1);
    for (size_t s = 0; s < count; s++) {
        size_t first = s * SHARD_ELEMENTS, n = elements - first < SHARD_ELEMENTS ? elements - first : SHARD_ELEMENTS;
        size_t sm_bytes = efs_sm_bytes(format, n);
        uint8_t *sm = *room, *chunk = sm + (sm_bytes + PAGE - 1) / PAGE * PAGE;
        efs_split(format, (const uint8_t *)plain->plain + 2 * first, n, e, sm);
        size_t chunk_bytes = efs_cascade_encode(e, n, chunk);
        shards[s] = (struct efs_matrix_shard){.e = chunk, .e_bytes = chunk_bytes, .sm = sm, .sm_bytes = sm_bytes};
        *room = chunk + (chunk_bytes + PAGE - 1) / PAGE * PAGE;
        *bytes += chunk_bytes + sm_bytes;
    }
    *coded = (struct efs_matrix){.f16 = plain->f16,
                                 .rows = plain->rows,
                                 .cols = plain->cols,
                                 .shards = shards,
                                 .shard_elements = SHARD_ELEMENTS};
    free(e);
}

void weights_make(struct weights *w, bool f16, uint32_t rows, uint32_t cols, size_t plain_bytes)
{
    static float normals[TABLE];
    size_t each = (size_t)rows * cols;
    uint64_t state = 1;

    if (normals[0] == 0)
        for (size_t i = 0; i < TABLE; i++)
            normals[i] = (float)tools_normal(&state);
    *w = (struct weights){.rows = rows, .cols = cols, .count = plain_bytes / (2 * each) + 1};
    w->plain_bytes = w->count * 2 * each;
    w->plain = calloc(w->count, sizeof(*w->plain));
    w->coded = calloc(w->count, sizeof(*w->coded));
    uint16_t *plain = huge_memory(w->plain_bytes);
    uint8_t *coded = huge_memory(w->plain_bytes); /* no chunk is larger than what it codes, by a page or so */
    if (w->plain == NULL || w->coded == NULL)
        exit(1);
    for (size_t i = 0; i < w->count; i++) {
        fill_rows(plain + i * each, f16, rows, cols, normals, &state);
        w->plain[i] = (struct efs_matrix){.rows = rows, .cols = cols, .f16 = f16, .plain = plain + i * each};
        code_matrix(&w->plain[i], &w->coded[i], &coded, &w->coded_bytes);
    }
}
