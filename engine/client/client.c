/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - one set of calls for a mount, a store in this process and a device: each is forwarded to the right one. A
 * store by a table, which client_store.c has, so that a program that opens mounts only does not link the engine.
 */
#include "client.h"

#include "file_layout.h"
#include "mount.h"
#include "expertfs-private.h"
#include "owner.h"
#include "request.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

errint_t efs_client_check(const struct efs_client *client, struct efs_error *err)
{
    return efs_owner_check(&client->owner, "the client", err);
}

errint_t efs_client_open_mount(const char *path, struct efs_client **out, struct efs_error *err)
{
    struct efs_error why = {""};
    *out = NULL;
    struct efs_client *client = efs_sys_calloc(1, sizeof(*client));
    if (!client)
        return efs_fail(err, -ENOMEM, "no memory");
    int root = efs_sys_open(path, O_PATH | O_DIRECTORY, 0);
    errint_t rc = root < 0 ? efs_fail(&why, root, "%s", strerror(-root)) : efs_mount_new(root, &client->mount, &why);
    if (rc < 0) {
        free(client);
        return efs_fail(err, rc, "%s: %s", path, why.text);
    }
    efs_owner_begin(&client->owner);
    *out = client;
    return 0;
}

void efs_client_close(struct efs_client *client)
{
    if (!client)
        return;
    if (client->device)
        client->device_ops->close(client->device);
    const bool here = efs_owner_is_this_process(&client->owner);
    if (client->peers)
        client->peer_ops->close(client->peers, here);
    if (client->mount)
        efs_mount_free(client->mount, !here);
    else
        client->store_ops->close(client, here);
    efs_owner_end(&client->owner);
    free(client);
}

errint_t efs_client_attach(struct efs_client *client, struct efs_device *device, const struct efs_device_ops *ops)
{
    if (client->device)
        return -EEXIST;
    client->device = device;
    client->device_ops = ops;
    return 0;
}

errint_t efs_client_attach_peers(struct efs_client *client, struct efs_peers *peers, const struct efs_peer_ops *ops)
{
    if (client->peers)
        return -EEXIST;
    client->peers = peers;
    client->peer_ops = ops;
    return 0;
}

struct efs_peers *efs_client_peers_of(const struct efs_client *client, const struct efs_peer_ops **ops)
{
    *ops = client->peer_ops;
    return client->peers;
}

errint_t efs_client_hash(struct efs_client *client, uint64_t *hash, struct efs_error *err)
{
    errint_t rc = client->mount ? efs_mount_hash(client->mount, hash) : client->store_ops->hash(client, hash);
    return rc == -EINVAL ? efs_fail(err, rc,
                                    "a checkpoint in place has no hash of its content\nhint: pack it: mkexpertfs "
                                    "MODEL model.efs")
           : rc < 0      ? efs_fail(err, rc, "the hash of the store: %s", strerror(-rc))
                         : 0;
}

struct efs_device *efs_client_device(const struct efs_client *client)
{
    return client->device;
}

errint_t efs_client_experts(struct efs_client *client, struct efs_listed_expert **experts, uint32_t *count,
                            struct efs_error *err)
{
    char *text = NULL;
    *experts = NULL;
    *count = 0;
    errint_t rc = efs_client_check(client, err);
    if (rc < 0)
        return rc;
    rc = client->mount ? efs_mount_layers(client->mount, &text) : client->store_ops->layers(client, &text);
    if (rc == 0)
        rc = efs_layers_parse(text, experts, count);
    free(text);
    return rc < 0 ? efs_fail(err, rc, "the list of experts: %s", strerror(-rc)) : 0;
}

void efs_client_report_device(struct efs_client *client, struct efs_export_device *device)
{
    if (client->mount && efs_owner_is_this_process(&client->owner))
        efs_mount_report_device(client->mount, device);
}

char efs_client_state(struct efs_client *client, const struct efs_expert_key *key)
{
    return client->mount ? efs_mount_state(client->mount, key) : client->store_ops->state(client, key);
}

errint_t efs_client_begin(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_need *needs,
                          uint32_t count, enum efs_form form, struct efs_client_request **out, struct efs_error *err)
{
    const enum efs_form plain = form & ~EFS_FORM_COUNTED;
    *out = NULL;
    errint_t rc = efs_client_check(client, err);
    if (rc < 0)
        return rc;
    if (plain != EFS_FORM_FULL && plain != EFS_FORM_CODED && plain != EFS_FORM_ANY && plain != EFS_FORM_DEVICE)
        return efs_fail(err, -EINVAL, "there is no form %d", (int)form);
    if (plain == EFS_FORM_DEVICE && !client->device)
        return efs_fail(err, -EINVAL, "experts in memory of a device need one: efs_client_gpu()");
    rc = plain == EFS_FORM_DEVICE ? client->device_ops->begin(client->device, stack, layer, needs, count, out, err)
         : client->mount          ? efs_mount_begin(client->mount, stack, layer, needs, count, form, out, err)
                                  : client->store_ops->begin(client, stack, layer, needs, count, form, out, err);
    if (rc == 0)
        (*out)->owner = &client->owner;
    return rc;
}

errint_t efs_client_leave(struct efs_client *client, uint64_t disk_bytes, struct efs_error *err)
{
    errint_t rc = efs_client_check(client, err);
    if (rc < 0)
        return rc;
    if (disk_bytes >= UINT64_MAX - 1)
        return efs_fail(err, -EINVAL, "no model leaves that many bytes on disk");
    if (client->mount)
        return efs_mount_leave(client->mount, disk_bytes, err);
    client->store_ops->leave(client, disk_bytes);
    return 0;
}

/* ---- chosen and predicted experts ---- */

static errint_t client_routing(struct efs_client *client, const struct efs_routing *from, enum efs_routing_kind kind,
                               struct efs_error *err)
{
    struct efs_routing routing;
    errint_t rc = efs_client_check(client, err);
    if (rc < 0)
        return rc;
    if (!client->mount)
        return client->store_ops->routing(client, from, kind, err);
    rc = efs_routing_check(from, &routing, kind, err);
    return rc < 0 ? rc : efs_mount_routing(client->mount, &routing, kind, err);
}

errint_t efs_observe(struct efs_client *client, const struct efs_routing *chosen, struct efs_error *err)
{
    return client_routing(client, chosen, EFS_ROUTING_CHOSEN, err);
}

errint_t efs_hint(struct efs_client *client, const struct efs_routing *guessed, struct efs_error *err)
{
    return client_routing(client, guessed, EFS_ROUTING_PREDICTED, err);
}

errint_t efs_client_count(struct efs_client *client, const char *stack, uint32_t layer,
                          const struct efs_route_to *routes, uint32_t count)
{
    uint32_t experts[EFS_ROUTING_EXPERTS];
    float tokens[EFS_ROUTING_EXPERTS];
    if (count > EFS_ROUTING_EXPERTS)
        return -EINVAL;
    for (uint32_t i = 0; i < count; i++) {
        experts[i] = routes[i].expert;
        tokens[i] = (float)(routes[i].count < UINT16_MAX ? routes[i].count : UINT16_MAX);
    }
    const struct efs_routing routing = {
        .stack = stack, .layer = layer, .count = count, .experts = experts, .weights = tokens};
    return client_routing(client, &routing, EFS_ROUTING_COUNTED, NULL);
}
