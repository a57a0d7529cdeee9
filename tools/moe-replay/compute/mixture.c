/* SPDX-License-Identifier: Apache-2.0 */
/* mixture.c - see mixture.h. */
#include "mixture.h"

#include "random.h"
#include "tables.h"

#include <stdlib.h>
#include <string.h>

struct replay_mixture {
    struct efs_tables tables;
    const struct efs_route *route;
    struct efs_mixture m;
    uint32_t model_experts;       /* of a layer */
    struct efs_route_to *experts; /* [model_experts] */
    uint32_t *token;              /* [width * chosen], the tokens of an expert contiguous */
    float *weight;                /* [width * chosen], parallel to token */
    float *x, *y;                 /* [width][hidden] */
    uint32_t *count;              /* [model_experts]: number of tokens, then index in experts */
    const uint64_t *at;
    uint32_t layer;
};

static uint64_t mix_bits(uint64_t seed)
{
    return efs_random(&seed);
}

/* The seed of a token's activations in a layer. */
static uint64_t token_seed(uint64_t at, uint32_t layer)
{
    return mix_bits(mix_bits(at) + layer);
}

struct replay_mixture *replay_mixture_new(uint32_t experts, uint32_t hidden, uint32_t width,
                                          const struct efs_route *route)
{
    struct replay_mixture *r = calloc(1, sizeof(*r));
    size_t choices = (size_t)width * route->chosen, numbers = (size_t)width * hidden;
    if (!r)
        return NULL;
    r->route = route;
    r->model_experts = experts;
    EFS_TABLE(&r->tables, r->experts, experts);
    EFS_TABLE(&r->tables, r->count, experts);
    EFS_TABLE(&r->tables, r->token, choices);
    EFS_TABLE(&r->tables, r->weight, choices);
    EFS_TABLE(&r->tables, r->x, numbers);
    EFS_TABLE(&r->tables, r->y, numbers);
    r->m = (struct efs_mixture){.experts = r->experts,
                                .activation = EFS_ACTIVATION_F32,
                                .x = r->x,
                                .hidden = hidden,
                                .x_stride = hidden,
                                .y_stride = hidden,
                                .y = r->y};
    if (efs_tables_error(&r->tables) == 0)
        return r;
    replay_mixture_free(r);
    return NULL;
}

void replay_mixture_free(struct replay_mixture *r)
{
    if (!r)
        return;
    efs_tables_free(&r->tables);
    free(r);
}

static const uint16_t *mixture_chosen(const struct replay_mixture *r, uint32_t t)
{
    const struct efs_route *route = r->route;
    return route->ids + (r->at[t] * route->layers + r->layer % route->layers) * route->chosen;
}

/* Lists the chosen experts and reserves a range of token and weight for each. */
static void mixture_deal(struct replay_mixture *r, uint32_t width)
{
    const struct efs_route *route = r->route;
    uint32_t experts = r->model_experts, room = 0;
    memset(r->count, 0, experts * sizeof(*r->count));
    for (uint32_t t = 0; t < width; t++)
        for (uint32_t i = 0; i < route->chosen; i++)
            r->count[mixture_chosen(r, t)[i] % experts]++;
    r->m.expert_count = 0;
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t most = r->count[e];
        if (most == 0)
            continue;
        r->count[e] = r->m.expert_count; /* from here on: its index in experts */
        r->experts[r->m.expert_count++] =
            (struct efs_route_to){.expert = e, .token = r->token + room, .weight = r->weight + room};
        room += most;
    }
}

/* Fills tokens and weights. Weights decrease linearly over a token's choices. If two choices are the same expert modulo
 * model_experts, it gets the sum of both weights. */
static void mixture_weigh(struct replay_mixture *r, uint32_t width)
{
    uint32_t chosen = r->route->chosen;
    for (uint32_t t = 0; t < width; t++)
        for (uint32_t i = 0; i < chosen; i++) {
            struct efs_route_to *to = &r->experts[r->count[mixture_chosen(r, t)[i] % r->model_experts]];
            size_t first = (size_t)(to->token - r->token);
            float weight = 2.0f * (float)(chosen - i) / (float)(chosen * (chosen + 1));
            if (to->count > 0 && to->token[to->count - 1] == t) {
                r->weight[first + to->count - 1] += weight;
                continue;
            }
            r->token[first + to->count] = t;
            r->weight[first + to->count++] = weight;
        }
}

void replay_mixture_set(struct replay_mixture *r, const uint64_t *at, uint32_t width, uint32_t layer)
{
    r->at = at;
    r->layer = layer;
    r->m.tokens = width;
    mixture_deal(r, width);
    mixture_weigh(r, width);
    for (uint32_t t = 0; t < width; t++) {
        uint64_t s = token_seed(at[t], layer);
        for (uint32_t c = 0; c < r->m.hidden; c++)
            r->x[(size_t)t * r->m.hidden + c] = (float)(int32_t)(mix_bits(s + c) >> 40) * 0x1p-24f - 0.5f;
    }
}

const struct efs_mixture *replay_mixture_get(const struct replay_mixture *r)
{
    return &r->m;
}

uint64_t replay_mixture_fold(const struct replay_mixture *r)
{
    uint64_t sum = 0;
    for (uint32_t t = 0; t < r->m.tokens; t++) {
        uint64_t hash = token_seed(r->at[t], r->layer);
        for (uint32_t c = 0; c < r->m.hidden; c++) {
            uint32_t bits;
            memcpy(&bits, &r->y[(size_t)t * r->m.hidden + c], sizeof(bits));
            hash = (hash ^ bits) * UINT64_C(0x9ddfea08eb382d69);
            hash ^= hash >> 32;
        }
        sum += hash;
    }
    return sum;
}
