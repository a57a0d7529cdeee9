/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn.c - runs a layer's experts on a team of threads, each expert when it arrives. Threads take blocks of rows of the
 * experts that have arrived: first rows of gate and up, then, when all of these are done, rows of down. If there is no
 * block to take, one thread waits for the next expert and the rest wait for that thread. If it does not come soon, the
 * caller waits without the team: another mixture may need that, and its thread may hold the memory. The outputs are
 * added at the end, in the order of the mixture.
 */
#include "ffn.h"
#include "expertfs-private.h"
#include "expertfs-clock-private.h"
#include "team.h"

#include "request.h"
#include "sys.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TEAM_WAIT_MS 20          /* for an expert, with the team */
#define LOOK_MS 100              /* between two calls of efs_mixture.interrupted */
#define BLOCK_BYTES (512u << 10) /* of a matrix; large against the cost of taking a block, small for balance */

struct ffn {
    struct efs_ffn_source from;
    const struct efs_mixture *mixture;
    struct efs_client_request *request; /* NULL: plain experts */
    struct efs_error *err;
    struct efs_team *team;
    pthread_mutex_t lock; /* guards the fields below and the experts' phases, ready and finished */
    pthread_cond_t changed;
    _Atomic unsigned changes;            /* incremented at each broadcast of changed; efs_team_spin() polls it */
    bool fetching;                       /* a thread waits for the next expert */
    bool idle;                           /* all that have arrived are finished: threads leave the team */
    uint32_t left, arrived;              /* experts that are not finished; that were waited for */
    errint_t error;                      /* the first; threads then take no more blocks */
    const struct efs_ffn_expert *failed; /* the expert that it is of */
    struct efs_ffn_expert experts[];
};

/* ---- exponents of codecs without a kernel ---- */

int efs_ffn_exponents(void *user, size_t shard, const uint8_t **e)
{
    struct efs_ffn_exponents *x = user;
    const struct efs_shard_view view = efs_ffn_shard_view(&x->shards[shard], x->format);
    *e = x->e;
    return efs_shard_exponents(&view, x->e, x->scratch);
}

/* ---- one block ---- */

/* Resources of a thread for one block: scratch of the products, and two exponent decoders, because gate and up are
 * computed together. */
struct block_resources {
    void *scratch;
    uint8_t *rows; /* of a transposed expert: of gate, then of up; or of down */
    struct efs_ffn_exponents exponents[2];
};

/* Bytes of the rows of a block of a transposed expert. */
static size_t block_rows_bytes(const struct efs_ffn_expert *e, uint32_t hidden)
{
    const size_t up = 4ull * e->up_phase.block * hidden, down = 2ull * e->down_phase.block * e->inner;
    return e->layout & EFS_LAYOUT_TRANSPOSED ? (up > down ? up : down) : 0;
}

static errint_t block_resources_get(struct ffn *f, unsigned thread, const struct efs_ffn_expert *e,
                                    struct block_resources *res)
{
    uint32_t cols = e->inner > f->mixture->hidden ? e->inner : f->mixture->hidden;
    size_t products = (efs_matvec_scratch_bytes(cols, e->tokens) + 63) / 64 * 64;
    size_t shard = e->needs_exponents ? e->shard_elements : 0;
    size_t rows = block_rows_bytes(e, f->mixture->hidden);
    uint8_t *memory = efs_team_scratch(f->team, thread, products + rows + 2 * shard);
    *res = (struct block_resources){.scratch = memory, .rows = memory + products};
    if (!memory)
        return -ENOMEM;
    for (int i = 0; i < 2 && shard; i++) {
        res->exponents[i].e = memory + products + (size_t)i * shard;
        if (efs_codec_scratch_new((uint32_t)shard, &res->exponents[i].scratch) < 0)
            return -ENOMEM;
    }
    return 0;
}

static void block_resources_free(struct block_resources *res)
{
    for (int i = 0; i < 2; i++)
        efs_codec_scratch_free(res->exponents[i].scratch);
}

