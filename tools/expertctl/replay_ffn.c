/*
 * replay_ffn.c - an expert as most models run it: y = down(silu(gate x) * up x), in BF16 with sums in F32, straight
 * from where the tensors lie. Rows are dealt out to the threads.
 */
#include "replay_compute.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 32u

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDEST
#endif

struct replay_ffn {
    uint64_t hidden_max, inner_max;
    float *x;      /* [hidden_max]: the same for every token */
    float *inner;  /* [tokens_max][inner_max] */
    uint32_t most; /* tokens_max */
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
    return gate->rows > 0 && gate->rows == up->rows && gate->columns == up->columns && down->rows == gate->columns &&
           down->columns == gate->rows;
}

errint_t replay_ffn_possible(const struct replay_model *m, struct efs_error *err)
{
    uint32_t role[ROLES];
    for (uint32_t i = 0; i < m->layers * m->experts; i++)
        if (!find_roles(&m->all[i], role))
            return efs_fail(err, -EOPNOTSUPP, "--compute ffn: %s has no gate, up and down matrices in BF16",
                            m->all[i].path);
    return 0;
}

struct replay_ffn *replay_ffn_new(const struct replay_model *m, uint32_t tokens_max)
{
    struct replay_ffn *f = calloc(1, sizeof(*f));
    uint32_t role[ROLES];
    if (!f)
        return NULL;
    for (uint32_t i = 0; i < m->layers * m->experts; i++)
        if (find_roles(&m->all[i], role)) {
            const struct replay_tensor *gate = &m->all[i].tensors[role[GATE]];
            f->hidden_max = gate->columns > f->hidden_max ? gate->columns : f->hidden_max;
            f->inner_max = gate->rows > f->inner_max ? gate->rows : f->inner_max;
        }
    f->most = tokens_max;
    f->x = calloc(f->hidden_max + 1, sizeof(*f->x));
    f->inner = calloc((size_t)tokens_max * f->inner_max + 1, sizeof(*f->inner));
    for (uint64_t i = 0; f->x && i < f->hidden_max; i++)
        f->x[i] = (float)(i % 17) / 16.0f - 0.5f;
    if (!f->x || !f->inner) {
        replay_ffn_free(f);
        return NULL;
    }
    return f;
}

void replay_ffn_free(struct replay_ffn *f)
{
    if (f) {
        free(f->x);
        free(f->inner);
    }
    free(f);
}

/* A BF16 row times a vector. Sums of lanes, in an order that does not depend on the processor's width. */
WIDEST static float dot(const uint8_t *row, const float *x, uint64_t count)
{
    float sums[LANES] = {0}, sum = 0;
    uint16_t half[LANES];
    uint64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        memcpy(half, row + 2 * i, sizeof(half));
        for (unsigned l = 0; l < LANES; l++) {
            uint32_t bits = (uint32_t)half[l] << 16;
            float weight;
            memcpy(&weight, &bits, sizeof(weight));
            sums[l] += weight * x[i + l];
        }
    }
    for (; i < count; i++) {
        uint32_t bits = (uint32_t)(row[2 * i] | row[2 * i + 1] << 8) << 16;
        float weight;
        memcpy(&weight, &bits, sizeof(weight));
        sum += weight * x[i];
    }
    for (unsigned l = 0; l < LANES; l++)
        sum += sums[l];
    return sum;
}

void replay_ffn_gate_up(struct replay_ffn *f, const struct replay_view *view, uint32_t thread, uint32_t threads)
{
    uint32_t role[ROLES], tokens = view->tokens < f->most ? view->tokens : f->most;
    find_roles(view->expert, role);
    const struct replay_tensor *gate = &view->expert->tensors[role[GATE]];
    uint64_t row_bytes = 2 * gate->columns;
    for (uint64_t r = gate->rows * thread / threads; r < gate->rows * (thread + 1) / threads; r++)
        for (uint32_t t = 0; t < tokens; t++) {
            float g = dot(view->data[role[GATE]] + r * row_bytes, f->x, gate->columns),
                  u = dot(view->data[role[UP]] + r * row_bytes, f->x, gate->columns);
            f->inner[t * f->inner_max + r] = g / (1 + expf(-g)) * u;
        }
}

uint64_t replay_ffn_down(struct replay_ffn *f, const struct replay_view *view, uint32_t thread, uint32_t threads)
{
    uint32_t role[ROLES], tokens = view->tokens < f->most ? view->tokens : f->most;
    uint64_t check = 0;
    find_roles(view->expert, role);
    const struct replay_tensor *down = &view->expert->tensors[role[DOWN]];
    for (uint64_t r = down->rows * thread / threads; r < down->rows * (thread + 1) / threads; r++)
        for (uint32_t t = 0; t < tokens; t++) {
            float y = dot(view->data[role[DOWN]] + r * 2 * down->columns, f->inner + t * f->inner_max, down->columns);
            uint32_t bits;
            memcpy(&bits, &y, sizeof(bits));
            check += bits;
        }
    return check;
}
