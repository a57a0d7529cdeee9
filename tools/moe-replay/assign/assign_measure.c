/* SPDX-License-Identifier: Apache-2.0 */
/* assign_measure.c - measures the CPU time of experts of a store, in memory, by the number of tokens. */
#include "assign_command.h"
#include "expertfs-compute.h"
#include "model.h"

#include "expertfs-clock-private.h"
#include "measure.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKENS_MAX 64u
#define ROUNDS 5u
#define EXPERTS_MAX 8u /* run in turn, so that the weights are not in the CPU's caches */

struct measuring {
    struct efs_client *client;
    struct efs_team *team;
    char stack[64];
    uint32_t layer, experts, hidden;
    float *x, *y, weight[TOKENS_MAX];
    uint32_t token[TOKENS_MAX];
};

static errint_t run_expert(struct measuring *m, uint32_t which, uint32_t tokens, double *ns, struct efs_error *err)
{
    const struct efs_route_to to = {which, tokens, m->token, m->weight};
    const struct efs_mixture mixture = {.expert_count = 1,
                                        .experts = &to,
                                        .activation = EFS_ACTIVATION_F32,
                                        .x = m->x,
                                        .tokens = tokens,
                                        .hidden = m->hidden,
                                        .x_stride = m->hidden,
                                        .y_stride = m->hidden,
                                        .y = m->y,
                                        .form = EFS_FORM_FULL};
    uint64_t began = efs_now_ns();
    errint_t rc = efs_client_ffn(m->client, m->team, m->stack, m->layer, &mixture, err);
    *ns = (double)(efs_now_ns() - began);
    return rc;
}

/* Loads all experts by running each twice, then takes the median over rounds and experts for each number of tokens. */
static errint_t measure_all(struct measuring *m, struct replay_cpu *cpu, struct efs_error *err)
{
    double times[ROUNDS * EXPERTS_MAX];
    errint_t rc = 0;
    for (uint32_t e = 0; rc == 0 && e < 2 * m->experts; e++)
        rc = run_expert(m, e % m->experts, 1, &times[0], err);
    for (uint32_t p = 0, tokens = 1; rc == 0 && tokens <= TOKENS_MAX; p++, tokens *= 2) {
        unsigned count = 0;
        for (unsigned round = 0; rc == 0 && round < ROUNDS; round++)
            for (uint32_t e = 0; rc == 0 && e < m->experts; e++)
                rc = run_expert(m, e, tokens, &times[count++], err);
        double ns = rc == 0 ? tools_median(times, count) : 0;
        cpu->points = p + 1;
        cpu->point[p].tokens = tokens;
        cpu->point[p].ns = ns;
    }
    return rc;
}

/* Opens the store twice: the first time for the size of its experts, from which the budget is computed. */
static errint_t measure_open(struct measuring *m, const char *store, struct replay_cpu *cpu, struct efs_error *err)
{
    struct efs_client_options options = {.no_state = true};
    struct replay_model model = {0};
    errint_t rc = efs_client_open(store, &options, &m->client, err);
    if (rc == 0)
        rc = replay_model_of_store(efs_client_fs(m->client), store, &model, err);
    efs_client_close(m->client);
    m->client = NULL;
    if (rc == 0 && model.hidden == 0)
        rc = efs_fail(err, -EOPNOTSUPP, "%s: the experts have no gate, up and down matrices in BF16", store);
    m->hidden = model.hidden;
    m->experts = model.experts < EXPERTS_MAX ? model.experts : EXPERTS_MAX;
    cpu->expert_bytes = model.expert_bytes;
    options.budget_bytes = (uint64_t)(3 * m->experts + 4) * model.expert_bytes + (1u << 30);
    if (rc == 0) {
        snprintf(m->stack, sizeof(m->stack), "%s", model.layer[0].stack);
        m->layer = model.layer[0].number;
    }
    replay_model_free(&model);
    return rc == 0 ? efs_client_open(store, &options, &m->client, err) : rc;
}

errint_t replay_cpu_measure(const char *store, struct replay_cpu *cpu, struct efs_error *err)
{
    struct measuring m = {0};
    *cpu = (struct replay_cpu){0};
    errint_t rc = measure_open(&m, store, cpu, err);
    m.x = calloc((size_t)TOKENS_MAX * m.hidden + 1, sizeof(float));
    m.y = calloc((size_t)TOKENS_MAX * m.hidden + 1, sizeof(float));
    if (rc == 0 && (!m.x || !m.y || efs_team_new(0, &m.team) < 0))
        rc = efs_fail(err, -ENOMEM, "no memory");
    for (size_t i = 0; rc == 0 && i < (size_t)TOKENS_MAX * m.hidden; i++)
        m.x[i] = (float)(i * 2654435761u % 1024) / 512 - 1;
    for (uint32_t t = 0; t < TOKENS_MAX; t++) {
        m.token[t] = t;
        m.weight[t] = 1;
    }
    if (rc == 0)
        rc = measure_all(&m, cpu, err);
    efs_client_close(m.client);
    efs_team_free(m.team);
    free(m.x);
    free(m.y);
    return rc;
}