/* A copy of the matrix that decodes exponents to this thread's scratch. */
static struct efs_matrix ffn_matrix(const struct efs_matrix *w, const struct efs_coded_shard *coded,
                                    struct efs_ffn_exponents *x)
{
    struct efs_matrix m = *w;
    x->shards = coded;
    x->format = w->f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
    m.exponents = efs_ffn_exponents;
    m.user = x;
    return m;
}

/* Computes rows [begin, end) of h from the products: adds the biases, then clamped SwiGLU (if e->u) or ReLU. For
 * EFS_FFN_SWIGLU and EFS_FFN_FUSED the kernel computes h. */
static void gate_rows(struct efs_ffn_expert *e, uint32_t begin, uint32_t end)
{
    for (uint32_t t = 0; t < e->tokens; t++) {
        float *h = e->h + (size_t)t * e->inner, *u = e->u ? e->u + (size_t)t * e->inner : NULL;
        for (uint32_t i = begin; i < end; i++) {
            h[i] += e->bias[0] ? e->bias[0][i] : 0;
            if (u)
                u[i] += e->bias[1] ? e->bias[1][i] : 0;
            else
                h[i] = h[i] < 0 ? 0 : h[i];
        }
        if (u)
            efs_swiglu_clamped(h + begin, u + begin, end - begin);
    }
}

static errint_t run_up_transposed(struct efs_ffn_expert *e, struct block_resources *res, uint32_t begin, uint32_t end)
{
    const uint32_t rows = end - begin, turns = e->layout & EFS_LAYOUT_INTERLEAVED ? 2 : 1;
    const uint32_t up_first = turns == 2 ? 1 : e->inner;
    const struct efs_matrix gate = efs_ffn_transposed_rows(&e->gate, begin * turns, turns, rows, res->rows);
    const struct efs_matrix up = efs_ffn_transposed_rows(&e->gate, up_first + begin * turns, turns, rows,
                                                         res->rows + 2 * (size_t)rows * gate.cols);
    if (e->kind == EFS_FFN_FUSED)
        return efs_matvec_swiglu(&gate, &up, e->input, 0, rows, e->h + begin, e->inner, res->scratch);
    errint_t rc = efs_matvec(&gate, e->input, 0, rows, e->h + begin, e->inner, res->scratch);
    if (rc == 0)
        rc = efs_matvec(&up, e->input, 0, rows, e->u + begin, e->inner, res->scratch);
    if (rc == 0)
        gate_rows(e, begin, end);
    return rc;
}

static errint_t run_up(struct efs_ffn_expert *e, struct block_resources *res, uint32_t begin, uint32_t end)
{
    if (e->layout & EFS_LAYOUT_TRANSPOSED)
        return run_up_transposed(e, res, begin, end);
    struct efs_matrix gate = ffn_matrix(&e->gate, e->coded[0], &res->exponents[0]);
    const bool fused = e->kind == EFS_FFN_FUSED;
    struct efs_matrix up = ffn_matrix(fused ? &e->gate : &e->up, e->coded[fused ? 0 : 1], &res->exponents[1]);
    if (fused)
        return efs_matvec_swiglu_fused(&gate, &up, e->input, begin, end, e->h, e->inner, res->scratch);
    if (e->kind == EFS_FFN_SWIGLU)
        return efs_matvec_swiglu(&gate, &up, e->input, begin, end, e->h, e->inner, res->scratch);
    errint_t rc = efs_matvec(&gate, e->input, begin, end, e->h, e->inner, res->scratch);
    if (rc == 0 && e->u)
        rc = efs_matvec(&up, e->input, begin, end, e->u, e->inner, res->scratch);
    if (rc == 0)
        gate_rows(e, begin, end);
    return rc;
}

static errint_t run_down(struct ffn *f, struct efs_ffn_expert *e, struct block_resources *res, uint32_t begin,
                         uint32_t end)
{
    const uint32_t hidden = f->mixture->hidden;
    struct efs_matrix w = ffn_matrix(&e->down, e->coded[2], &res->exponents[0]);
    float *out = e->out + (size_t)e->first_token * hidden;
    const bool transposed = e->layout & EFS_LAYOUT_TRANSPOSED;
    if (transposed)
        w = efs_ffn_transposed_rows(&e->down, begin, 1, end - begin, res->rows);
    errint_t rc = efs_matvec(&w, e->middle, transposed ? 0 : begin, transposed ? end - begin : end,
                             transposed ? out + begin : out, hidden, res->scratch);
    for (uint32_t t = 0; t < e->tokens && rc == 0 && e->bias[2]; t++)
        for (uint32_t i = begin; i < end; i++)
            out[(size_t)t * hidden + i] += e->bias[2][i];
    return rc;
}

