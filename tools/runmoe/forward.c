/* SPDX-License-Identifier: Apache-2.0 */
/* forward.c - the forward pass of Qwen3-MoE. Each layer has attention (grouped queries, norms on queries and keys,
 * RoPE) and a mixture of experts, both with a norm on their input and a residual connection. */
#include "forward.h"

#include "expertfs-compute.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct forward {
    const struct model *model;
    unsigned threads;
    struct efs_team *team;             /* the library's threads for products of experts */
    struct trace *trace;               /* NULL: no trace */
    uint32_t positions, batch, filled; /* filled: positions with keys and values */
    float *memory;                     /* contains all float arrays below */
    float *keys, *values;              /* [layers][positions][kv_heads * head_dim] */
    /* for the tokens of the current batch, [batch] each */
    float *x, *normed, *sum;             /* [hidden] */
    float *q, *attended, *router, *turn; /* [heads * head_dim] twice, [experts], [head_dim]: cosines, then sines */
    uint32_t *chosen;                    /* [chosen]: experts of a token */
    float *weight;                       /* [chosen]: their weights */
    uint32_t *token;                     /* [chosen]: tokens of the experts, grouped by expert */
    float *token_weight;                 /* [chosen]: their weights */
    uint16_t *narrow;                    /* [hidden]: normed in BF16, for BF16 activations */
    struct efs_route_to *mixture;        /* [experts], not per token: chosen experts of the layer, ascending */
};

/* ---- memory ---- */

/* Sets the pointers of all float arrays, to NULL if memory is NULL. Returns their total size in floats. */
static size_t forward_lay_out(struct forward *f, float *memory)
{
    const struct config *c = &f->model->config;
    const size_t cache = (size_t)c->layers * f->positions * c->kv_heads * c->head_dim, heads = c->heads * c->head_dim;
    const struct {
        float **at;
        size_t count;
    } parts[] = {{&f->keys, cache},
                 {&f->values, cache},
                 {&f->x, (size_t)f->batch * c->hidden},
                 {&f->normed, (size_t)f->batch * c->hidden},
                 {&f->sum, (size_t)f->batch * c->hidden},
                 {&f->q, f->batch * heads},
                 {&f->attended, f->batch * heads},
                 {&f->router, (size_t)f->batch * c->experts},
                 {&f->turn, (size_t)f->batch * c->head_dim},
                 {&f->weight, (size_t)f->batch * c->chosen},
                 {&f->token_weight, (size_t)f->batch * c->chosen}};
    size_t used = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        *parts[i].at = memory ? memory + used : NULL;
        used += parts[i].count;
    }
    return used;
}

uint64_t forward_bytes(const struct model *model, uint32_t positions, uint32_t batch)
{
    const struct config *c = &model->config;
    struct forward f = {.model = model, .positions = positions, .batch = batch};
    /* The second term: the library's memory for products, the lists of experts, and the BF16 activations. */
    return sizeof(float) * forward_lay_out(&f, NULL) +
           (uint64_t)batch *
               (sizeof(float) * c->chosen * (2ull + 2ull * c->hidden + 2ull * c->inner) + sizeof(uint16_t) * c->hidden);
}

errint_t forward_start(const struct model *model, unsigned threads, uint32_t positions, uint32_t batch,
                       struct forward **out)
{
    const struct config *c = &model->config;
    struct forward *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    *f = (struct forward){.model = model, .threads = threads, .positions = positions, .batch = batch};
    *out = f;
    f->memory = calloc(forward_lay_out(f, NULL), sizeof(*f->memory));
    f->chosen = calloc((size_t)batch * c->chosen, sizeof(*f->chosen));
    f->token = calloc((size_t)batch * c->chosen, sizeof(*f->token));
    f->narrow = calloc((size_t)batch * c->hidden, sizeof(*f->narrow));
    f->mixture = calloc(c->experts, sizeof(*f->mixture));
    if (f->memory && f->chosen && f->token && f->narrow && f->mixture && efs_team_new(threads, &f->team) == 0) {
        forward_lay_out(f, f->memory);
        return 0;
    }
    forward_stop(f);
    *out = NULL;
    return -ENOMEM;
}

void forward_begin(struct forward *f)
{
    f->filled = 0;
}

void forward_trace(struct forward *f, struct trace *trace)
{
    f->trace = trace;
}

void forward_stop(struct forward *f)
{
    if (!f)
        return;
    efs_team_free(f->team);
    free(f->memory);
    free(f->chosen);
    free(f->token);
    free(f->narrow);
    free(f->mixture);
    free(f);
}

/* ---- parts of a layer ---- */

/* Rounds activations to BF16 before a product with BF16 weights, if the model is set to. */
static void narrow_to_bf16(const struct forward *f, float *x, size_t count)
{
    if (f->model->bf16_activations)
        round_bf16(x, count);
}

