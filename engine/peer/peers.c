/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c - see peers.h: the thread of a peer has its connection, and at most one request in flight. */
#include "peers.h"

#include "deadline.h"
#include "peer_address.h"
#include "sys.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_MS 2000
#define RETRY_S 60
#define LAYERS_MAX 4096u

/* ---- connections ---- */

static errint_t greet(const struct efs_peers *peers, struct efs_tls *tls, const struct timespec *until,
                      bool *same_order)
{
    struct {
        struct efs_wire_head head;
        struct efs_wire_hello hello;
    } sent = {{EFS_WIRE_HELLO, sizeof(sent.hello)}, peers->hello}, got;
    errint_t rc = efs_tls_send(tls, &sent, sizeof(sent), until);
    if (rc == 0)
        rc = efs_tls_receive(tls, &got, sizeof(got), until);
    if (rc == 0 && (got.head.kind != EFS_WIRE_WELCOME || got.head.bytes != sizeof(got.hello) ||
                    got.hello.version != EFS_WIRE_VERSION))
        rc = -EBADMSG;
    if (rc == 0 && got.hello.store != peers->hello.store)
        rc = -ESTALE;
    *same_order = rc == 0 && memcmp(got.hello.order, peers->hello.order, sizeof(got.hello.order)) == 0;
    return rc;
}

static errint_t peer_connect(struct efs_peer *peer)
{
    struct efs_peers *peers = peer->peers;
    struct efs_error ignored;
    const struct timespec until = efs_from_now(CONNECT_MS * INT64_C(1000000));
    bool same_order = false;
    int fd;
    errint_t rc = efs_peer_connect(peer->address, &until, &fd, &ignored);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&peers->lock);
    peer->fd = fd; /* the end shuts it down */
    pthread_mutex_unlock(&peers->lock);
    rc = efs_tls_new(fd, false, &peers->key, &until, &peer->tls, &ignored);
    if (rc == 0)
        rc = greet(peers, peer->tls, &until, &same_order);
    peer->same_order = same_order;
    return rc;
}

/* ---- a request ---- */

static errint_t peer_send(struct efs_peer *peer, const struct efs_peer_job *job)
{
    const struct efs_wire_head head = {EFS_WIRE_REQUEST, (uint32_t)job->bytes};
    errint_t rc = efs_tls_send(peer->tls, &head, sizeof(head), &job->until);
    return rc < 0 ? rc : efs_tls_send(peer->tls, job->body, job->bytes, &job->until);
}

static errint_t peer_receive(struct efs_peer *peer, struct efs_peer_job *job)
{
    struct efs_wire_head head;
    errint_t rc = efs_tls_receive(peer->tls, &head, sizeof(head), &job->until);
    if (rc == 0 &&
        (head.kind != EFS_WIRE_ANSWER || head.bytes > efs_wire_answer_bytes(EFS_WIRE_LAYER, job->pairs, job->rows)))
        rc = -EBADMSG;
    if (rc == 0 && !(job->answer = efs_sys_malloc(head.bytes ? head.bytes : 1)))
        rc = -ENOMEM;
    if (rc == 0)
        rc = efs_tls_receive(peer->tls, job->answer, head.bytes, &job->until);
    if (rc < 0)
        return rc;
    rc = efs_wire_take_answer(job->answer, head.bytes, job->id, job->pairs, job->rows, &job->held, &job->layer_experts,
                              &job->vectors);
    job->refused = rc < 0 && rc != -EBADMSG;
    return rc;
}

void efs_peer_post(struct efs_peer *peer, struct efs_peer_job *job)
{
    peer->job = job;
    pthread_cond_signal(&peer->changed);
}

bool efs_peer_wait(struct efs_peer *peer, struct efs_peer_job *job)
{
    while (peer->job == job && !job->left)
        job->left =
            efs_cond_wait_until(&peer->peers->answered, &peer->peers->lock, &job->leave) < 0 && peer->job == job;
    return peer->job != job;
}

void efs_peer_measured(struct efs_peer *peer, const struct efs_peer_job *job)
{
    peer->used_ns = job->answered_ns;
    efs_choose_measured(&peer->measured, (double)(job->answered_ns - job->posted_ns) / 1e9, job->pairs);
}

void efs_peer_job_free(struct efs_peer_job *job)
{
    if (!job)
        return;
    free(job->body);
    free(job->answer);
    free(job);
}

/* ---- the thread ---- */

/* With lock. */
static void peer_disconnect(struct efs_peer *peer)
{
    efs_tls_free(peer->tls);
    if (peer->fd >= 0)
        close(peer->fd);
    peer->tls = NULL;
    peer->fd = -1;
    peer->measured = (struct efs_choose_peer){.ready = false};
    peer->retry_ns = efs_now_ns() + RETRY_S * UINT64_C(1000000000);
}

/* With lock, which is released meanwhile. */
static void peer_run_job(struct efs_peer *peer)
{
    struct efs_peers *peers = peer->peers;
    struct efs_peer_job *job = peer->job;
    pthread_mutex_unlock(&peers->lock);
    job->rc = peer_send(peer, job);
    if (job->rc == 0)
        job->rc = peer_receive(peer, job);
    job->answered_ns = efs_now_ns();
    pthread_mutex_lock(&peers->lock);
    if (job->rc < 0 && !job->refused)
        peer_disconnect(peer);
    peer->job = NULL;
    pthread_cond_broadcast(&peers->answered);
    if (!job->left)
        return;
    if (job->rc == 0)
        efs_peer_measured(peer, job);
    peer->taken = false;
    efs_peer_job_free(job);
}

void *efs_peer_thread(void *arg)
{
    struct efs_peer *peer = arg;
    struct efs_peers *peers = peer->peers;
    pthread_mutex_lock(&peers->lock);
    while (!peers->stop) {
        const uint64_t now = efs_now_ns();
        if (peer->job) {
            peer_run_job(peer);
        } else if (peer->measured.ready) {
            efs_cond_wait_until(&peer->changed, &peers->lock, NULL);
        } else if (peer->retry_ns > now) {
            const struct timespec until = efs_from_now((int64_t)(peer->retry_ns - now));
            efs_cond_wait_until(&peer->changed, &peers->lock, &until);
        } else {
            pthread_mutex_unlock(&peers->lock);
            errint_t rc = peer_connect(peer);
            pthread_mutex_lock(&peers->lock);
            if (rc < 0)
                peer_disconnect(peer);
            else
                peer->measured.ready = true;
        }
    }
    peer_disconnect(peer);
    efs_peer_job_free(peer->job); /* was left before it was sent */
    pthread_mutex_unlock(&peers->lock);
    return NULL;
}

/* ---- what a peer holds ---- */

struct efs_peer_layer *efs_peer_layer(struct efs_peer *peer, const char *stack, uint32_t layer, bool add)
{
    for (uint32_t i = 0; i < peer->layer_count; i++)
        if (peer->layers[i].layer == layer && strcmp(peer->layers[i].stack, stack) == 0)
            return &peer->layers[i];
    struct efs_peer_layer *more =
        add && peer->layer_count < LAYERS_MAX ? reallocarray(peer->layers, peer->layer_count + 1, sizeof(*more)) : NULL;
    if (!more)
        return NULL;
    peer->layers = more;
    more += peer->layer_count++;
    *more = (struct efs_peer_layer){.layer = layer};
    memcpy(more->stack, stack, strnlen(stack, sizeof(more->stack) - 1));
    return more;
}