static errint_t run_block(struct ffn *f, struct efs_ffn_expert *e, bool down, uint32_t begin, uint32_t end,
                          unsigned thread)
{
    struct block_resources res;
    errint_t rc = block_resources_get(f, thread, e, &res);
    if (rc == 0)
        rc = down ? run_down(f, e, &res, begin, end) : run_up(e, &res, begin, end);
    block_resources_free(&res);
    return rc;
}

/* ---- progress of an expert; lock held unless stated ---- */

static struct efs_ffn_phase phase_of(uint32_t rows, uint32_t cols, unsigned threads)
{
    uint32_t block = BLOCK_BYTES / (2 * cols) + 1, share = (rows + threads - 1) / threads;
    return (struct efs_ffn_phase){.rows = rows, .block = block < share ? block : share};
}

/* The type of the kernels' input: of x if given, else of h, which is F32. */
static enum efs_input_type input_type(const struct efs_ffn_expert *e, enum efs_activation activation, bool given)
{
    switch (activation) {
    case EFS_ACTIVATION_F32:
        return e->gate.f16 ? EFS_INPUT_F32_BY_F16 : EFS_INPUT_F32;
    case EFS_ACTIVATION_BF16:
        return given ? EFS_INPUT_BF16_DOT : EFS_INPUT_F32_DOT;
    case EFS_ACTIVATION_F16:
        break;
    }
    return given ? EFS_INPUT_F16 : EFS_INPUT_F32_TO_F16;
}

/* Lock not held. Prepares x of the route's next tokens, at most EFS_TOKENS_MAX, and resets the phases. */
static errint_t ffn_prepare(struct ffn *f, struct efs_ffn_expert *e)
{
    const struct efs_mixture *m = f->mixture;
    size_t number = m->activation == EFS_ACTIVATION_F32 ? 4 : 2;
    uint32_t left = e->route->count - e->first_token;
    e->tokens = left < EFS_TOKENS_MAX ? left : EFS_TOKENS_MAX;
    const uint32_t *token = e->route->token + e->first_token;
    const void *x = (const uint8_t *)m->x + (size_t)token[0] * m->x_stride * number;
    size_t stride = m->x_stride;
    uint8_t *rows = NULL;
    if (e->tokens > 1) { /* the kernel needs contiguous rows */
        rows = efs_sys_malloc((size_t)e->tokens * m->hidden * number);
        for (uint32_t t = 0; rows && t < e->tokens; t++)
            memcpy(rows + (size_t)t * m->hidden * number,
                   (const uint8_t *)m->x + (size_t)token[t] * m->x_stride * number, m->hidden * number);
        x = rows;
        stride = m->hidden;
    }
    errint_t rc =
        x ? efs_input_prepare(input_type(e, m->activation, true), x, stride, m->hidden, e->tokens, e->input) : -ENOMEM;
    free(rows);
    unsigned threads = efs_team_threads(f->team);
    e->up_phase = phase_of(e->inner, 2 * m->hidden, threads);
    e->down_phase = phase_of(m->hidden, e->inner, threads);
    return rc;
}

static uint32_t most_tokens(const struct efs_ffn_expert *e)
{
    return e->route->count < EFS_TOKENS_MAX ? e->route->count : EFS_TOKENS_MAX;
}

static errint_t bind_tensors(struct ffn *f, struct efs_ffn_expert *e)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    errint_t rc = efs_client_tensors(f->request, e->index, &tensors, &count);
    e->layout = f->mixture->layout;
    if (rc == 0)
        rc = efs_ffn_matrices(e, tensors, count, f->mixture->hidden, f->err);
    if (rc == 0)
        rc = efs_ffn_check_act(f->mixture->hidden_act, e->kind, tensors[0].name, f->err);
    if (rc < 0)
        return rc;
    if (f->mixture->activation == (e->gate.f16 ? EFS_ACTIVATION_BF16 : EFS_ACTIVATION_F16))
        return efs_fail(f->err, -EOPNOTSUPP, "%s: a matrix of %s, activations of the other kind", tensors[0].name,
                        e->gate.f16 ? "F16" : "BF16");
    return 0;
}

