/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c - see trace.h. Records of the tokens at hand are put together in memory, then compressed to the file. */
#include "trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define OUT_BYTES (1u << 17)
#define ZSTD_BYTES (4u << 20)     /* that a compressor of level 3 takes, at most */
#define READERS_TAKE (1ull << 30) /* bytes of a trace */
#define HAS_ALL (2 + 4 + 8 + 16)  /* probabilities of all experts, states, embeddings, routers */
#define LARGEST_HALF 65504.0F

struct trace {
    const char *path;
    const struct config *config;
    FILE *file;
    ZSTD_CCtx *zstd;
    size_t ids, scores, states, embedding, record; /* where each is in a record, and its size, in bytes */
    uint8_t *records;                              /* [batch] */
    uint8_t out[OUT_BYTES];
};

/* ---- numbers ---- */

static uint8_t *put16(uint8_t *p, uint32_t n)
{
    p[0] = (uint8_t)n;
    p[1] = (uint8_t)(n >> 8);
    return p + 2;
}

static uint8_t *put32(uint8_t *p, uint32_t n)
{
    return put16(put16(p, n & 0xffff), n >> 16);
}

/* To the nearest half, ties to even; beyond the largest: the largest. x is a number. */
static uint32_t half_of(float x)
{
    uint32_t bits, sign, shift;
    float size = x < 0 ? -x : x;
    size = size < LARGEST_HALF ? size : LARGEST_HALF;
    memcpy(&bits, &size, 4);
    sign = x < 0 ? 0x8000 : 0;
    uint32_t exponent = bits >> 23, fraction = (bits & 0x7fffff) | 0x800000;
    if (exponent < 102) /* less than half of the smallest, 2^-24 */
        return 0;
    shift = exponent < 113 ? 126 - exponent : 13;
    uint32_t half = fraction >> shift, rest = fraction & ((1u << shift) - 1), middle = 1u << (shift - 1);
    half += rest > middle || (rest == middle && (half & 1));
    return sign | (exponent < 113 ? half : half + ((exponent - 113) << 10));
}

static uint8_t *put_halves(uint8_t *p, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        p = put16(p, half_of(x[i]));
    return p;
}

/* ---- the file ---- */

static errint_t trace_write(struct trace *t, const uint8_t *data, size_t bytes, ZSTD_EndDirective end,
                            struct efs_error *err)
{
    ZSTD_inBuffer in = {data, bytes, 0};
    for (size_t left = 1; left > 0 && (in.pos < in.size || end == ZSTD_e_end);) {
        ZSTD_outBuffer out = {t->out, OUT_BYTES, 0};
        left = ZSTD_compressStream2(t->zstd, &out, &in, end);
        if (ZSTD_isError(left))
            return efs_fail(err, -ENOMEM, "%s: %s", t->path, ZSTD_getErrorName(left));
        if (fwrite(t->out, 1, out.pos, t->file) != out.pos)
            return efs_fail(err, -errno, "%s: %s", t->path, strerror(errno));
        left += end == ZSTD_e_continue; /* all input has to go */
    }
    return 0;
}

static void trace_layout(struct trace *t)
{
    const struct config *c = t->config;
    t->ids = 8;
    t->scores = t->ids + 2ul * c->layers * c->chosen;
    t->states = t->scores + 2ul * c->layers * c->experts;
    t->embedding = t->states + 2ul * c->layers * c->hidden;
    t->record = t->embedding + 2ul * c->hidden;
}

/* The router of a layer, row by row. */
static errint_t trace_gate(struct trace *t, const struct matrix *router, struct efs_error *err)
{
    float *row = calloc(router->columns, sizeof(*row));
    uint8_t *halves = malloc(2ul * router->columns);
    errint_t rc = row && halves ? 0 : efs_fail(err, -ENOMEM, "%s: no memory", t->path);
    for (uint32_t r = 0; rc == 0 && r < router->rows; r++) {
        matrix_row(router, r, row);
        put_halves(halves, row, router->columns);
        rc = trace_write(t, halves, 2ul * router->columns, ZSTD_e_continue, err);
    }
    free(row);
    free(halves);
    return rc;
}

