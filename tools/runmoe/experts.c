/* SPDX-License-Identifier: Apache-2.0 */
/* experts.c - run the chosen experts of a layer: one call of the library, which brings them and computes with each as
 * it comes. */
#include "experts.h"
#include "expertfs-compute.h"

#include "matrix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct experts {
    const struct model *model;
    struct efs_team *team;        /* the library's threads for products */
    struct efs_route_to *mixture; /* [experts]: those of the layer at hand, in the order of their numbers */
    uint32_t *count;              /* [experts]: tokens that go there */
    uint32_t *token;              /* [tokens * chosen]: expert by expert */
    float *weight;                /* the same */
    uint16_t *in;                 /* [tokens][hidden]: x in BF16, for BF16 activations */
};

errint_t experts_start(const struct model *model, unsigned threads, uint32_t tokens, struct experts **out)
{
    const struct config *c = &model->config;
    struct experts *x = calloc(1, sizeof(*x));
    if (!x)
        return -ENOMEM;
    x->model = model;
    x->mixture = calloc(c->experts, sizeof(*x->mixture));
    x->count = calloc(c->experts, sizeof(*x->count));
    x->token = calloc((size_t)tokens * c->chosen, sizeof(*x->token));
    x->weight = calloc((size_t)tokens * c->chosen, sizeof(*x->weight));
    x->in = calloc((size_t)tokens * c->hidden, sizeof(*x->in));
    errint_t rc = x->mixture && x->count && x->token && x->weight && x->in ? efs_team_new(threads, &x->team) : -ENOMEM;
    if (rc == 0)
        *out = x;
    else
        experts_stop(x);
    return rc;
}

void experts_stop(struct experts *x)
{
    if (!x)
        return;
    efs_team_free(x->team);
    free(x->mixture);
    free(x->count);
    free(x->token);
    free(x->weight);
    free(x->in);
    free(x);
}

uint64_t experts_bytes(const struct config *c, uint32_t tokens)
{
    return sizeof(float) * tokens * c->chosen * (2ull + 2ull * c->hidden + 2ull * c->inner) +
           sizeof(uint16_t) * tokens * c->hidden;
}

/* From who each token goes to, to who comes to each expert. Returns how many experts there are. */
static uint32_t experts_gather(struct experts *x, const struct routes *routes)
{
    uint32_t slots = routes->tokens * routes->chosen, count = 0, next = 0;
    memset(x->count, 0, x->model->config.experts * sizeof(*x->count));
    for (uint32_t i = 0; i < slots; i++)
        x->count[routes->expert[i]]++;
    for (uint32_t e = 0; e < x->model->config.experts; e++) {
        if (x->count[e] == 0)
            continue;
        x->mixture[count++] = (struct efs_route_to){
            .expert = efs_id(e), .count = x->count[e], .token = x->token + next, .weight = x->weight + next};
        for (uint32_t i = 0; i < slots; i++)
            if (routes->expert[i] == e) {
                x->token[next] = i / routes->chosen;
                x->weight[next++] = routes->weight[i];
            }
    }
    return count;
}

errint_t experts_run(struct experts *x, uint32_t layer, const struct routes *routes, const float *in, float *y,
                     struct efs_error *err)
{
    uint32_t hidden = x->model->config.hidden;
    bool bf16 = x->model->bf16_activations;
    if (bf16)
        to_bf16(in, x->in, (size_t)routes->tokens * hidden);
    struct efs_mixture mixture = {.size = sizeof(struct efs_mixture),
                                  .expert_bytes = sizeof(struct efs_route_to),
                                  .experts = x->mixture,
                                  .expert_count = experts_gather(x, routes),
                                  .activation = bf16 ? EFS_ACTIVATION_BF16 : EFS_ACTIVATION_F32,
                                  .x = bf16 ? (const void *)x->in : in,
                                  .tokens = routes->tokens,
                                  .hidden = hidden,
                                  .x_stride = hidden,
                                  .y = y,
                                  .y_stride = hidden,
                                  .form = x->model->form};
    return efs_client_ffn(x->model->client, x->team, "", layer, &mixture, err);
}