static errint_t bind_plain(struct ffn *f, struct efs_ffn_expert *e)
{
    const struct efs_plain_expert *p = &f->from.plain[e->index];
    uint32_t hidden = f->mixture->hidden;
    if (!p->gate || !p->up || !p->down || p->inner == 0 || p->inner > EFS_COLS_MAX)
        return efs_fail(f->err, -EINVAL, "expert %u of the mixture has no matrices", e->index);
    e->inner = p->inner;
    errint_t rc = efs_ffn_check_act(f->mixture->hidden_act, EFS_FFN_SWIGLU, "a plain expert", f->err);
    if (rc < 0)
        return rc;
    if (f->mixture->activation == EFS_ACTIVATION_F16)
        return efs_fail(f->err, -EOPNOTSUPP, "plain experts are BF16, activations F16");
    e->gate = (struct efs_matrix){.rows = p->inner, .cols = hidden, .plain = p->gate};
    e->up = (struct efs_matrix){.rows = p->inner, .cols = hidden, .plain = p->up};
    e->down = (struct efs_matrix){.rows = hidden, .cols = p->inner, .plain = p->down};
    return 0;
}

/* Lock not held. Takes the matrices of an expert that arrived, allocates its buffers and prepares its first tokens. */
static errint_t ffn_expert_loaded(struct ffn *f, struct efs_ffn_expert *e)
{
    uint32_t hidden = f->mixture->hidden, tokens = most_tokens(e);
    errint_t rc = f->from.plain ? bind_plain(f, e) : bind_tensors(f, e);
    if (rc < 0)
        return rc;
    e->input = efs_sys_aligned_alloc(EFS_MATVEC_ALIGN, efs_input_bytes(hidden, tokens));
    e->middle = efs_sys_aligned_alloc(EFS_MATVEC_ALIGN, efs_input_bytes(e->inner, tokens));
    e->h = efs_sys_malloc((size_t)tokens * e->inner * sizeof(float));
    e->out = efs_sys_malloc((size_t)e->route->count * hidden * sizeof(float));
    if (e->kind == EFS_FFN_CLAMPED)
        e->u = efs_sys_malloc((size_t)tokens * e->inner * sizeof(float));
    bool room = e->input && e->middle && e->h && e->out && (e->u || e->kind != EFS_FFN_CLAMPED);
    return room ? ffn_prepare(f, e) : -ENOMEM;
}

static void ffn_broadcast(struct ffn *f)
{
    atomic_fetch_add(&f->changes, 1);
    pthread_cond_broadcast(&f->changed);
}

/* Waits until another thread changes something. Spins first, because another thread is usually about to finish a phase.
 * Releases the lock meanwhile. */
static void ffn_wait_change(struct ffn *f)
{
    unsigned seen = atomic_load(&f->changes);
    pthread_mutex_unlock(&f->lock);
    efs_team_spin(f->team, &f->changes, seen);
    pthread_mutex_lock(&f->lock);
    if (atomic_load(&f->changes) == seen)
        pthread_cond_wait(&f->changed, &f->lock);
}

static void ffn_failed(struct ffn *f, const struct efs_ffn_expert *e, errint_t error)
{
    if (f->error == 0) {
        f->error = error;
        f->failed = e;
    }
}

/* Ends a phase whose last block is done: prepares h, or the next tokens, or finishes the expert. Releases the lock
 * meanwhile. */
static void phase_done(struct ffn *f, struct efs_ffn_expert *e, bool down)
{
    errint_t rc = 0;
    e->ready = false; /* no thread takes a block of it meanwhile */
    pthread_mutex_unlock(&f->lock);
    if (!down) {
        rc = efs_input_prepare(input_type(e, f->mixture->activation, false), e->h, e->inner, e->inner, e->tokens,
                               e->middle);
    } else if (e->first_token + e->tokens < e->route->count) {
        e->first_token += e->tokens;
        rc = ffn_prepare(f, e);
    } else {
        rc = 1;
        /* The released memory may admit waiting experts, which takes time and other locks. */
        if (f->request)
            efs_client_drop(f->request, e->index);
    }
    pthread_mutex_lock(&f->lock);
    if (rc < 0)
        ffn_failed(f, e, rc);
    e->ready = true;
    if (rc == 1) {
        e->finished = true;
        f->left--;
    }
    ffn_broadcast(f);
}

