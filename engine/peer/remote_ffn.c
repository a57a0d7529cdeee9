/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_ffn.c - a mixture of which peers compute some experts.
 *
 * Each pair of expert and token has one row of the result, which this process or a peer computes. The rows are added in
 * the order of the experts: the sums have the bits of efs_ffn_run(). The inputs are sent first, then the experts of
 * this machine run, then the answers are received. Experts that no peer has answered are run here.
 */
#include "peers.h"

#include "deadline.h"
#include "device_ops.h"
#include "ffn.h"
#include "sys.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_BYTES (8u << 20)   /* most of the vectors of a mixture; a longer prompt uses each expert anyway */
#define LATE 4                  /* times the expected time: then the peer is given up */
#define LATE_LEAST_NS 250000000 /* but not before: a busy machine is no dead one */
#define PROBE_S 60              /* a peer without a request for this time is measured again */

struct remote {
    struct efs_peers *peers;
    const struct efs_ffn_source *from;
    struct efs_team *team;
    const struct efs_mixture *m;
    struct efs_error *err;
    uint32_t pairs, missing;
    uint32_t *first;                    /* [experts]: row of its first token */
    int *where;                         /* [experts]: number of a peer, or EFS_CHOOSE_HERE */
    struct efs_choose_expert *choices;  /* [missing] */
    uint32_t *missing_at;               /* [missing]: number in the mixture */
    float *vectors;                     /* [pairs][hidden] */
    uint32_t vectors_of[EFS_PEERS_MAX]; /* 0: the peer is not used */
    struct efs_peer_job job[EFS_PEERS_MAX];
};

/* ---- which experts are where ---- */

static errint_t remote_new(struct remote *r)
{
    const uint32_t count = r->m->expert_count;
    r->first = efs_sys_malloc(count * sizeof(*r->first));
    r->where = efs_sys_malloc(count * sizeof(*r->where));
    r->choices = efs_sys_calloc(count, sizeof(*r->choices));
    r->missing_at = efs_sys_malloc(count * sizeof(*r->missing_at));
    if (!r->first || !r->where || !r->choices || !r->missing_at)
        return efs_fail(r->err, -ENOMEM, "no memory for a mixture");
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_route_to *route = &r->m->experts[i];
        const struct efs_expert_key key = efs_expert_key(r->from->stack, r->from->layer, route->expert);
        r->first[i] = r->pairs;
        r->where[i] = EFS_CHOOSE_HERE;
        r->pairs += route->count;
        if (strchr("FC", efs_client_state(r->from->client, &key)))
            continue;
        r->missing_at[r->missing] = i;
        r->choices[r->missing++] = (struct efs_choose_expert){.vectors = route->count};
    }
    return 0;
}

static void remote_free(struct remote *r)
{
    free(r->first);
    free(r->where);
    free(r->choices);
    free(r->missing_at);
    free(r->vectors);
}

/* Whether a peer's memory may have an expert: it had at its last answer about the layer, or that was long ago. */
static bool may_hold(struct efs_peer *peer, const struct remote *r, uint32_t expert, uint64_t now)
{
    const struct efs_peer_layer *layer = efs_peer_layer(peer, r->from->stack, r->from->layer, false);
    return !layer || now - layer->known_ns > PROBE_S * UINT64_C(1000000000) ||
           (expert < layer->experts && layer->held[expert / 8] >> expert % 8 & 1);
}

/* Chooses, and takes the peers that are used. Returns the number of experts that they compute. */
static uint32_t choose(struct remote *r)
{
    struct efs_peers *peers = r->peers;
    struct efs_choose_peer measured[EFS_PEERS_MAX];
    pthread_mutex_lock(&peers->lock);
    const uint64_t now = efs_now_ns();
    for (uint32_t p = 0; p < peers->count; p++) {
        struct efs_peer *peer = &peers->peer[p];
        if (now - peer->used_ns > PROBE_S * UINT64_C(1000000000))
            peer->measured = (struct efs_choose_peer){.ready = peer->measured.ready};
        measured[p] = peer->measured;
        measured[p].ready =
            peer->measured.ready && !peer->taken && (r->m->activation != EFS_ACTIVATION_BF16 || peer->same_order);
        for (uint32_t e = 0; e < r->missing; e++)
            if (measured[p].ready && may_hold(peer, r, r->m->experts[r->missing_at[e]].expert, now))
                r->choices[e].holders |= 1u << p;
    }
    const uint32_t chosen = efs_choose(measured, peers->count, peers->read_s, r->choices, r->missing);
    for (uint32_t e = 0; e < r->missing; e++) {
        const int p = r->choices[e].peer;
        r->where[r->missing_at[e]] = p;
        if (p == EFS_CHOOSE_HERE)
            continue;
        peers->peer[p].taken = true;
        r->vectors_of[p] += r->choices[e].vectors;
    }
    pthread_mutex_unlock(&peers->lock);
    return chosen;
}

/* ---- here ---- */

