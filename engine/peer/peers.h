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
    uint64_t known_ns; /* when it answered; the peer may have loaded some since */
    uint8_t held[EFS_WIRE_LAYER / 8];
};

/* A request to a peer: from efs_peer_post() to efs_peer_wait() its thread's, and for good if the caller has left it. */
struct efs_peer_job {
    void *body; /* of the request, with its id; freed by the thread */
    size_t bytes;
    uint32_t pairs, rows;
    uint64_t id, posted_ns, answered_ns;
    struct timespec until, leave; /* the connection is closed; the caller reads the experts itself */
    bool left;
    /* The answer: 0; -ETIMEDOUT, -EBADMSG, the server's error, or that of the connection. The caller frees answer. */
    errint_t rc;
    bool refused; /* rc is the server's error: the connection is good. -ENODATA: it has not all of the experts */
    void *answer;
    const uint8_t *held;
    uint32_t layer_experts;
    const float *vectors;
};

/* A peer, and the thread that has its connection. All but fd and tls is guarded by efs_peers.lock. */
struct efs_peer {
    struct efs_peers *peers;
    char *address;
    pthread_t thread;
    pthread_cond_t changed;
    int fd; /* -1: not connected. Written with lock, by the thread */
    struct efs_tls *tls;
    bool same_order; /* BF16 products have the same bits there */
    struct efs_choose_peer measured;
    uint64_t used_ns, retry_ns, requests; /* of the last answer; no connection before that time; sent */
    bool taken;                           /* a mixture uses it */
    struct efs_peer_job *job;             /* in flight; NULL: none */
    struct efs_peer_layer *layers;
    uint32_t layer_count;
};

struct efs_peers {
    struct efs_peer_key key;
    struct efs_wire_hello hello;
    pthread_mutex_t lock;
    pthread_cond_t answered; /* a job has ended */
    bool stop;
    double read_s, vector_s; /* moving averages: reading an expert here, a vector of an expert in memory */
    uint64_t read_ns;        /* when read_s was measured last */
    uint64_t late_ns;        /* least time of a request: a busy machine is no dead one */
    struct efs_peer_stats stats;
    uint32_t count;
    struct efs_peer peer[EFS_PEERS_MAX];
};

/* ---- peers.c: with lock ---- */
/* A peer's thread, until peers->stop: connects, then sends requests and receives their answers. Without lock. */
void *efs_peer_thread(void *peer);
/* Gives a ready peer that the caller has taken this job. */
void efs_peer_post(struct efs_peer *peer, struct efs_peer_job *job);
/* Waits until the job has ended, which it does at job->until. After an error, unless the server has sent it, the
 * connection is closed, and opened again after a minute. false: job->leave came first, and the job is the thread's,
 * which measures and frees it; until then the peer stays taken. */
bool efs_peer_wait(struct efs_peer *peer, struct efs_peer_job *job);
/* Measures a job that was answered. */
void efs_peer_measured(struct efs_peer *peer, const struct efs_peer_job *job);
void efs_peer_job_free(struct efs_peer_job *job);
/* NULL: nothing is known of that layer, or no memory. */
struct efs_peer_layer *efs_peer_layer(struct efs_peer *peer, const char *stack, uint32_t layer, bool add);

/* ---- remote.c ---- */
/* The experts of a layer that a call needs, of which peers compute some. The caller sets the first members. */
struct efs_remote {
    struct efs_peers *peers;
    struct efs_client *client;
    struct efs_wire_request head;       /* what all requests have in common: the layer, the matrices, the types */
    const struct efs_route_to *experts; /* [expert_count]; without weights */
    uint32_t expert_count, tokens;
    const void *x; /* [tokens][x_stride] numbers of efs_wire_number_bytes() */
    size_t x_stride;
    double part;  /* of the time of reading an expert that an answer saves: .5 if a second request follows */
    bool counted; /* the choice is in the client's counts */
    bool looked;  /* a peer is connected: it is known which experts are missing */

    uint32_t pairs, missing;
    uint64_t begun_ns;
    int *where;                         /* [experts]: number of a peer, or EFS_CHOOSE_HERE */
    const float **vectors;              /* [experts]: after efs_remote_receive(), of peers; NULL: to be computed here */
    struct efs_choose_expert *choices;  /* [missing] */
    uint32_t *missing_at;               /* [missing]: number among the experts */
    uint32_t vectors_of[EFS_PEERS_MAX]; /* 0: the peer is not used */
    uint32_t experts_of[EFS_PEERS_MAX];
    struct efs_peer_job *job[EFS_PEERS_MAX]; /* NULL: nothing was sent, or it was left */
};
/* Chooses the experts that peers compute, and sends their inputs; experts and x must stay until efs_remote_receive().
 * *sent: the number of these experts, where[i] >= 0. Counts the choice, then or before: r->counted. After an error,
 * -ENOMEM or of efs_client_count(), or if no peer is connected, nothing is sent or counted. Does not block. */
errint_t efs_remote_send(struct efs_remote *r, uint32_t *sent);
/* The experts that were not sent were computed: measures what reading one costs, or a vector. Once, before
 * efs_remote_receive(). */
void efs_remote_measured(struct efs_remote *r);
/* Waits for all answers; a job ends at its time. Nothing was sent: does nothing. */
void efs_remote_receive(struct efs_remote *r);
void efs_remote_free(struct efs_remote *r);

/* ---- remote_ffn.c ---- */
errint_t efs_peers_run(struct efs_peers *peers, const struct efs_ffn_source *from, struct efs_team *team,
                       const struct efs_mixture *mixture, struct efs_error *err);

#endif