static errint_t trace_header(struct trace *t, const struct model *model, uint64_t tokens, struct efs_error *err)
{
    static const char name[] = "runmoe";
    const struct config *c = t->config;
    const uint32_t numbers[] = {2,
                                c->layers,
                                c->experts,
                                c->chosen,
                                HAS_ALL,
                                sizeof(name) - 1,
                                (uint32_t)tokens,
                                (uint32_t)(tokens >> 32),
                                c->hidden,
                                0};
    uint8_t header[48] = "MOETRACE", *p = header + 8;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        p = put32(p, numbers[i]);
    errint_t rc = trace_write(t, header, sizeof(header), ZSTD_e_continue, err);
    if (rc == 0)
        rc = trace_write(t, (const uint8_t *)name, sizeof(name) - 1, ZSTD_e_continue, err);
    for (uint32_t l = 0; rc == 0 && l < c->layers; l++)
        rc = trace_gate(t, &model->layers[l].router, err);
    return rc;
}

errint_t trace_start(const char *path, const struct model *model, uint64_t tokens, uint32_t batch, struct trace **trace,
                     struct efs_error *err)
{
    const struct config *c = &model->config;
    struct trace *t = calloc(1, sizeof(*t));
    *trace = NULL;
    if (!t)
        return -ENOMEM;
    t->path = path;
    t->config = c;
    trace_layout(t);
    uint64_t bytes = tokens * t->record + 2ull * c->layers * c->experts * c->hidden + 64;
    errint_t rc = 0;
    if (bytes > READERS_TAKE)
        rc = efs_fail(err, -EFBIG, "%s: a trace of %llu bytes; at most 1 GiB is read: take fewer tokens", path,
                      (unsigned long long)bytes);
    t->zstd = ZSTD_createCCtx();
    t->records = malloc(batch * t->record);
    if (rc == 0 && (!t->zstd || !t->records))
        rc = -ENOMEM;
    if (rc == 0 && !(t->file = fopen(path, "wb")))
        rc = efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    if (rc == 0)
        rc = trace_header(t, model, tokens, err);
    if (rc == 0)
        *trace = t;
    else
        trace_end(t, rc, err);
    return rc;
}

uint64_t trace_bytes(const struct config *config, uint32_t batch)
{
    struct trace t = {.config = config};
    trace_layout(&t);
    return sizeof(t) + ZSTD_BYTES + batch * t.record;
}

/* ---- what is told ---- */

void trace_embeddings(struct trace *t, uint32_t count, const float *embeddings)
{
    for (uint32_t i = 0; t && i < count; i++)
        put_halves(t->records + i * t->record + t->embedding, embeddings + (size_t)i * t->config->hidden,
                   t->config->hidden);
}

void trace_router(struct trace *t, uint32_t layer, uint32_t count, const float *states, const float *probability)
{
    for (uint32_t i = 0; t && i < count; i++) {
        const struct config *c = t->config;
        uint8_t *record = t->records + i * t->record;
        put_halves(record + t->scores + 2ul * layer * c->experts, probability + (size_t)i * c->experts, c->experts);
        put_halves(record + t->states + 2ul * layer * c->hidden, states + (size_t)i * c->hidden, c->hidden);
    }
}

void trace_chosen(struct trace *t, uint32_t layer, uint32_t count, const uint32_t *experts)
{
    for (uint32_t i = 0; t && i < count * t->config->chosen; i++) {
        uint32_t chosen = t->config->chosen;
        put16(t->records + i / chosen * t->record + t->ids + 2ul * (layer * chosen + i % chosen), experts[i]);
    }
}

errint_t trace_tokens(struct trace *t, uint32_t sequence, enum trace_kind kind, uint32_t count, struct efs_error *err)
{
    for (uint32_t i = 0; t && i < count; i++)
        put32(put32(t->records + i * t->record, sequence), kind);
    return t ? trace_write(t, t->records, count * t->record, ZSTD_e_continue, err) : 0;
}

errint_t trace_end(struct trace *t, errint_t rc, struct efs_error *err)
{
    if (!t)
        return rc;
    if (rc == 0)
        rc = trace_write(t, NULL, 0, ZSTD_e_end, err);
    if (t->file && fclose(t->file) != 0 && rc == 0)
        rc = efs_fail(err, -errno, "%s: %s", t->path, strerror(errno));
    ZSTD_freeCCtx(t->zstd);
    free(t->records);
    free(t);
    return rc;
}
