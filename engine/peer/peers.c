/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c - see peers.h: a thread opens connections; a mixture takes a peer, sends one request and receives its answer.
 */
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

/* Connects to a peer that is taken. */
static errint_t peer_connect(const struct efs_peers *peers, struct efs_peer *peer)
{
    struct efs_error ignored;
    const struct timespec until = efs_from_now(CONNECT_MS * INT64_C(1000000));
    errint_t rc = efs_peer_connect(peer->address, &until, &peer->fd, &ignored);
    if (rc < 0) {
        peer->fd = -1;
        return rc;
    }
    rc = efs_tls_new(peer->fd, false, &peers->key, &until, &peer->tls, &ignored);
    return rc < 0 ? rc : greet(peers, peer->tls, &until, &peer->same_order);
}

void efs_peer_return(struct efs_peers *peers, struct efs_peer *peer, bool broken)
{
    if (broken) {
        efs_tls_free(peer->tls);
        if (peer->fd >= 0)
            close(peer->fd);
        peer->tls = NULL;
        peer->fd = -1;
    }
    pthread_mutex_lock(&peers->lock);
    peer->measured.ready = !broken;
    if (broken) {
        peer->measured = (struct efs_choose_peer){.ready = false};
        peer->retry_ns = efs_now_ns() + RETRY_S * UINT64_C(1000000000);
        pthread_cond_signal(&peers->changed);
    }
    peer->taken = false;
    pthread_mutex_unlock(&peers->lock);
}

/* The peer whose connection is to be opened next, and at what time; NULL: all are open. */
static struct efs_peer *next_peer(struct efs_peers *peers)
{
    struct efs_peer *next = NULL;
    for (uint32_t i = 0; i < peers->count; i++)
        if (!peers->peer[i].measured.ready && !peers->peer[i].taken &&
            (!next || peers->peer[i].retry_ns < next->retry_ns))
            next = &peers->peer[i];
    return next;
}

void *efs_peers_connect(void *arg)
{
    struct efs_peers *peers = arg;
    pthread_mutex_lock(&peers->lock);
    while (!peers->stop) {
        struct efs_peer *peer = next_peer(peers);
        const uint64_t now = efs_now_ns();
        if (!peer || peer->retry_ns > now) {
            const struct timespec until = efs_from_now(peer ? (int64_t)(peer->retry_ns - now) : INT64_MAX / 4);
            efs_cond_wait_until(&peers->changed, &peers->lock, peer ? &until : NULL);
            continue;
        }
        peer->taken = true;
        pthread_mutex_unlock(&peers->lock);
        efs_peer_return(peers, peer, peer_connect(peers, peer) < 0);
        pthread_mutex_lock(&peers->lock);
    }
    pthread_mutex_unlock(&peers->lock);
    return NULL;
}

/* ---- a request ---- */

errint_t efs_peer_send(struct efs_peer *peer, const void *body, size_t bytes, const struct timespec *until)
{
    const struct efs_wire_head head = {EFS_WIRE_REQUEST, (uint32_t)bytes};
    errint_t rc = efs_tls_send(peer->tls, &head, sizeof(head), until);
    return rc < 0 ? rc : efs_tls_send(peer->tls, body, bytes, until);
}

errint_t efs_peer_receive(struct efs_peer *peer, uint32_t pairs, uint32_t hidden, const struct timespec *until,
                          void **body, const uint8_t **held, uint32_t *layer_experts, const float **vectors)
{
    struct efs_wire_head head;
    *body = NULL;
    errint_t rc = efs_tls_receive(peer->tls, &head, sizeof(head), until);
    if (rc == 0 && (head.kind != EFS_WIRE_ANSWER || head.bytes > efs_wire_answer_bytes(EFS_WIRE_LAYER, pairs, hidden)))
        rc = -EBADMSG;
    if (rc == 0 && !(*body = efs_sys_malloc(head.bytes ? head.bytes : 1)))
        rc = -ENOMEM;
    if (rc == 0)
        rc = efs_tls_receive(peer->tls, *body, head.bytes, until);
    return rc < 0 ? rc
                  : efs_wire_take_answer(*body, head.bytes, peer->request, pairs, hidden, held, layer_experts, vectors);
}

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
