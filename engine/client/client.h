/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - struct efs_client, for client.c and client_store.c. */
#ifndef EFS_CLIENT_H
#define EFS_CLIENT_H

#include "device_ops.h"
#include "expertfs-private.h"
#include "owner.h"
#include "peer_ops.h"

/* The calls on a store in this process. */
struct efs_store_ops {
    errint_t (*begin)(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_need *needs,
                      uint32_t count, enum efs_form form, struct efs_client_request **request, struct efs_error *err);
    void (*leave)(struct efs_client *client, uint64_t disk_bytes);
    errint_t (*routing)(struct efs_client *client, const struct efs_routing *routing, enum efs_routing_kind kind,
                        struct efs_error *err);
    char (*state)(struct efs_client *client, const struct efs_expert_key *key);
    errint_t (*layers)(struct efs_client *client, char **text);
    errint_t (*hash)(struct efs_client *client, uint64_t *hash); /* of its content; -EINVAL: in place */
    void (*close)(struct efs_client *client, bool here);         /* here: not in a forked process */
};

struct efs_client {
    struct efs_owner owner;
    struct efs *fs; /* one of fs and mount is set */
    struct efs_mount *mount;
    bool borrowed;                         /* fs is the caller's */
    uint32_t observer;                     /* of fs */
    const struct efs_store_ops *store_ops; /* of fs */
    struct efs_device *device;             /* in addition; NULL: none */
    const struct efs_device_ops *device_ops;
    struct efs_peers *peers; /* NULL: none */
    const struct efs_peer_ops *peer_ops;
};

#endif
