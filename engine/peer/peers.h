/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - the caller's connections to its peers. */
#ifndef EFS_PEERS_H
#define EFS_PEERS_H

#include "choose.h"
#include "expertfs-peer.h"
#include "peer_ops.h"
#include "tls.h"
#include "wire.h"

#include <pthread.h>

/* Which experts of a layer a peer's memory held at its last answer about it. */
struct efs_peer_layer {
    char stack[EFS_STACK_NAME_BYTES];
    uint32_t layer, experts;
    uint8_t held[EFS_WIRE_LAYER / 8];
};

/* A peer. While it is taken, its connection is that thread's; all else is guarded by efs_peers.lock. */
struct efs_peer {
    char *address;
    int fd; /* -1: not connected */
    struct efs_tls *tls;
    bool taken;      /* a mixture uses it */
    bool same_order; /* BF16 products have the same bits there */
    struct efs_choose_peer measured;
    uint64_t used_ns, retry_ns; /* of the last answer; not before that time */
    uint64_t request;           /* number of the last one */
    struct efs_peer_layer *layers;
    uint32_t layer_count;
};

struct efs_peers {
    struct efs_peer_key key;
    struct efs_wire_hello hello;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for the thread that connects */
    pthread_t thread;
    bool stop;
    double read_s, vector_s; /* moving averages: reading an expert here, a vector of an expert in memory */
    struct efs_peer_stats stats;
    uint32_t count;
    struct efs_peer peer[EFS_PEERS_MAX];
};

/* ---- peers.c: without lock ---- */
/* The thread that opens connections, until peers->stop; arg: struct efs_peers. */
void *efs_peers_connect(void *arg);
/* Sends a request, whose body the caller has filled after its head, to a peer that it has taken. */
errint_t efs_peer_send(struct efs_peer *peer, const void *body, size_t bytes, const struct timespec *until);
/* Receives the answer to the last request. *body is the caller's to free. -ETIMEDOUT, -EBADMSG, the server's error. */
errint_t efs_peer_receive(struct efs_peer *peer, uint32_t pairs, uint32_t hidden, const struct timespec *until,
                          void **body, const uint8_t **held, uint32_t *layer_experts, const float **vectors);
/* Ends the use of a peer by a mixture. broken: its connection is closed, and opened again after a minute. */
void efs_peer_return(struct efs_peers *peers, struct efs_peer *peer, bool broken);

/* ---- with lock ---- */
/* NULL: nothing is known of that layer. */
struct efs_peer_layer *efs_peer_layer(struct efs_peer *peer, const char *stack, uint32_t layer, bool add);

/* ---- remote_ffn.c ---- */
errint_t efs_peers_run(struct efs_peers *peers, const struct efs_ffn_source *from, struct efs_team *team,
                       const struct efs_mixture *mixture, struct efs_error *err);

#endif