/* Runs the experts that are at `where` in this process. */
static errint_t run_here(struct remote *r, int where)
{
    const struct efs_mixture *m = r->m;
    struct efs_route_to *routes = efs_sys_calloc(m->expert_count, sizeof(*routes));
    float **rows = efs_sys_calloc(m->expert_count, sizeof(*rows));
    uint32_t count = 0;
    for (uint32_t i = 0; routes && rows && i < m->expert_count; i++) {
        if (r->where[i] != where)
            continue;
        routes[count] = m->experts[i];
        rows[count++] = r->vectors + (size_t)r->first[i] * m->hidden;
    }
    struct efs_mixture here = *m;
    here.experts = routes;
    here.expert_count = count;
    const struct efs_ffn_source from = {
        .client = r->from->client, .stack = r->from->stack, .layer = r->from->layer, .rows = rows};
    errint_t rc = routes && rows ? 0 : efs_fail(r->err, -ENOMEM, "no memory for a mixture");
    if (rc == 0 && count)
        rc = efs_ffn_run(&from, r->team, &here, r->err);
    free(routes);
    free(rows);
    return rc;
}

/* ---- there ---- */

/* The body of a request for a peer's experts, with the tokens of x that they need alone. NULL: no memory, too large. */
static void *make_request(const struct remote *r, int p, size_t *bytes)
{
    const struct efs_mixture *m = r->m;
    const size_t number = efs_wire_number_bytes(m->activation), row = m->hidden * number;
    struct efs_wire_request head = {.id = r->job[p].id,
                                    .layer = r->from->layer,
                                    .hidden = m->hidden,
                                    .activation = m->activation,
                                    .layout = m->layout,
                                    .pairs = r->vectors_of[p]};
    uint32_t *renamed = efs_sys_calloc(m->tokens, sizeof(*renamed)); /* 1 + its number in the request */
    for (uint32_t i = 0; renamed && i < m->expert_count; i++) {
        head.experts += r->where[i] == p;
        for (uint32_t t = 0; r->where[i] == p && t < m->experts[i].count; t++)
            renamed[m->experts[i].token[t]] = 1;
    }
    for (uint32_t t = 0; renamed && t < m->tokens; t++)
        renamed[t] = renamed[t] ? ++head.tokens : 0;
    if (m->hidden_act)
        memcpy(head.hidden_act, m->hidden_act, strlen(m->hidden_act));
    memcpy(head.stack, r->from->stack, strnlen(r->from->stack, sizeof(head.stack) - 1));
    *bytes = efs_wire_request_bytes(head.experts, head.tokens, m->hidden, head.pairs, m->activation);
    uint8_t *body = renamed && *bytes ? efs_sys_malloc(*bytes) : NULL;
    if (body) {
        struct efs_wire_expert *expert = (void *)(body + sizeof(head));
        uint32_t *token = (uint32_t *)(expert + head.experts);
        uint8_t *x = (uint8_t *)(token + head.pairs);
        memcpy(body, &head, sizeof(head));
        for (uint32_t i = 0; i < m->expert_count; i++) {
            if (r->where[i] != p)
                continue;
            *expert++ = (struct efs_wire_expert){m->experts[i].expert, m->experts[i].count};
            for (uint32_t t = 0; t < m->experts[i].count; t++)
                *token++ = renamed[m->experts[i].token[t]] - 1;
        }
        for (uint32_t t = 0; t < m->tokens; t++)
            if (renamed[t])
                memcpy(x + (renamed[t] - 1) * row, (const uint8_t *)m->x + t * m->x_stride * number, row);
    }
    free(renamed);
    return body;
}

static void send_all(struct remote *r)
{
    for (int p = 0; p < (int)r->peers->count; p++) {
        struct efs_peer *peer = &r->peers->peer[p];
        struct efs_peer_job *job = &r->job[p];
        if (r->vectors_of[p] == 0)
            continue;
        pthread_mutex_lock(&r->peers->lock);
        const double expected = efs_choose_seconds(&peer->measured, r->vectors_of[p]);
        const double late = LATE * (expected > 0 ? expected : r->peers->read_s * r->missing);
        *job = (struct efs_peer_job){
            .id = ++peer->requests,
            .pairs = r->vectors_of[p],
            .hidden = r->m->hidden,
            .rc = -ENOMEM,
            .posted_ns = efs_now_ns(),
            .until = efs_from_now(late * 1e9 > LATE_LEAST_NS ? (int64_t)(late * 1e9) : LATE_LEAST_NS)};
        pthread_mutex_unlock(&r->peers->lock);
        job->body = make_request(r, p, &job->bytes);
        pthread_mutex_lock(&r->peers->lock);
        if (job->body && peer->measured.ready)
            efs_peer_post(peer, job);
        else
            free(job->body);
        pthread_mutex_unlock(&r->peers->lock);
    }
}

