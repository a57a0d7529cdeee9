/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_input.c - forms of a mixture: the experts of each token, as a router gives them, become the tokens of each
 * expert; sums in F32 become results in BF16.
 */
#include "ffn.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int64_t index_at(const struct efs_router_output *r, size_t at)
{
    return r->index_type == EFS_DTYPE_I64 ? ((const int64_t *)r->indices)[at] : ((const int32_t *)r->indices)[at];
}

static float weight_at(const struct efs_router_output *r, size_t at)
{
    float value;
    if (r->weight_type == EFS_DTYPE_F32)
        return ((const float *)r->weights)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)r->weights)[at] << 16;
    memcpy(&value, &bits, 4);
    return value;
}

/* Counts the tokens of each expert of the layer. */
static errint_t count_tokens(const struct efs_router_output *r, uint32_t tokens, struct efs_route_to *of,
                             struct efs_error *err)
{
    for (size_t at = 0; at < (size_t)tokens * r->per_token; at++) {
        const int64_t expert = index_at(r, at);
        if (expert < 0 || expert >= r->experts)
            return efs_fail(err, -EINVAL, "token %zu is routed to expert %lld of %u", at / r->per_token,
                            (long long)expert, r->experts);
        of[expert].count++;
    }
    return 0;
}

/* Makes the routes of in->mixture, one for each expert that a token has chosen, in the order of their numbers. */
static errint_t make_routes(const struct efs_router_output *r, struct efs_ffn_input *in, struct efs_error *err)
{
    const uint32_t tokens = in->mixture.tokens;
    const size_t all = (size_t)tokens * r->per_token, room = r->experts * sizeof(struct efs_route_to);
    uint8_t *memory = efs_sys_calloc(1, room + all * (sizeof(uint32_t) + sizeof(float)));
    struct efs_route_to *of = in->routes = memory;
    if (!memory)
        return efs_fail(err, -ENOMEM, "no memory for the routes of %u tokens", tokens);
    errint_t rc = count_tokens(r, tokens, of, err);
    if (rc < 0)
        return rc;
    uint32_t *token = (uint32_t *)(memory + room);
    float *weight = (float *)(token + all);
    for (uint32_t e = 0; e < r->experts; e++) {
        const uint32_t count = of[e].count;
        of[e] = (struct efs_route_to){.expert = e, .token = token, .weight = weight};
        token += count;
        weight += count;
    }
    for (size_t at = 0; at < all; at++) {
        struct efs_route_to *route = &of[index_at(r, at)];
        const uint32_t t = (uint32_t)(at / r->per_token);
        if (route->count > 0 && route->token[route->count - 1] == t)
            return efs_fail(err, -EINVAL, "token %u is routed to expert %u twice", t, route->expert);
        ((uint32_t *)route->token)[route->count] = t;
        ((float *)route->weight)[route->count++] = weight_at(r, at);
    }
    uint32_t chosen = 0;
    for (uint32_t e = 0; e < r->experts; e++)
        if (of[e].count > 0)
            of[chosen++] = of[e];
    in->mixture.experts = of;
    in->mixture.expert_count = chosen;
    return 0;
}

errint_t efs_ffn_input_begin(const struct efs_mixture *m, struct efs_ffn_input *in, struct efs_error *err)
{
    *in = (struct efs_ffn_input){.mixture = *m};
    errint_t rc = m->routing ? make_routes(m->routing, in, err) : 0;
    if (rc == 0 && m->y_bf16) {
        in->sums = efs_sys_malloc((size_t)m->tokens * m->hidden * sizeof(float));
        in->mixture.y = in->sums;
        in->mixture.y_stride = m->hidden;
        rc = in->sums ? 0 : efs_fail(err, -ENOMEM, "no memory for the sums of %u tokens", m->tokens);
    }
    return rc;
}

void efs_ffn_input_end(const struct efs_mixture *m, struct efs_ffn_input *in, errint_t rc)
{
    for (uint32_t t = 0; rc == 0 && m->y_bf16 && t < m->tokens; t++)
        for (uint32_t i = 0; i < m->hidden; i++)
            m->y_bf16[t * m->y_stride + i] = efs_rounded_bf16(in->sums[(size_t)t * m->hidden + i]);
    free(in->sums);
    free(in->routes);
}
