/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compute.c - see compute.h. Experts that run one by one, y = down(silu(gate x) * up x), are summed at the end of the
 * layer in the order of the mixture, as in the library, so that the sums are bit-identical.
 */
#include "compute.h"

#include "expertfs-private.h"
#include "mixture.h"
#include "tables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 64u
#define CHUNK_LINES 4096u /* lines per chunk of a thread's dynamic schedule */

struct replay_compute {
    struct efs_tables tables;
    enum replay_compute_kind kind;
    uint64_t check;
    /* if experts are run: */
    struct efs_team *team;
    struct replay_mixture *mixture;
    /* if they are run one by one: */
    float *x, *out;  /* [tokens of an expert][hidden]; [width * chosen][hidden], in the order of the mixture */
    uint32_t *token; /* 0, 1, 2, ... */
    float *weight;   /* 1, 1, 1, ... */
};

/* ---- touching ----------------------------------------------------------------------------------------------- */

/* Loads 8 bytes of each 64-byte line and returns their sum. Called by all threads, which share the lines. */
static uint64_t touch_bytes(const uint8_t *data, uint64_t bytes)
{
    uint64_t sum = 0;
#pragma omp for nowait schedule(dynamic, CHUNK_LINES)
    for (uint64_t i = 0; i < bytes / LINE_BYTES; i++) {
        uint64_t word;
        memcpy(&word, data + i * LINE_BYTES, sizeof(word));
        sum += word;
    }
    return sum;
}

/* Touches all tensors, in the form in which they are, and returns the sum. */
static uint64_t touch(const struct replay_view *view)
{
    uint64_t sum = 0;
#pragma omp parallel reduction(+ : sum) if (view->count > 0 && view->tensors[0].bytes > CHUNK_LINES * LINE_BYTES)
    for (uint32_t t = 0; t < view->count; t++) {
        const struct efs_tensor *tensor = &view->tensors[t];
        if (tensor->data)
            sum += touch_bytes(tensor->data, tensor->bytes);
        for (uint32_t i = 0; !tensor->data && i < tensor->shard_count; i++)
            sum += touch_bytes(tensor->shards[i].e, tensor->shards[i].e_bytes) +
                   touch_bytes(tensor->shards[i].sm, tensor->shards[i].sm_bytes);
    }
    return sum;
}

/* ---- experts, one by one ------------------------------------------------------------------------------------ */

static errint_t run_expert(struct replay_compute *c, const struct replay_view *view, struct efs_error *err)
{
    const struct efs_mixture *m = replay_mixture_get(c->mixture);
    struct replay_ffn_matrices matrices;
    uint32_t i = 0, first = 0;
    while (i < m->expert_count && m->experts[i].expert != view->expert)
        first += m->experts[i++].count;
    if (i == m->expert_count)
        return efs_fail(err, -EINVAL, "expert %u was not asked for", view->expert);
    if (!replay_ffn_find(view->tensors, view->count, &matrices))
        return efs_fail(err, -EOPNOTSUPP, "--compute ffn: an expert has no gate, up and down matrices in BF16");
    const struct efs_route_to *to = &m->experts[i];
    for (uint32_t t = 0; t < to->count; t++)
        memcpy(c->x + (size_t)t * m->hidden, (const float *)m->x + to->token[t] * m->x_stride,
               m->hidden * sizeof(*c->x));
    const struct efs_route_to one = {.count = to->count, .token = c->token, .weight = c->weight};
    const struct efs_plain_expert plain = {.gate = matrices.gate->data,
                                           .up = matrices.up->data,
                                           .down = matrices.down->data,
                                           .inner = (uint32_t)matrices.gate->shape[0]};
    struct efs_mixture alone = *m;
    alone.experts = &one;
    alone.expert_count = 1;
    alone.x = c->x;
    alone.tokens = to->count;
    alone.y = c->out + (size_t)first * m->hidden;
    return efs_plain_ffn(c->team, &alone, &plain, err);
}

static void add_up(const struct replay_compute *c)
{
    const struct efs_mixture *m = replay_mixture_get(c->mixture);
    const float *out = c->out;
    memset(m->y, 0, (size_t)m->tokens * m->y_stride * sizeof(*m->y));
    for (uint32_t i = 0; i < m->expert_count; i++)
        for (uint32_t t = 0; t < m->experts[i].count; t++, out += m->hidden) {
            float *y = m->y + m->experts[i].token[t] * m->y_stride, weight = m->experts[i].weight[t];
            for (uint32_t h = 0; h < m->hidden; h++)
                y[h] += weight * out[h];
        }
}

/* ---- a layer ------------------------------------------------------------------------------------------------ */

void replay_compute_begin(struct replay_compute *c, const uint64_t *at, uint32_t width, uint32_t layer)
{
    if (c->mixture)
        replay_mixture_set(c->mixture, at, width, layer);
}

errint_t replay_compute_run(struct replay_compute *c, const struct replay_view *view, struct efs_error *err)
{
    if (c->mixture)
        return run_expert(c, view, err);
    if (c->kind == REPLAY_COMPUTE_TOUCH || c->kind == REPLAY_COMPUTE_TOUCH_CODED)
        c->check += touch(view);
    return 0;
}

struct efs_team *replay_compute_team(const struct replay_compute *c)
{
    return c->team;
}

const struct efs_mixture *replay_compute_mixture(const struct replay_compute *c)
{
    return replay_mixture_get(c->mixture);
}

void replay_compute_end(struct replay_compute *c)
{
    if (c->out)
        add_up(c);
    if (c->mixture)
        c->check += replay_mixture_fold(c->mixture);
}

uint64_t replay_compute_check(const struct replay_compute *c)
{
    return c->check;
}

/* ---- new and free ------------------------------------------------------------------------------------------- */

static bool compute_open(struct replay_compute *c, const struct replay_model *model, const struct replay_workload *w)
{
    uint32_t width = 1, hidden = model->hidden;
    for (uint64_t pass = 0; pass < w->passes; pass++)
        width = w->width[pass] > width ? w->width[pass] : width;
    c->mixture = replay_mixture_new(model->experts, hidden, width, w->route);
    if (!c->mixture || efs_team_new(0, &c->team) < 0)
        return false;
    if (c->kind == REPLAY_COMPUTE_FFN_CODED)
        return true;
    EFS_TABLE(&c->tables, c->x, (size_t)width * hidden);
    EFS_TABLE(&c->tables, c->out, (size_t)width * w->route->chosen * hidden);
    EFS_TABLE(&c->tables, c->token, width);
    EFS_TABLE(&c->tables, c->weight, width);
    bool there = efs_tables_error(&c->tables) == 0;
    for (uint32_t t = 0; there && t < width; t++) {
        c->token[t] = t;
        c->weight[t] = 1;
    }
    return there;
}

struct replay_compute *replay_compute_new(enum replay_compute_kind kind, const struct replay_model *model,
                                          const struct replay_workload *w)
{
    struct replay_compute *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->kind = kind;
    if (kind >= REPLAY_COMPUTE_FFN && !compute_open(c, model, w)) {
        replay_compute_free(c);
        return NULL;
    }
    return c;
}

void replay_compute_free(struct replay_compute *c)
{
    if (!c)
        return;
    efs_tables_free(&c->tables);
    efs_team_free(c->team);
    replay_mixture_free(c->mixture);
    free(c);
}
