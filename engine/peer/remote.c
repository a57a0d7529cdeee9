/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c - the experts of a layer that peers compute. Each pair of expert and token has one vector of the result,
 * which this process or a peer computes. The inputs are sent first, then the caller computes the experts of this
 * machine, then the answers are received. Experts that no peer has answered are left to the caller.
 */
#include "peers.h"

#include "deadline.h"
#include "device_ops.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define VECTORS_BYTES (8u << 20) /* most of the vectors of a call; a longer prompt uses each expert anyway */
#define LATE 4                   /* times the expected time: then the peer is given up */
#define PROBE_NS 60000000000u    /* after this time reading, or a peer without a request, is measured again */

/* ---- which experts are where ---- */

static errint_t remote_new(struct efs_remote *r)
{
    const uint32_t count = r->expert_count;
    r->where = efs_sys_malloc(count * sizeof(*r->where));
    r->vectors = efs_sys_calloc(count, sizeof(*r->vectors));
    r->choices = efs_sys_calloc(count, sizeof(*r->choices));
    r->missing_at = efs_sys_malloc(count * sizeof(*r->missing_at));
    if (!r->where || !r->vectors || !r->choices || !r->missing_at)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_route_to *route = &r->experts[i];
        const struct efs_expert_key key = efs_expert_key(r->head.stack, r->head.layer, route->expert);
        r->where[i] = EFS_CHOOSE_HERE;
        r->pairs += route->count;
        if (!r->looked || strchr("FC", efs_client_state(r->client, &key)))
            continue;
        r->missing_at[r->missing] = i;
        r->choices[r->missing++] = (struct efs_choose_expert){.vectors = route->count};
    }
    return 0;
}

void efs_remote_free(struct efs_remote *r)
{
    for (uint32_t p = 0; p < r->peers->count; p++)
        efs_peer_job_free(r->job[p]);
    free(r->where);
    free(r->vectors);
    free(r->choices);
    free(r->missing_at);
}

/* Whether a peer's memory may have an expert: it had at its last answer about the layer, or that was long ago. */
static bool may_hold(struct efs_peer *peer, const struct efs_remote *r, uint32_t expert, uint64_t now)
{
    const struct efs_peer_layer *layer = efs_peer_layer(peer, r->head.stack, r->head.layer, false);
    return !layer || now - layer->known_ns > PROBE_NS ||
           (expert < layer->experts && layer->held[expert / 8] >> expert % 8 & 1);
}

/* Chooses, and takes the peers that are used. Returns the number of experts that they compute. */
static uint32_t choose(struct efs_remote *r)
{
    struct efs_peers *peers = r->peers;
    struct efs_choose_peer measured[EFS_PEERS_MAX];
    pthread_mutex_lock(&peers->lock);
    const uint64_t now = efs_now_ns();
    const uint32_t first = now - peers->read_ns > PROBE_NS; /* that one is read, which measures it */
    for (uint32_t p = 0; p < peers->count; p++) {
        struct efs_peer *peer = &peers->peer[p];
        if (now - peer->used_ns > PROBE_NS)
            peer->measured = (struct efs_choose_peer){.ready = peer->measured.ready};
        measured[p] = peer->measured;
        measured[p].ready =
            peer->measured.ready && !peer->taken && (r->head.activation != EFS_ACTIVATION_BF16 || peer->same_order);
        for (uint32_t e = first; e < r->missing; e++)
            if (measured[p].ready && may_hold(peer, r, r->experts[r->missing_at[e]].expert, now))
                r->choices[e].holders |= 1u << p;
    }
    const uint32_t chosen = efs_choose(measured, peers->count, peers->read_s * r->part, r->choices, r->missing);
    for (uint32_t e = 0; e < r->missing; e++) {
        const int p = r->choices[e].peer;
        r->where[r->missing_at[e]] = p;
        if (p == EFS_CHOOSE_HERE)
            continue;
        peers->peer[p].taken = true;
        r->vectors_of[p] += r->choices[e].vectors;
        r->experts_of[p]++;
    }
    pthread_mutex_unlock(&peers->lock);
    return chosen;
}

/* ---- requests ---- */