/* Takes a block of the first expert in the order of the mixture that has arrived and has untaken rows. NULL: none. */
static struct efs_ffn_expert *ffn_pop_block(struct ffn *f, bool *down, uint32_t *begin, uint32_t *end)
{
    for (uint32_t i = 0; i < f->mixture->expert_count && f->error == 0; i++) {
        struct efs_ffn_expert *e = &f->experts[i];
        if (!e->ready || e->finished)
            continue;
        *down = e->up_phase.done == e->up_phase.rows;
        struct efs_ffn_phase *p = *down ? &e->down_phase : &e->up_phase;
        if (p->next == p->rows)
            continue;
        *begin = p->next;
        *end = p->rows - p->next < p->block ? p->rows : p->next + p->block;
        p->next = *end;
        return e;
    }
    return NULL;
}

/* Waits for the next expert and prepares it; sets idle if it did not come. Releases the lock meanwhile; fetching keeps
 * other threads out. */
static void ffn_wait_expert(struct ffn *f)
{
    uint32_t index = f->arrived;
    f->fetching = true;
    pthread_mutex_unlock(&f->lock);
    errint_t rc = 0;
    int got = f->request ? efs_client_wait_any(f->request, TEAM_WAIT_MS, &index, &rc) : 1;
    if (got == -ETIMEDOUT) {
        pthread_mutex_lock(&f->lock);
        f->fetching = false;
        f->idle = f->left + f->arrived == f->mixture->expert_count;
        if (f->idle)
            ffn_broadcast(f);
        return;
    }
    if (got < 1)
        rc = got < 0 ? got : -EINVAL; /* 0 cannot happen: each expert is waited for once */
    if (rc == 0)
        rc = ffn_expert_loaded(f, &f->experts[index]);
    pthread_mutex_lock(&f->lock);
    f->fetching = false;
    f->arrived++;
    if (rc < 0)
        ffn_failed(f, &f->experts[index], rc);
    else
        f->experts[index].ready = true;
    ffn_broadcast(f);
}

