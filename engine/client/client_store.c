/* SPDX-License-Identifier: Apache-2.0 */
/* client_store.c - a client of a store in this process, or of a mount: the only file of client/ that links the engine.
 */
#include "client.h"
#include "mount.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* Replaces the experts' numbers in the layer by those in the store, and submits the request. */
static errint_t store_begin(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_need *needs,
                            uint32_t count, enum efs_form form, struct efs_client_request **request,
                            struct efs_error *err)
{
    struct efs *fs = client->fs;
    struct efs_need few[64], *all = few;
    if (count > efs_expert_count(fs))
        return efs_fail(err, -EINVAL, "%u experts in a request: there are %u", count, efs_expert_count(fs));
    if (count > sizeof(few) / sizeof(few[0]) && !(all = efs_sys_calloc(count, sizeof(*all))))
        return efs_fail(err, -ENOMEM, "no memory for a request");
    for (uint32_t i = 0; i < count; i++)
        all[i] = needs[i];
    const struct efs_request_how how = {.form = form & ~EFS_FORM_COUNTED, .counted = form & EFS_FORM_COUNTED};
    errint_t rc = efs_experts_find(fs, stack, layer, all, count, err);
    if (rc == 0)
        rc = efs_request_submit(fs, all, count, &how, request, err);
    if (all != few)
        free(all);
    return rc;
}

static errint_t store_routing(struct efs_client *client, const struct efs_routing *routing, enum efs_routing_kind kind,
                              struct efs_error *err)
{
    return efs_routing_submit(client->fs, client->observer, kind, routing, err);
}

static void store_leave(struct efs_client *client, uint64_t disk_bytes)
{
    efs_budget_leave(client->fs, disk_bytes);
}

static char store_state(struct efs_client *client, const struct efs_expert_key *key)
{
    struct efs_need need = {.expert = key->expert};
    const bool found = efs_experts_find(client->fs, key->stack, key->layer, &need, 1, NULL) == 0;
    return found ? efs_expert_state(client->fs, need.expert) : 'M';
}

static errint_t store_layers(struct efs_client *client, char **text)
{
    size_t bytes;
    return efs_describe(client->fs, "layers", text, &bytes);
}

static errint_t store_hash(struct efs_client *client, uint64_t *hash)
{
    struct efs_store_info info;
    efs_store_info(efs_get_store(client->fs), &info);
    *hash = info.content_hash;
    return info.in_place ? -EINVAL : 0;
}

static void store_close(struct efs_client *client, bool here)
{
    if (here)
        efs_routing_observer_end(client->fs, client->observer);
    if (!client->borrowed)
        efs_close(client->fs);
}

static const struct efs_store_ops store_ops = {.begin = store_begin,
                                               .leave = store_leave,
                                               .routing = store_routing,
                                               .state = store_state,
                                               .layers = store_layers,
                                               .hash = store_hash,
                                               .close = store_close};

/* ---- opening ---- */

static errint_t client_open_store(const char *path, const struct efs_client_options *how, struct efs_client *client,
                                  struct efs_error *err)
{
    const struct efs_options options = {.workers = how->workers,
                                        .budget_bytes = how->budget_bytes,
                                        .reserved_bytes = how->reserved_bytes,
                                        .full_pool = !how->coded_only,
                                        .lease_wait = true,
                                        .no_state = how->no_state,
                                        .warm = how->warm ? "always" : NULL,
                                        .prefetch = how->prefetch,
                                        .log = how->log,
                                        .log_arg = how->log_arg};
    return efs_open(path, &options, &client->fs, err);
}

/* A directory: a mount, or else a checkpoint. */
static errint_t client_open_directory(const char *path, int root, const struct efs_client_options *how,
                                      struct efs_client *client, struct efs_error *err)
{
    struct efs_error why = {""};
    errint_t rc = efs_mount_new(root, &client->mount, &why);
    if (rc != -ENODEV)
        return rc < 0 ? efs_fail(err, rc, "%s: %s", path, why.text) : 0;
    rc = client_open_store(path, how, client, &why); /* a checkpoint, served in place */
    if (rc == -EISDIR)
        return efs_fail(err, -ENODEV, "%s: neither a store nor a mount of expertfs\nhint: mkexpertfs %s model.efs",
                        path, EFS_WORD(path));
    return rc < 0 ? efs_fail(err, rc, "%s", why.text) : 0;
}

static void client_begin(struct efs_client *client)
{
    efs_owner_begin(&client->owner);
    if (!client->fs)
        return;
    client->store_ops = &store_ops;
    client->observer = efs_routing_observer(client->fs);
}

errint_t efs_client_open(const char *path, const struct efs_client_options *options, struct efs_client **out,
                         struct efs_error *err)
{
    const struct efs_client_options defaults = {0}, *how = options ? options : &defaults;
    errint_t rc;
    *out = NULL;
    struct efs_client *client = efs_sys_calloc(1, sizeof(*client));
    if (!client)
        return efs_fail(err, -ENOMEM, "no memory");
    int root = efs_is_address(path) ? -ENOTDIR : efs_sys_open(path, O_PATH | O_DIRECTORY, 0);
    rc = root >= 0          ? client_open_directory(path, root, how, client, err)
         : root == -ENOTDIR ? client_open_store(path, how, client, err)
                            : efs_fail(err, root, "%s: %s", path, strerror(-root));
    if (rc < 0) {
        free(client);
        return rc;
    }
    client_begin(client);
    *out = client;
    return 0;
}

errint_t efs_client_new(struct efs *fs, struct efs_client **out, struct efs_error *err)
{
    *out = NULL;
    errint_t rc = efs_check_process(fs, err);
    if (rc < 0)
        return rc;
    struct efs_client *client = *out = efs_sys_calloc(1, sizeof(*client));
    if (!client)
        return efs_fail(err, -ENOMEM, "no memory");
    client->fs = fs;
    client->borrowed = true;
    client_begin(client);
    return 0;
}

struct efs *efs_client_fs(struct efs_client *client)
{
    return client->fs;
}