static void rms_norm(const float *x, const float *weight, float *y, size_t count, double epsilon)
{
    double squares = 0; /* the rounding error of an F32 sum would scale all outputs */
    for (size_t i = 0; i < count; i++)
        squares += (double)(x[i] * x[i]);
    float scale = 1 / sqrtf((float)(squares / (double)count) + (float)epsilon);
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] * scale * weight[i];
}

/* Computes the cosines and sines of RoPE for the positions of count tokens. */
static void rope_angles(struct forward *f, uint32_t count)
{
    const struct config *c = &f->model->config;
    uint32_t head_dim = c->head_dim;
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t i = 0; i < head_dim / 2; i++) {
            double angle = (f->filled + t) * c->rope_step[i];
            f->turn[t * head_dim + i] = (float)(c->rope_scale * cos(angle));
            f->turn[t * head_dim + head_dim / 2 + i] = (float)(c->rope_scale * sin(angle));
        }
}

/* Applies norm and RoPE to each head of one token. Pairs are (i, i + head_dim / 2). */
static void norm_and_rotate(const struct forward *f, uint32_t token, float *heads, uint32_t count, const float *weight)
{
    uint32_t head_dim = f->model->config.head_dim, half = head_dim / 2;
    const float *cosine = f->turn + (size_t)token * head_dim, *sine = cosine + half;
    for (float *head = heads; head < heads + (size_t)count * head_dim; head += head_dim) {
        rms_norm(head, weight, head, head_dim, f->model->config.epsilon);
        for (uint32_t i = 0; i < half; i++) {
            float a = head[i], b = head[i + half];
            head[i] = a * cosine[i] - b * sine[i];
            head[i + half] = b * cosine[i] + a * sine[i];
        }
    }
}

struct attention {
    const struct forward *forward;
    const float *keys, *values; /* of the layer */
};

/* Attention of heads [begin, end), numbered token * heads + head. One pass over keys and values with a running maximum
 * and sum of the softmax. */
static void attend(void *arg, size_t begin, size_t end)
{
    const struct attention *a = arg;
    const struct config *c = &a->forward->model->config;
    size_t kv_step = (size_t)c->kv_heads * c->head_dim;
    float scale = 1 / sqrtf((float)c->head_dim);
    for (size_t h = begin; h < end; h++) {
        size_t kv = h % c->heads / (c->heads / c->kv_heads) * c->head_dim;
        const float *q = a->forward->q + h * c->head_dim;
        float *out = a->forward->attended + h * c->head_dim, largest = -INFINITY, sum = 0;
        memset(out, 0, c->head_dim * sizeof(*out));
        for (size_t p = 0; p <= a->forward->filled + h / c->heads; p++) {
            float score = scale * dot(q, a->keys + p * kv_step + kv, c->head_dim), old = 1;
            if (score > largest) {
                old = expf(largest - score);
                largest = score;
            }
            float part = expf(score - largest);
            sum = sum * old + part;
            for (size_t d = 0; d < c->head_dim; d++)
                out[d] = out[d] * old + part * a->values[p * kv_step + kv + d];
        }
        for (size_t d = 0; d < c->head_dim; d++)
            out[d] /= sum;
    }
}

static void attention(struct forward *f, uint32_t n, uint32_t count)
{
    const struct config *c = &f->model->config;
    const struct layer *layer = &f->model->layers[n];
    size_t kv_step = (size_t)c->kv_heads * c->head_dim, q_step = (size_t)c->heads * c->head_dim;
    struct attention a = {f, f->keys + n * f->positions * kv_step, f->values + n * f->positions * kv_step};
    float *keys = f->keys + (n * f->positions + f->filled) * kv_step; /* of the new tokens */
    float *values = f->values + (n * f->positions + f->filled) * kv_step;
    narrow_to_bf16(f, f->normed, (size_t)count * c->hidden);
    parallel_product(f->threads, &layer->q, f->normed, f->q, count);
    parallel_product(f->threads, &layer->k, f->normed, keys, count);
    parallel_product(f->threads, &layer->v, f->normed, values, count);
    for (uint32_t t = 0; t < count; t++) {
        norm_and_rotate(f, t, f->q + t * q_step, c->heads, layer->q_norm);
        norm_and_rotate(f, t, keys + t * kv_step, c->kv_heads, layer->k_norm);
    }
    parallel(f->threads, attend, &a, (size_t)count * c->heads);
    narrow_to_bf16(f, f->attended, count * q_step);
    parallel_product(f->threads, &layer->o, f->attended, f->sum, count);
}

static void router_softmax(const struct config *c, float *scores)
{
    float largest = -INFINITY, sum = 0;
    for (uint32_t e = 0; e < c->experts; e++)
        largest = fmaxf(largest, scores[e]);
    for (uint32_t e = 0; e < c->experts; e++)
        sum += scores[e] = expf(scores[e] - largest);
    for (uint32_t e = 0; e < c->experts; e++)
        scores[e] /= sum;
}