static void ffn_work(void *arg, unsigned thread)
{
    struct ffn *f = arg;
    pthread_mutex_lock(&f->lock);
    while (f->left && f->error == 0 && !f->idle) {
        bool down;
        uint32_t begin, end;
        struct efs_ffn_expert *e = ffn_pop_block(f, &down, &begin, &end);
        if (!e && !f->fetching && f->arrived < f->mixture->expert_count) {
            ffn_wait_expert(f);
            continue;
        }
        if (!e) {
            ffn_wait_change(f);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        if (thread == 0 && f->from.before_block)
            f->from.before_block(f->from.arg);
        uint64_t start = efs_now_ns();
        errint_t rc = run_block(f, e, down, begin, end, thread);
        uint64_t ns = efs_now_ns() - start;
        pthread_mutex_lock(&f->lock);
        e->busy_ns += ns;
        if (rc < 0) {
            ffn_failed(f, e, rc);
            break;
        }
        struct efs_ffn_phase *p = down ? &e->down_phase : &e->up_phase;
        p->done += end - begin;
        if (p->done == p->rows)
            phase_done(f, e, down);
    }
    ffn_broadcast(f);
    pthread_mutex_unlock(&f->lock);
}

/* ---- the mixture ---- */

void efs_ffn_sums_clear(const struct efs_mixture *m)
{
    for (uint32_t t = 0; t < m->tokens; t++)
        memset(m->y + t * m->y_stride, 0, m->hidden * sizeof(float));
}

void efs_ffn_sums_add(const struct efs_mixture *m, uint32_t expert, const float *vectors)
{
    const struct efs_route_to *route = &m->experts[expert];
    for (uint32_t t = 0; t < route->count; t++, vectors += m->hidden) {
        float *y = m->y + route->token[t] * m->y_stride, weight = route->weight[t];
        for (uint32_t c = 0; c < m->hidden; c++)
            y[c] += weight * vectors[c];
    }
}

static void write_results(const struct ffn *f)
{
    const struct efs_mixture *m = f->mixture;
    if (!f->from.rows)
        efs_ffn_sums_clear(m);
    for (uint32_t i = 0; i < m->expert_count; i++)
        if (f->from.rows)
            memcpy(f->from.rows[i], f->experts[i].out, (size_t)m->experts[i].count * m->hidden * sizeof(float));
        else
            efs_ffn_sums_add(m, i, f->experts[i].out);
}

static errint_t ffn_begin(struct ffn *f)
{
    const struct efs_mixture *m = f->mixture;
    for (uint32_t i = 0; i < m->expert_count; i++) {
        f->experts[i].route = &m->experts[i];
        f->experts[i].index = i;
    }
    if (f->from.plain)
        return 0;
    struct efs_need *needs = efs_sys_calloc(m->expert_count, sizeof(*needs));
    if (!needs)
        return efs_fail(f->err, -ENOMEM, "no memory for a request");
    for (uint32_t i = 0; i < m->expert_count; i++)
        needs[i] = (struct efs_need){m->experts[i].expert, m->experts[i].count};
    const enum efs_form form = m->layout & EFS_LAYOUT_TRANSPOSED ? EFS_FORM_FULL : m->form;
    errint_t rc = efs_client_begin(f->from.client, f->from.stack, f->from.layer, needs, m->expert_count,
                                   form | (f->from.counted ? EFS_FORM_COUNTED : 0), &f->request, f->err);
    free(needs);
    if (rc < 0)
        return rc;
    f->request->any_thread = true; /* threads of the team wait for it, while this one waits for them */
    return 0;
}

/* Waits for an expert without the team. */
static errint_t ffn_wait_alone(const struct ffn *f)
{
    const struct efs_mixture *m = f->mixture;
    errint_t rc;
    do
        rc = efs_client_wait_step(f->request, false, m->interrupted ? LOOK_MS : -1);
    while (rc == -EINTR && !m->interrupted(m->interrupted_arg));
    return rc;
}

static void ffn_end(struct ffn *f)
{
    for (uint32_t i = 0; i < f->mixture->expert_count; i++) {
        struct efs_ffn_expert *e = &f->experts[i];
        free(e->shards);
        free(e->input);
        free(e->middle);
        free(e->h);
        free(e->u);
        free(e->out);
        for (int role = 0; role < 3; role++)
            free(e->bias[role]);
    }
    efs_client_release(f->request);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* Reports the measured times to the caller, if from.ns is set. */
static void ffn_measured(const struct ffn *f)
{
    for (uint32_t i = 0; i < f->mixture->expert_count && f->from.ns; i++)
        f->from.ns[i] = f->experts[i].busy_ns / efs_team_threads(f->team);
}

errint_t efs_ffn_run(const struct efs_ffn_source *from, struct efs_team *team, const struct efs_mixture *mixture,
                     struct efs_error *err)
{
    struct ffn *f = efs_sys_calloc(1, sizeof(*f) + mixture->expert_count * sizeof(f->experts[0]));
    if (!f)
        return efs_fail(err, -ENOMEM, "no memory for a mixture");
    f->from = *from;
    f->mixture = mixture;
    f->team = team;
    f->err = err;
    f->left = mixture->expert_count;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    errint_t rc = ffn_begin(f);
    while (rc == 0 && f->left && f->error == 0) {
        rc = f->request ? ffn_wait_alone(f) : 0;
        f->idle = false;
        if (rc == 0)
            efs_team_run(team, ffn_work, f);
    }
    if (f->error < 0 && !err->text[0])
        efs_fail(err, f->error, "layer %u, expert %u could not be run: %s", from->layer, f->failed->route->expert,
                 efs_ffn_reason(f->error));
    rc = rc < 0 ? rc : f->error;
    if (rc == 0) {
        write_results(f);
        ffn_measured(f);
    }
    ffn_end(f);
    return rc;
}
