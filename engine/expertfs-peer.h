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
    uint64_t bad;                  /* messages with wrong lengths or numbers; their connections were closed */
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

#ifdef __cplusplus
}
#endif
#endif