/* The body of a request for a peer's experts, with the tokens of x that they need alone. NULL: no memory, too large. */
static void *make_request(const struct efs_remote *r, int p, size_t *bytes)
{
    struct efs_wire_request head = r->head;
    const size_t number = efs_wire_number_bytes(&head), row = head.hidden * number;
    uint32_t *renamed = efs_sys_calloc(r->tokens, sizeof(*renamed)); /* 1 + its number in the request */
    head.id = r->job[p]->id;
    head.pairs = r->vectors_of[p];
    for (uint32_t i = 0; renamed && i < r->expert_count; i++) {
        head.experts += r->where[i] == p;
        for (uint32_t t = 0; r->where[i] == p && t < r->experts[i].count; t++)
            renamed[r->experts[i].token[t]] = 1;
    }
    for (uint32_t t = 0; renamed && t < r->tokens; t++)
        renamed[t] = renamed[t] ? ++head.tokens : 0;
    *bytes = efs_wire_request_bytes(&head);
    uint8_t *body = renamed && *bytes ? efs_sys_malloc(*bytes) : NULL;
    if (body) {
        struct efs_wire_expert *expert = (void *)(body + sizeof(head));
        uint32_t *token = (uint32_t *)(expert + head.experts);
        uint8_t *x = (uint8_t *)(token + head.pairs);
        memcpy(body, &head, sizeof(head));
        for (uint32_t i = 0; i < r->expert_count; i++) {
            if (r->where[i] != p)
                continue;
            *expert++ = (struct efs_wire_expert){r->experts[i].expert, r->experts[i].count};
            for (uint32_t t = 0; t < r->experts[i].count; t++)
                *token++ = renamed[r->experts[i].token[t]] - 1;
        }
        for (uint32_t t = 0; t < r->tokens; t++)
            if (renamed[t])
                memcpy(x + (renamed[t] - 1) * row, (const uint8_t *)r->x + t * r->x_stride * number, row);
    }
    free(renamed);
    return body;
}

static void send_all(struct efs_remote *r)
{
    for (int p = 0; p < (int)r->peers->count; p++) {
        struct efs_peer *peer = &r->peers->peer[p];
        struct efs_peer_job *job = r->vectors_of[p] ? efs_sys_calloc(1, sizeof(*job)) : NULL;
        if (!(r->job[p] = job))
            continue;
        pthread_mutex_lock(&r->peers->lock);
        const double expected = efs_choose_seconds(&peer->measured, r->vectors_of[p]), read_s = r->peers->read_s;
        const double late_ns = 1e9 * LATE * (expected > 0 ? expected : read_s * r->missing);
        const double leave_ns = 1e9 * efs_choose_patience(expected, read_s * r->part, r->experts_of[p]);
        *job = (struct efs_peer_job){
            .id = ++peer->requests,
            .pairs = r->vectors_of[p],
            .rows = r->head.rows,
            .rc = -ENOMEM,
            .posted_ns = efs_now_ns(),
            .until = efs_from_now((int64_t)(late_ns > (double)r->peers->late_ns ? late_ns : (double)r->peers->late_ns)),
            .leave = efs_from_now((int64_t)leave_ns)};
        pthread_mutex_unlock(&r->peers->lock);
        job->body = make_request(r, p, &job->bytes);
        pthread_mutex_lock(&r->peers->lock);
        if (job->body && peer->measured.ready)
            efs_peer_post(peer, job);
        pthread_mutex_unlock(&r->peers->lock);
    }
}

/* Whether anything is to be read, and the call fits into messages. */
static bool may_send(const struct efs_remote *r)
{
    return r->missing && r->tokens <= EFS_WIRE_TOKENS && r->expert_count <= EFS_WIRE_EXPERTS &&
           (uint64_t)r->pairs * r->head.rows * sizeof(float) <= VECTORS_BYTES;
}

/* Whether a peer is connected. If not, looking for experts in memory would cost time, and gain nothing. */
static bool is_connected(struct efs_peers *peers)
{
    bool ready = false;
    pthread_mutex_lock(&peers->lock);
    for (uint32_t p = 0; p < peers->count; p++)
        ready = ready || peers->peer[p].measured.ready;
    pthread_mutex_unlock(&peers->lock);
    return ready;
}

