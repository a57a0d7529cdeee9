/* experts.c - run the chosen experts of a layer: lease them all at once and compute with each as it comes. */
#include "experts.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One expert of the layer, on its way. */
struct arrival {
    struct arrival *next;
    struct experts *experts;
    uint32_t expert;
    errint_t error;
    struct efs_lease *lease;
};

struct experts {
    const struct model *model;
    pthread_mutex_t lock; /* guards arrived */
    pthread_cond_t changed;
    struct arrival *arrived;
    struct arrival *arrivals;    /* [experts] */
    bool *wanted;                /* [experts] */
    uint32_t *slots;             /* [tokens]: the places token * chosen + i that chose the expert at hand */
    float *in, *gate, *up, *out; /* of its tokens: [tokens] of [hidden], [inner], [inner], [hidden] */
    float *results;              /* [tokens][chosen][hidden] */
};

errint_t experts_start(const struct model *model, uint32_t tokens, struct experts **out)
{
    const struct config *c = &model->config;
    struct experts *x = calloc(1, sizeof(*x));
    if (!x)
        return -ENOMEM;
    x->model = model;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->changed, NULL);
    x->arrivals = calloc(c->experts, sizeof(*x->arrivals));
    x->wanted = calloc(c->experts, sizeof(*x->wanted));
    x->slots = calloc(tokens, sizeof(*x->slots));
    x->in = calloc((size_t)tokens * c->hidden, sizeof(float));
    x->gate = calloc((size_t)tokens * c->inner, sizeof(float));
    x->up = calloc((size_t)tokens * c->inner, sizeof(float));
    x->out = calloc((size_t)tokens * c->hidden, sizeof(float));
    x->results = calloc((size_t)tokens * c->chosen * c->hidden, sizeof(float));
    *out = x;
    if (x->arrivals && x->wanted && x->slots && x->in && x->gate && x->up && x->out && x->results)
        return 0;
    experts_stop(x);
    return -ENOMEM;
}

void experts_stop(struct experts *x)
{
    if (!x)
        return;
    free(x->arrivals);
    free(x->wanted);
    free(x->slots);
    free(x->in);
    free(x->gate);
    free(x->up);
    free(x->out);
    free(x->results);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->changed);
    free(x);
}

/* An efs_leased_fn, called from a thread of the library or from efs_lease() itself. */
static void leased(void *arg, errint_t error, struct efs_lease *lease)
{
    struct arrival *a = arg;
    a->error = error;
    a->lease = lease;
    pthread_mutex_lock(&a->experts->lock);
    a->next = a->experts->arrived;
    a->experts->arrived = a;
    pthread_cond_signal(&a->experts->changed);
    pthread_mutex_unlock(&a->experts->lock);
}

static struct arrival *next_arrival(struct experts *x)
{
    pthread_mutex_lock(&x->lock);
    while (!x->arrived)
        pthread_cond_wait(&x->changed, &x->lock);
    struct arrival *a = x->arrived;
    x->arrived = a->next;
    pthread_mutex_unlock(&x->lock);
    return a;
}

/* Ask for every expert that a token chose; returns how many. */
static uint32_t ask(struct experts *x, uint32_t layer, const struct routes *routes)
{
    uint32_t asked = 0;
    memset(x->wanted, 0, x->model->config.experts * sizeof(*x->wanted));
    for (size_t i = 0; i < (size_t)routes->tokens * routes->chosen; i++) {
        uint32_t expert = routes->expert[i];
        if (x->wanted[expert])
            continue;
        x->wanted[expert] = true;
        asked++;
        x->arrivals[expert] = (struct arrival){.experts = x, .expert = expert};
        efs_lease(x->model->fs, x->model->layers[layer].expert_files[expert], leased, &x->arrivals[expert]);
    }
    return asked;
}

static errint_t expert_matrix(const struct experts *x, const struct arrival *a, uint32_t layer, const char *part,
                              uint32_t rows, uint32_t columns, struct matrix *matrix, struct efs_error *err)
{
    char name[128];
    struct efs_file_info info;
    errint_t rc = efs_file_info(x->model->fs, x->model->layers[layer].expert_files[a->expert], &info);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, a->expert, part);
    return safetensors_find(efs_lease_data(a->lease), info.bytes, name, rows, columns, matrix, err);
}

/* The tokens that chose this expert, through it, into their results. */
static errint_t run_one(struct experts *x, struct team *team, uint32_t layer, const struct routes *routes,
                        const float *in, const struct arrival *a, struct efs_error *err)
{
    uint32_t hidden = x->model->config.hidden, inner = x->model->config.inner, count = 0;
    struct matrix gate, up, down;
    errint_t rc = expert_matrix(x, a, layer, "gate", inner, hidden, &gate, err);
    if (rc == 0)
        rc = expert_matrix(x, a, layer, "up", inner, hidden, &up, err);
    if (rc == 0)
        rc = expert_matrix(x, a, layer, "down", hidden, inner, &down, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < routes->tokens * routes->chosen; i++)
        if (routes->expert[i] == a->expert) {
            memcpy(x->in + (size_t)count * hidden, in + (size_t)(i / routes->chosen) * hidden, hidden * sizeof(float));
            x->slots[count++] = i;
        }
    struct product both[] = {{&gate, x->in, x->gate, count}, {&up, x->in, x->up, count}};
    team_products(team, both, 2);
    for (size_t i = 0; i < (size_t)count * inner; i++)
        x->gate[i] *= x->up[i] / (1 + expf(-x->gate[i]));
    if (x->model->bf16_activations)
        round_bf16(x->gate, (size_t)count * inner);
    team_products(team, &(struct product){&down, x->gate, x->out, count}, 1);
    for (uint32_t i = 0; i < count; i++)
        memcpy(x->results + (size_t)x->slots[i] * hidden, x->out + (size_t)i * hidden, hidden * sizeof(float));
    return 0;
}

errint_t experts_run(struct experts *x, struct team *team, uint32_t layer, const struct routes *routes, const float *in,
                     float *y, struct efs_error *err)
{
    uint32_t hidden = x->model->config.hidden;
    errint_t rc = 0;
    for (uint32_t left = ask(x, layer, routes); left > 0; left--) {
        struct arrival *a = next_arrival(x);
        if (rc == 0 && a->error < 0)
            rc = efs_fail(err, a->error, "layer %u, expert %u: %s", layer, a->expert, strerror(-a->error));
        if (rc == 0)
            rc = run_one(x, team, layer, routes, in, a, err);
        if (a->lease)
            efs_lease_release(a->lease);
    }
    memset(y, 0, (size_t)routes->tokens * hidden * sizeof(*y));
    for (size_t i = 0; rc == 0 && i < (size_t)routes->tokens * routes->chosen; i++)
        for (size_t d = 0; d < hidden; d++)
            y[i / routes->chosen * hidden + d] += routes->weight[i] * x->results[i * hidden + d];
    return rc;
}
