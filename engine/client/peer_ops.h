/* SPDX-License-Identifier: Apache-2.0 */
/* peer_ops.h - the functions of engine/peer/ that client/ and compute/ call through a table, because peer/ is above. */
#ifndef EFS_PEER_OPS_H
#define EFS_PEER_OPS_H

#include "expertfs-compute.h"

struct efs_peers;
struct efs_ffn_source;

struct efs_peer_ops {
    /* efs_ffn_run() of a mixture of experts of a client, of which peers may compute some. */
    errint_t (*run)(struct efs_peers *peers, const struct efs_ffn_source *from, struct efs_team *team,
                    const struct efs_mixture *mixture, struct efs_error *err);
    void (*close)(struct efs_peers *peers, bool here); /* here: not in a forked process */
};

/* Attaches peers, which the client closes first when it is closed. -EEXIST: it has some. */
errint_t efs_client_attach_peers(struct efs_client *client, struct efs_peers *peers, const struct efs_peer_ops *ops);
/* NULL: none. */
struct efs_peers *efs_client_peers_of(const struct efs_client *client, const struct efs_peer_ops **ops);
/* Counts a layer's choice, of which peers may compute some, as one request of the store or mount; the requests for it
 * have EFS_FORM_COUNTED. Their tokens are not read. -EINVAL: more than EFS_ROUTING_EXPERTS; errors of efs_observe(). */
errint_t efs_client_count(struct efs_client *client, const char *stack, uint32_t layer,
                          const struct efs_route_to *experts, uint32_t count);
/* Content hash of the client's packed store. -EINVAL: a checkpoint in place has none. */
errint_t efs_client_hash(struct efs_client *client, uint64_t *hash, struct efs_error *err);

#endif