errint_t efs_remote_send(struct efs_remote *r, uint32_t *sent)
{
    r->looked = is_connected(r->peers);
    errint_t rc = remote_new(r);
    if (rc == 0 && r->looked && !r->counted) {
        rc = efs_client_count(r->client, r->head.stack, r->head.layer, r->experts, r->expert_count);
        r->counted = rc == 0;
    }
    *sent = rc == 0 && may_send(r) ? choose(r) : 0;
    if (*sent)
        send_all(r);
    r->begun_ns = efs_now_ns();
    return rc;
}

/* ---- what is computed here ---- */

void efs_remote_measured(struct efs_remote *r)
{
    struct efs_peers *peers = r->peers;
    const uint64_t now = efs_now_ns();
    const double seconds = (double)(now - r->begun_ns) / 1e9;
    uint32_t pairs = r->pairs, missing = r->missing;
    for (uint32_t p = 0; p < peers->count; p++) {
        pairs -= r->vectors_of[p];
        missing -= r->experts_of[p];
    }
    pthread_mutex_lock(&peers->lock);
    peers->stats.local += missing == r->missing ? pairs : 0; /* if some were sent, efs_remote_receive() counts */
    if (r->looked && missing) {
        const double read_s = (seconds - peers->vector_s * pairs) / missing;
        if (now - peers->read_ns > PROBE_NS && read_s > 0)
            peers->read_s = read_s;
        else if (read_s > 0)
            efs_choose_average(&peers->read_s, read_s);
        peers->read_ns = now;
    } else if (r->looked && pairs) {
        efs_choose_average(&peers->vector_s, seconds / pairs);
    }
    pthread_mutex_unlock(&peers->lock);
}

/* ---- answers ---- */

/* Notes where an answer has the vectors of its experts. */
static void take_answer(struct efs_remote *r, int p)
{
    const float *vectors = r->job[p]->vectors;
    for (uint32_t i = 0; r->job[p]->rc == 0 && i < r->expert_count; i++)
        if (r->where[i] == p) {
            r->vectors[i] = vectors;
            vectors += (size_t)r->experts[i].count * r->head.rows;
        }
}

/* Notes what a peer holds, nothing after an error, and how long it took. With lock. */
static void learn(struct efs_remote *r, int p)
{
    struct efs_peer *peer = &r->peers->peer[p];
    const struct efs_peer_job *job = r->job[p];
    struct efs_peer_layer *layer = efs_peer_layer(peer, r->head.stack, r->head.layer, true);
    if (layer) {
        layer->experts = job->rc == 0 || job->rc == -ENODATA ? job->layer_experts : 0;
        layer->known_ns = job->answered_ns;
        if (layer->experts)
            memcpy(layer->held, job->held, ((size_t)layer->experts + 7) / 8);
    }
    if (job->rc == 0)
        efs_peer_measured(peer, job);
}

/* Ends a request. Returns the number of vectors that were received. With lock. */
static uint32_t receive(struct efs_remote *r, int p)
{
    struct efs_peer *peer = &r->peers->peer[p];
    struct efs_peer_job *job = r->job[p];
    if (job && !efs_peer_wait(peer, job)) {
        r->peers->stats.failed++;
        r->job[p] = NULL;
        return 0;
    }
    peer->taken = false;
    if (job && (job->rc == 0 || job->refused))
        learn(r, p);
    r->peers->stats.failed += !job || (job->rc < 0 && job->rc != -ENODATA);
    return job && job->rc == 0 ? r->vectors_of[p] : 0;
}

void efs_remote_receive(struct efs_remote *r)
{
    uint32_t remote = 0, sent = 0;
    for (int p = 0; p < (int)r->peers->count; p++) {
        if (r->vectors_of[p] == 0)
            continue;
        sent += r->vectors_of[p];
        pthread_mutex_lock(&r->peers->lock);
        remote += receive(r, p);
        pthread_mutex_unlock(&r->peers->lock);
        if (r->job[p])
            take_answer(r, p);
    }
    if (!sent)
        return;
    pthread_mutex_lock(&r->peers->lock);
    r->peers->stats.remote += remote;
    r->peers->stats.local += r->pairs - remote;
    pthread_mutex_unlock(&r->peers->lock);
}