/* Takes an answer's vectors. Experts without an answer are to be run here. */
static void take_answer(struct remote *r, int p)
{
    const struct efs_peer_job *job = &r->job[p];
    const size_t hidden = r->m->hidden;
    const float *vectors = job->vectors;
    for (uint32_t i = 0; i < r->m->expert_count; i++) {
        const size_t count = r->m->experts[i].count * hidden;
        if (r->where[i] != p)
            continue;
        if (job->rc < 0) {
            r->where[i] = (int)EFS_PEERS_MAX;
            continue;
        }
        memcpy(r->vectors + r->first[i] * hidden, vectors, count * sizeof(float));
        vectors += count;
    }
}

/* Notes what a peer holds, nothing if it has refused, and how long it took. With lock. */
static void learn(struct remote *r, int p)
{
    struct efs_peer *peer = &r->peers->peer[p];
    const struct efs_peer_job *job = &r->job[p];
    struct efs_peer_layer *layer = efs_peer_layer(peer, r->from->stack, r->from->layer, true);
    if (layer) {
        layer->experts = job->rc == 0 ? job->layer_experts : 0;
        layer->known_ns = job->answered_ns;
        if (job->rc == 0)
            memcpy(layer->held, job->held, ((size_t)layer->experts + 7) / 8);
    }
    if (job->rc < 0)
        return;
    peer->used_ns = job->answered_ns;
    efs_choose_measured(&peer->measured, (double)(job->answered_ns - job->posted_ns) / 1e9, r->vectors_of[p]);
    r->peers->stats.remote += r->vectors_of[p];
}

static void receive_all(struct remote *r)
{
    for (int p = 0; p < (int)r->peers->count; p++) {
        struct efs_peer *peer = &r->peers->peer[p];
        struct efs_peer_job *job = &r->job[p];
        if (r->vectors_of[p] == 0)
            continue;
        pthread_mutex_lock(&r->peers->lock);
        efs_peer_wait(peer, job);
        if (job->rc == 0 || job->refused)
            learn(r, p);
        r->peers->stats.failed += job->rc < 0;
        peer->taken = false;
        pthread_mutex_unlock(&r->peers->lock);
        take_answer(r, p);
        free(job->answer);
    }
}

/* ---- the mixture ---- */

/* All here: measures what reading costs, or a vector. */
static errint_t run_all(struct remote *r)
{
    const uint64_t start = efs_now_ns();
    errint_t rc = efs_ffn_run(r->from, r->team, r->m, r->err);
    const double seconds = (double)(efs_now_ns() - start) / 1e9;
    struct efs_peers *peers = r->peers;
    pthread_mutex_lock(&peers->lock);
    const double read_s = r->missing ? (seconds - peers->vector_s * r->pairs) / r->missing : 0;
    if (rc == 0 && r->missing == 0)
        efs_choose_average(&peers->vector_s, seconds / r->pairs);
    else if (rc == 0 && read_s > 0)
        efs_choose_average(&peers->read_s, read_s);
    peers->stats.local += rc == 0 ? r->pairs : 0;
    pthread_mutex_unlock(&peers->lock);
    return rc;
}

static errint_t run_with_peers(struct remote *r)
{
    r->vectors = efs_sys_calloc((size_t)r->pairs * r->m->hidden, sizeof(float));
    if (!r->vectors)
        return efs_fail(r->err, -ENOMEM, "no memory for a mixture");
    send_all(r);
    errint_t rc = run_here(r, EFS_CHOOSE_HERE);
    receive_all(r);
    uint32_t here = 0;
    bool failed = false;
    for (uint32_t i = 0; i < r->m->expert_count; i++) {
        failed = failed || r->where[i] == (int)EFS_PEERS_MAX;
        here += r->where[i] < 0 || r->where[i] == (int)EFS_PEERS_MAX ? r->m->experts[i].count : 0;
    }
    if (rc == 0 && failed)
        rc = run_here(r, EFS_PEERS_MAX);
    if (rc == 0)
        efs_ffn_sums_clear(r->m);
    for (uint32_t i = 0; rc == 0 && i < r->m->expert_count; i++)
        efs_ffn_sums_add(r->m, i, r->vectors + (size_t)r->first[i] * r->m->hidden);
    pthread_mutex_lock(&r->peers->lock);
    r->peers->stats.local += here;
    pthread_mutex_unlock(&r->peers->lock);
    return rc;
}

/* Whether anything is to be read, and the mixture fits into messages. */
static bool may_send(const struct remote *r)
{
    return r->missing && r->m->tokens <= EFS_WIRE_TOKENS && r->m->expert_count <= EFS_WIRE_EXPERTS &&
           (uint64_t)r->pairs * r->m->hidden * sizeof(float) <= ROWS_BYTES &&
           (!r->m->hidden_act || strlen(r->m->hidden_act) < EFS_WIRE_ACT_BYTES);
}

errint_t efs_peers_run(struct efs_peers *peers, const struct efs_ffn_source *from, struct efs_team *team,
                       const struct efs_mixture *mixture, struct efs_error *err)
{
    struct remote r = {.peers = peers, .from = from, .team = team, .m = mixture, .err = err};
    errint_t rc = remote_new(&r);
    if (rc == 0)
        rc = may_send(&r) && choose(&r) > 0 ? run_with_peers(&r) : run_all(&r);
    remote_free(&r);
    return rc;
}
