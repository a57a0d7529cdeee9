/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn.c - experts as most models run them, y = down(silu(gate x) * up x), from plain BF16 matrices wherever they
 * lie. Each is run as it comes; what a layer's experts gave is added up at its end in the order of the mixture, as the
 * library does, so that the sums are the same to the bit.
 */
#include "ffn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct replay_ffn {
    const struct efs_mixture *mixture;
    struct efs_team *team;
    uint32_t room;   /* tokens in out */
    float *x, *out;  /* [tokens of an expert][hidden]; [room][hidden], in the order of the mixture */
    uint32_t *token; /* 0, 1, 2, ... */
    float *weight;   /* 1, 1, 1, ... */
};

enum role { GATE, UP, DOWN, ROLES };

/* Which tensor is what, by the names that models give them; false: it is not such an expert. */
static bool find_roles(const struct replay_expert *expert, uint32_t role[ROLES])
{
    static const struct {
        const char *name;
        enum role role;
    } known[] = {{".gate_proj.weight", GATE}, {".up_proj.weight", UP}, {".down_proj.weight", DOWN},
                 {".w1.weight", GATE},        {".w3.weight", UP},      {".w2.weight", DOWN}};
    role[GATE] = role[UP] = role[DOWN] = UINT32_MAX;
    for (uint32_t t = 0; t < expert->count; t++)
        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
            size_t bytes = strlen(expert->tensors[t].name), end = strlen(known[k].name);
            if (bytes >= end && strcmp(expert->tensors[t].name + bytes - end, known[k].name) == 0)
                role[known[k].role] = t;
        }
    if (role[GATE] == UINT32_MAX || role[UP] == UINT32_MAX || role[DOWN] == UINT32_MAX)
        return false;
    const struct replay_tensor *gate = &expert->tensors[role[GATE]], *up = &expert->tensors[role[UP]],
                               *down = &expert->tensors[role[DOWN]];
    return gate->rows > 0 && gate->rows <= UINT32_MAX && gate->columns > 0 && gate->columns <= UINT32_MAX &&
           gate->rows == up->rows && gate->columns == up->columns && down->rows == gate->columns &&
           down->columns == gate->rows;
}

uint32_t replay_ffn_hidden(const struct replay_model *m)
{
    uint32_t role[ROLES], hidden = 0;
    for (uint32_t i = 0; i < m->layers * m->experts; i++) {
        if (!find_roles(&m->all[i], role))
            return 0;
        uint32_t columns = (uint32_t)m->all[i].tensors[role[GATE]].columns;
        if (hidden && columns != hidden)
            return 0;
        hidden = columns;
    }
    return hidden;
}

errint_t replay_ffn_possible(const struct replay_model *m, struct efs_error *err)
{
    return replay_ffn_hidden(m) ? 0
                                : efs_fail(err, -EOPNOTSUPP,
                                           "--compute ffn: the experts have no gate, up and down matrices in BF16, or "
                                           "not all of the same hidden size");
}

struct replay_ffn *replay_ffn_new(const struct efs_mixture *mixture, struct efs_team *team, uint32_t tokens_max,
                                  uint32_t chosen)
{
    struct replay_ffn *f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    *f = (struct replay_ffn){.mixture = mixture, .team = team, .room = tokens_max * chosen};
    f->x = calloc((size_t)tokens_max * mixture->hidden, sizeof(*f->x));
    f->out = calloc((size_t)f->room * mixture->hidden, sizeof(*f->out));
    f->token = calloc(tokens_max, sizeof(*f->token));
    f->weight = calloc(tokens_max, sizeof(*f->weight));
    if (!f->x || !f->out || !f->token || !f->weight) {
        replay_ffn_free(f);
        return NULL;
    }
    for (uint32_t t = 0; t < tokens_max; t++) {
        f->token[t] = t;
        f->weight[t] = 1;
    }
    return f;
}

void replay_ffn_free(struct replay_ffn *f)
{
    if (!f)
        return;
    free(f->x);
    free(f->out);
    free(f->token);
    free(f->weight);
    free(f);
}

errint_t replay_ffn_run(struct replay_ffn *f, const struct replay_view *view, struct efs_error *err)
{
    const struct efs_mixture *m = f->mixture;
    uint32_t role[ROLES], i = 0, first = 0;
    while (i < m->expert_count && m->experts[i].expert.number != view->expert->id)
        first += m->experts[i++].count;
    if (i == m->expert_count || !find_roles(view->expert, role))
        return efs_fail(err, -EINVAL, "%s was not asked for", view->expert->path);
    const struct efs_route_to *to = &m->experts[i];
    for (uint32_t t = 0; t < to->count; t++)
        memcpy(f->x + (size_t)t * m->hidden, (const float *)m->x + to->token[t] * m->x_stride,
               m->hidden * sizeof(*f->x));
    const struct efs_route_to one = {.count = to->count, .token = f->token, .weight = f->weight};
    const struct efs_plain_expert plain = {.gate = view->data[role[GATE]],
                                           .up = view->data[role[UP]],
                                           .down = view->data[role[DOWN]],
                                           .inner = (uint32_t)view->expert->tensors[role[GATE]].rows};
    const struct efs_mixture alone = {.size = sizeof(struct efs_mixture),
                                      .expert_bytes = sizeof(struct efs_route_to),
                                      .experts = &one,
                                      .expert_count = 1,
                                      .activation = m->activation,
                                      .x = f->x,
                                      .tokens = to->count,
                                      .hidden = m->hidden,
                                      .x_stride = m->hidden,
                                      .y_stride = m->hidden,
                                      .y = f->out + (size_t)first * m->hidden};
    return efs_plain_ffn(f->team, &alone, &plain, sizeof(struct efs_plain_expert), err);
}

void replay_ffn_add_up(struct replay_ffn *f)
{
    const struct efs_mixture *m = f->mixture;
    const float *out = f->out;
    memset(m->y, 0, (size_t)m->tokens * m->y_stride * sizeof(*m->y));
    for (uint32_t i = 0; i < m->expert_count; i++)
        for (uint32_t t = 0; t < m->experts[i].count; t++, out += m->hidden) {
            float *y = m->y + m->experts[i].token[t] * m->y_stride, weight = m->experts[i].weight[t];
            for (uint32_t c = 0; c < m->hidden; c++)
                y[c] += weight * out[c];
        }
}
