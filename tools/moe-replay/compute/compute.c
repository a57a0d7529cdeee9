/* SPDX-License-Identifier: Apache-2.0 */
/* compute.c - threads that do the same with every expert, each its part of every tensor. */
#include "compute.h"

#include "ffn.h"
#include "mixture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 64u

struct worker {
    struct replay_compute *compute;
    uint32_t number;
    pthread_t thread;
    uint64_t check;
    uint8_t apart[LINE_BYTES]; /* of the next one's */
};

struct replay_compute {
    enum replay_compute_kind kind;
    uint64_t check; /* of layers that were run */
    /* REPLAY_COMPUTE_FFN and _FFN_CODED: */
    struct efs_team *team;
    struct replay_mixture *mixture;
    struct replay_ffn *ffn; /* NULL for the latter */
    /* REPLAY_COMPUTE_TOUCH: */
    uint32_t threads;
    const struct replay_view *view; /* between two barriers; NULL: end */
    pthread_mutex_t gate;           /* held until it is known how many threads there are */
    pthread_barrier_t begin, end;
    struct worker workers[];
};

static const char *const names[REPLAY_COMPUTE_KINDS] = {"none", "touch", "ffn", "ffn-coded"};

const char *replay_compute_name(enum replay_compute_kind kind)
{
    return names[kind];
}

enum replay_compute_kind replay_compute_by_name(const char *name)
{
    unsigned k = 0;
    while (k < REPLAY_COMPUTE_KINDS && strcmp(names[k], name) != 0)
        k++;
    return (enum replay_compute_kind)k;
}

static bool runs_experts(enum replay_compute_kind kind)
{
    return kind == REPLAY_COMPUTE_FFN || kind == REPLAY_COMPUTE_FFN_CODED;
}

errint_t replay_compute_possible(enum replay_compute_kind kind, const struct replay_model *model, struct efs_error *err)
{
    return runs_experts(kind) ? replay_ffn_possible(model, err) : 0;
}

/* ---- touching ----------------------------------------------------------------------------------------------- */

static uint64_t touch_bytes(const uint8_t *data, uint64_t begin, uint64_t end)
{
    uint64_t sum = 0, word;
    for (uint64_t at = begin; at + sizeof(word) <= end; at += LINE_BYTES) {
        memcpy(&word, data + at, sizeof(word));
        sum += word;
    }
    return sum;
}

static void touch_part(struct worker *w, const struct replay_view *view)
{
    uint32_t threads = w->compute->threads;
    for (uint32_t t = 0; t < view->expert->count; t++) {
        uint64_t bytes = view->expert->tensors[t].bytes, lines = bytes / LINE_BYTES + 1;
        uint64_t begin = lines * w->number / threads * LINE_BYTES, end = lines * (w->number + 1) / threads * LINE_BYTES;
        w->check += touch_bytes(view->data[t], begin, end < bytes ? end : bytes);
    }
}

static void *worker_run(void *arg)
{
    struct worker *w = arg;
    struct replay_compute *c = w->compute;
    pthread_mutex_lock(&c->gate);
    pthread_mutex_unlock(&c->gate);
    for (;;) {
        pthread_barrier_wait(&c->begin);
        if (!c->view)
            return NULL;
        touch_part(w, c->view);
        pthread_barrier_wait(&c->end);
    }
}

static void compute_start_touching(struct replay_compute *c, uint32_t threads)
{
    for (uint32_t i = 0; i < threads; i++)
        c->workers[i] = (struct worker){.compute = c, .number = i};
    c->threads = 1; /* that run */
    pthread_mutex_init(&c->gate, NULL);
    pthread_mutex_lock(&c->gate);
    while (c->threads < threads &&
           pthread_create(&c->workers[c->threads].thread, NULL, worker_run, &c->workers[c->threads]) == 0)
        c->threads++;
    pthread_barrier_init(&c->begin, NULL, c->threads);
    pthread_barrier_init(&c->end, NULL, c->threads);
    pthread_mutex_unlock(&c->gate);
}

static void compute_stop_touching(struct replay_compute *c)
{
    c->view = NULL;
    pthread_barrier_wait(&c->begin);
    for (uint32_t i = 1; i < c->threads; i++)
        pthread_join(c->workers[i].thread, NULL);
    pthread_barrier_destroy(&c->begin);
    pthread_barrier_destroy(&c->end);
    pthread_mutex_destroy(&c->gate);
}

/* ---- a layer ------------------------------------------------------------------------------------------------ */

void replay_compute_begin(struct replay_compute *c, const uint64_t *at, uint32_t width, uint32_t layer)
{
    if (runs_experts(c->kind))
        replay_mixture_set(c->mixture, at, width, layer);
}

errint_t replay_compute_run(struct replay_compute *c, const struct replay_view *view, struct efs_error *err)
{
    if (c->ffn)
        return replay_ffn_run(c->ffn, view, err);
    if (c->kind == REPLAY_COMPUTE_TOUCH) {
        c->view = view;
        pthread_barrier_wait(&c->begin);
        touch_part(&c->workers[0], view);
        pthread_barrier_wait(&c->end);
    }
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
    if (c->ffn)
        replay_ffn_add_up(c->ffn);
    if (runs_experts(c->kind))
        c->check += replay_mixture_fold(c->mixture);
}

uint64_t replay_compute_check(const struct replay_compute *c)
{
    uint64_t sum = c->check;
    for (uint32_t i = 0; i < c->threads; i++)
        sum += c->workers[i].check;
    return sum;
}

/* ---- begin and end ------------------------------------------------------------------------------------------ */

static bool compute_start_running(struct replay_compute *c, uint32_t threads, const struct replay_model *model,
                                  const struct replay_workload *w)
{
    uint32_t widest = 1;
    for (uint64_t pass = 0; pass < w->passes; pass++)
        widest = w->width[pass] > widest ? w->width[pass] : widest;
    c->mixture = replay_mixture_new(model, w, replay_ffn_hidden(model));
    if (!c->mixture || efs_team_new(threads, &c->team) < 0)
        return false;
    if (c->kind == REPLAY_COMPUTE_FFN)
        c->ffn = replay_ffn_new(replay_mixture_get(c->mixture), c->team, widest, w->route->chosen);
    return c->ffn || c->kind == REPLAY_COMPUTE_FFN_CODED;
}

struct replay_compute *replay_compute_new(enum replay_compute_kind kind, uint32_t threads,
                                          const struct replay_model *model, const struct replay_workload *workload)
{
    struct replay_compute *c = calloc(1, sizeof(*c) + threads * sizeof(c->workers[0]));
    if (!c)
        return NULL;
    c->kind = kind;
    if (runs_experts(kind) && !compute_start_running(c, threads, model, workload)) {
        replay_compute_free(c);
        return NULL;
    }
    if (kind == REPLAY_COMPUTE_TOUCH)
        compute_start_touching(c, threads);
    return c;
}

void replay_compute_free(struct replay_compute *c)
{
    if (!c)
        return;
    if (c->kind == REPLAY_COMPUTE_TOUCH)
        compute_stop_touching(c);
    replay_ffn_free(c->ffn);
    efs_team_free(c->team);
    replay_mixture_free(c->mixture);
    free(c);
}
