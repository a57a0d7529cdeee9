/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-peer.h - several machines that compute for each other: a server that runs experts for programs on other
 * machines, and a client that sends it the inputs of experts that it does not hold. See expertfs.h.
 *
 * Both ends have the same packed store (by its content hash) and one secret key, a file of 32 to 128 hexadecimal digits
 * that no other user can read. A peer with the key is trusted to compute rightly: an answer is checked for its size and
 * for finite numbers, not for its values.
 */
#ifndef EXPERTFS_PEER_H
#define EXPERTFS_PEER_H

#include "expertfs-compute.h"

#ifdef __cplusplus
extern "C" {
#endif

struct efs_peer_server;
struct efs_peer_server_stats {
    uint64_t connections, refused; /* accepted; of another key, store or version, or too many at a time */
    uint64_t requests, vectors;    /* answered; vectors that were sent */
    uint64_t bad;                  /* messages with wrong lengths or numbers, or cut; their connections were closed */
    uint64_t failed;               /* requests that were answered by an error */
};

/*
 * Answer requests for products with the experts of this client's store or mount: on `listen`, HOST:PORT (port 0: any,
 * see efs_peer_server_port()), with the threads of a team that it starts (0: all cores). Starts threads and returns.
 * The client must stay open. -EINVAL: the store is a checkpoint in place, which has no hash of its content; -EACCES,
 * -EADDRINUSE, -ENOSYS (GnuTLS is not installed), -ENOMEM.
 */
EFS_API errint_t efs_peer_serve(struct efs_client *client, const char *listen, const char *key_file, unsigned threads,
                                struct efs_peer_server **server, struct efs_error *err);
EFS_API unsigned efs_peer_server_port(const struct efs_peer_server *server);
EFS_API void efs_peer_server_stats(struct efs_peer_server *server, struct efs_peer_server_stats *stats);
EFS_API void efs_peer_server_end(struct efs_peer_server *server); /* closes all connections; NULL is fine */

/*
 * From now on efs_client_ffn() may let peers compute experts that are not in this client's memory, where their measured
 * times say that this is sooner than reading: HOST:PORT, separated by commas, at most 16. The result has the same bits.
 * A peer that does not answer in time, answers wrongly or closes is left alone for a minute, and its experts are read.
 * With EFS_ACTIVATION_BF16 only peers whose processor sums as this one take part. Connects in the background. Call it
 * on one thread, before the client's first mixture. -EINVAL, -EEXIST: called twice; -ENOSYS, -ENOMEM.
 */
EFS_API errint_t efs_client_peers(struct efs_client *client, const char *addresses, const char *key_file,
                                  struct efs_error *err);

struct efs_peer_stats {
    uint64_t remote, local; /* vectors computed by peers; here, since efs_client_peers() */
    uint64_t failed;        /* requests without a right answer in time */
    unsigned peers, ready;  /* in all; connected now */
};
EFS_API void efs_client_peer_stats(struct efs_client *client, struct efs_peer_stats *stats); /* zeros: no peers */

/*
 * Products of single matrices by peers, for runtimes that compute the rest of a layer themselves, with efs_product().
 * Begin sends the inputs of experts that are not in this client's memory, where that is sooner than reading them, and
 * returns; the caller then computes the other experts, waits, and computes those without vectors. A peer's vectors have
 * the bits of efs_product() with inputs of efs_vectors_prepare().
 */
struct efs_peer_products {
    const char *stack;
    uint32_t layer;
    const char *matrix[2]; /* names of BF16 or F16 tensors, [rows][cols], the same in all experts; [1] NULL: one */
    uint32_t rows, cols;   /* rows: of both */
    bool more;             /* a product of the same experts follows, for which a peer would be asked, too */
    bool again;            /* a product of these experts went before, which has counted them */
    enum efs_activation activation;
    const float *x;  /* [tokens][x_stride] */
    size_t x_stride; /* numbers */
    uint32_t tokens, expert_count;
    const struct efs_route_to *experts; /* [expert_count], each once; without weights */
};
struct efs_peer_call;
/* The lists and x must stay until efs_peer_products_wait(). *call NULL: no peer is connected; the functions below take
 * it. -EINVAL: a name is too long; -ENOMEM. */
EFS_API errint_t efs_peer_products_begin(struct efs_client *client, const struct efs_peer_products *products,
                                         struct efs_peer_call **call);
EFS_API bool efs_peer_products_sent(const struct efs_peer_call *call, uint32_t expert); /* expert: index in experts */
/* Blocks until each peer has answered or is given up. Call it once. */
EFS_API void efs_peer_products_wait(struct efs_peer_call *call);
/* [count][rows], one for each of the expert's tokens, valid until the end; NULL: the caller has to compute them. */
EFS_API const float *efs_peer_products_vectors(const struct efs_peer_call *call, uint32_t expert);
/* computed: whether the caller has computed all vectors that it had to: then the time is measured. If an expert was
 * sent, call efs_peer_products_wait() first. */
EFS_API void efs_peer_products_end(struct efs_peer_call *call, bool computed);

#ifdef __cplusplus
}
#endif
#endif