/* Chooses the experts of one token: the largest probabilities, the lower number among equal ones. Overwrites scores. */
static void router_choose(const struct config *c, float *scores, uint32_t *expert, float *weight)
{
    float chosen_sum = 0;
    for (uint32_t i = 0; i < c->chosen; i++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < c->experts; e++)
            if (scores[e] > scores[best])
                best = e;
        expert[i] = best;
        weight[i] = scores[best];
        chosen_sum += weight[i];
        scores[best] = -1;
    }
    for (uint32_t i = 0; c->renormalise && i < c->chosen; i++)
        weight[i] /= chosen_sum;
}

/* Converts the experts of each token to the tokens of each expert. Returns the number of experts. */
static uint32_t mixture_gather(struct forward *f, uint32_t tokens)
{
    const struct config *c = &f->model->config;
    uint32_t count = 0, next = 0;
    for (uint32_t e = 0; e < c->experts; e++) {
        struct efs_route_to to = {.expert = e, .token = f->token + next, .weight = f->token_weight + next};
        for (uint32_t i = 0; i < tokens * c->chosen; i++)
            if (f->chosen[i] == e) {
                f->token[next] = i / c->chosen;
                f->token_weight[next++] = f->weight[i];
                to.count++;
            }
        if (to.count)
            f->mixture[count++] = to;
    }
    return count;
}

/* sum[token] = the sum over its experts of weight * down(silu(gate(x)) * up(x)), by one call of the library, which
 * reads the experts and computes with each as it arrives. It sums in ascending order of the experts, independent of
 * arrival. */
static errint_t mixture_run(struct forward *f, uint32_t layer, uint32_t tokens, struct efs_error *err)
{
    uint32_t hidden = f->model->config.hidden;
    bool bf16 = f->model->bf16_activations;
    if (bf16)
        to_bf16(f->normed, f->narrow, (size_t)tokens * hidden);
    struct efs_mixture mixture = {.experts = f->mixture,
                                  .expert_count = mixture_gather(f, tokens),
                                  .activation = bf16 ? EFS_ACTIVATION_BF16 : EFS_ACTIVATION_F32,
                                  .x = bf16 ? (const void *)f->narrow : f->normed,
                                  .tokens = tokens,
                                  .hidden = hidden,
                                  .x_stride = hidden,
                                  .y = f->sum,
                                  .y_stride = hidden,
                                  .form = f->model->form};
    return efs_client_ffn(f->model->client, f->team, "", layer, &mixture, err);
}

static errint_t forward_mixture(struct forward *f, uint32_t n, uint32_t count, struct efs_error *err)
{
    const struct config *c = &f->model->config;
    /* The router's input is not rounded, because runtimes keep its weights in F32; mixture_run() rounds for the
     * experts. */
    parallel_product(f->threads, &f->model->layers[n].router, f->normed, f->router, count);
    for (size_t t = 0; t < count; t++)
        router_softmax(c, f->router + t * c->experts);
    trace_router(f->trace, n, count, f->normed, f->router);
    for (size_t t = 0; t < count; t++)
        router_choose(c, f->router + t * c->experts, f->chosen + t * c->chosen, f->weight + t * c->chosen);
    trace_chosen(f->trace, n, count, f->chosen);
    return mixture_run(f, n, count, err);
}

/* ---- all layers ---- */

static void norm_all(struct forward *f, const float *weight, uint32_t count)
{
    size_t hidden = f->model->config.hidden;
    for (size_t t = 0; t < count; t++)
        rms_norm(f->x + t * hidden, weight, f->normed + t * hidden, hidden, f->model->config.epsilon);
}

static void add_sum(struct forward *f, uint32_t count)
{
    for (size_t i = 0; i < (size_t)count * f->model->config.hidden; i++)
        f->x[i] += f->sum[i];
}

errint_t forward_run(struct forward *f, const uint32_t *tokens, uint32_t count, bool last_only, float *logits,
                     struct efs_error *err)
{
    const struct model *m = f->model;
    if (count > f->batch || count > f->positions - f->filled)
        return efs_fail(err, -ENOSPC, "no room for %u more tokens", count);
    for (size_t t = 0; t < count; t++)
        matrix_row(&m->embedding, tokens[t], f->x + t * m->config.hidden);
    trace_embeddings(f->trace, count, f->x);
    rope_angles(f, count);
    for (uint32_t n = 0; n < m->config.layers; n++) {
        norm_all(f, m->layers[n].attention_norm, count);
        attention(f, n, count);
        add_sum(f, count);
        norm_all(f, m->layers[n].ffn_norm, count);
        errint_t rc = forward_mixture(f, n, count, err);
        if (rc < 0)
            return rc;
        add_sum(f, count);
    }
    f->filled += count;
    norm_all(f, m->final_norm, count);
    narrow_to_bf16(f, f->normed, (size_t)count * m->config.hidden);
    uint32_t skipped = last_only ? count - 1 : 0;
    parallel_product(f->threads, &m->head, f->normed + (size_t)skipped * m->config.hidden, logits, count - skipped);
    return 0;
}
