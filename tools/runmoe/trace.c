/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c - see trace.h. The records of a batch are assembled in memory, then written. */
#include "trace.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READERS_TAKE (1ull << 30) /* size limit of readers of traces, bytes */
#define HAS_ALL (2 + 4 + 8 + 16)  /* probabilities of all experts, states, embeddings, routers */
#define LARGEST_HALF 65504.0F

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they are in memory");

struct trace {
    const char *path;
    const struct config *config;
    FILE *file;
    size_t ids, scores, states, embedding, record; /* byte offsets in a record, and its size */
    uint8_t *records;                              /* [batch] */
};

/* Converts numbers, which must not be NaN, to half precision, clamped to +-LARGEST_HALF. */
static void put_halves(uint8_t *p, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        _Float16 half = (_Float16)fmaxf(fminf(x[i], LARGEST_HALF), -LARGEST_HALF);
        memcpy(p + 2 * i, &half, 2);
    }
}

static errint_t trace_write(struct trace *t, const void *data, size_t bytes, struct efs_error *err)
{
    return fwrite(data, 1, bytes, t->file) == bytes ? 0 : efs_fail(err, -errno, "%s: %s", t->path, strerror(errno));
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

/* Writes the router of a layer, row by row. */
static errint_t trace_gate(struct trace *t, const struct matrix *router, struct efs_error *err)
{
    float *row = calloc(router->columns, sizeof(*row));
    uint8_t *halves = malloc(2ul * router->columns);
    errint_t rc = row && halves ? 0 : efs_fail(err, -ENOMEM, "%s: no memory", t->path);
    for (uint32_t r = 0; rc == 0 && r < router->rows; r++) {
        matrix_row(router, r, row);
        put_halves(halves, row, router->columns);
        rc = trace_write(t, halves, 2ul * router->columns, err);
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
    errint_t rc = trace_write(t, "MOETRACE", 8, err);
    if (rc == 0)
        rc = trace_write(t, numbers, sizeof(numbers), err);
    if (rc == 0)
        rc = trace_write(t, name, sizeof(name) - 1, err);
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
    t->records = malloc(batch * t->record);
    if (rc == 0 && !t->records)
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
    return sizeof(t) + batch * t.record;
}

/* ---- records ---- */

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
        const uint32_t chosen = t->config->chosen;
        const uint16_t expert = (uint16_t)experts[i];
        memcpy(t->records + i / chosen * t->record + t->ids + 2ul * (layer * chosen + i % chosen), &expert, 2);
    }
}

errint_t trace_tokens(struct trace *t, uint32_t sequence, enum trace_kind kind, uint32_t count, struct efs_error *err)
{
    for (uint32_t i = 0; t && i < count; i++)
        memcpy(t->records + i * t->record, (uint32_t[]){sequence, kind}, 8);
    return t ? trace_write(t, t->records, count * t->record, err) : 0;
}

errint_t trace_end(struct trace *t, errint_t rc, struct efs_error *err)
{
    if (!t)
        return rc;
    if (t->file && fclose(t->file) != 0 && rc == 0)
        rc = efs_fail(err, -errno, "%s: %s", t->path, strerror(errno));
    free(t->records);
    free(t);
    return rc;
}
