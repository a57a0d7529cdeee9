/* replay_compute.c - threads that do the same with every expert, each its part of every tensor. */
#include "replay_compute.h"

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
    uint32_t threads;
    const struct replay_view *view; /* between two barriers; NULL: end */
    struct replay_ffn *ffn;
    pthread_mutex_t gate; /* held until it is known how many threads there are */
    pthread_barrier_t begin, middle, end;
    struct worker workers[];
};

static const char *const names[REPLAY_COMPUTE_KINDS] = {"none", "touch", "ffn"};

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

errint_t replay_compute_possible(enum replay_compute_kind kind, const struct replay_model *model, struct efs_error *err)
{
    return kind == REPLAY_COMPUTE_FFN ? replay_ffn_possible(model, err) : 0;
}

static uint64_t touch(const uint8_t *data, uint64_t begin, uint64_t end)
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
        w->check += touch(view->data[t], begin, end < bytes ? end : bytes);
    }
}

static void compute_part(struct worker *w, const struct replay_view *view)
{
    struct replay_compute *c = w->compute;
    if (c->kind == REPLAY_COMPUTE_TOUCH) {
        touch_part(w, view);
        return;
    }
    replay_ffn_gate_up(c->ffn, view, w->number, c->threads);
    pthread_barrier_wait(&c->middle);
    w->check += replay_ffn_down(c->ffn, view, w->number, c->threads);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct replay_compute *c = w->compute;
    pthread_mutex_lock(&c->gate);
    pthread_mutex_unlock(&c->gate);
    for (;;) {
        pthread_barrier_wait(&c->begin);
        if (!c->view)
            return NULL;
        compute_part(w, c->view);
        pthread_barrier_wait(&c->end);
    }
}

void replay_compute_run(struct replay_compute *c, const struct replay_view *view)
{
    if (c->kind == REPLAY_COMPUTE_NONE)
        return;
    c->view = view;
    pthread_barrier_wait(&c->begin);
    compute_part(&c->workers[0], view);
    pthread_barrier_wait(&c->end);
}

uint64_t replay_compute_check(const struct replay_compute *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->threads; i++)
        sum += c->workers[i].check;
    return sum;
}

struct replay_compute *replay_compute_new(enum replay_compute_kind kind, uint32_t threads,
                                          const struct replay_model *model, uint32_t tokens_max)
{
    struct replay_compute *c = calloc(1, sizeof(*c) + threads * sizeof(c->workers[0]));
    if (!c)
        return NULL;
    c->kind = kind;
    c->threads = 1; /* that run */
    if (kind == REPLAY_COMPUTE_FFN && !(c->ffn = replay_ffn_new(model, tokens_max))) {
        free(c);
        return NULL;
    }
    for (uint32_t i = 0; i < threads; i++)
        c->workers[i] = (struct worker){.compute = c, .number = i};
    pthread_mutex_init(&c->gate, NULL);
    pthread_mutex_lock(&c->gate);
    while (kind != REPLAY_COMPUTE_NONE && c->threads < threads &&
           pthread_create(&c->workers[c->threads].thread, NULL, work, &c->workers[c->threads]) == 0)
        c->threads++;
    pthread_barrier_init(&c->begin, NULL, c->threads);
    pthread_barrier_init(&c->middle, NULL, c->threads);
    pthread_barrier_init(&c->end, NULL, c->threads);
    pthread_mutex_unlock(&c->gate);
    return c;
}

void replay_compute_free(struct replay_compute *c)
{
    if (!c)
        return;
    c->view = NULL;
    if (c->kind != REPLAY_COMPUTE_NONE)
        pthread_barrier_wait(&c->begin);
    for (uint32_t i = 1; i < c->threads; i++)
        pthread_join(c->workers[i].thread, NULL);
    pthread_barrier_destroy(&c->begin);
    pthread_barrier_destroy(&c->middle);
    pthread_barrier_destroy(&c->end);
    pthread_mutex_destroy(&c->gate);
    replay_ffn_free(c->ffn);
    free(c);
}
