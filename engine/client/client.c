/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - one set of calls for a mount, a store in this process and a device: each is forwarded to the right one. */
#include "device_ops.h"
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

struct efs_client {
    struct efs_owner owner;
    struct efs *fs; /* one of fs and mount is set */
    struct efs_mount *mount;
    bool borrowed;             /* fs is the caller's */
    uint32_t observer;         /* of fs */
    struct efs_device *device; /* in addition; NULL: none */
    const struct efs_device_ops *device_ops;
};

errint_t efs_client_check(const struct efs_client *client, struct efs_error *err)
{
    return efs_owner_check(&client->owner, "the client", err);
}

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
                        path, path);
    return rc < 0 ? efs_fail(err, rc, "%s", why.text) : 0;
}

static void client_begin(struct efs_client *client)
{
    efs_owner_begin(&client->owner);
    if (client->fs)
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
    int root = efs_sys_open(path, O_PATH | O_DIRECTORY, 0);
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

void efs_client_close(struct efs_client *client)
{
    if (!client)
        return;
    if (client->device)
        client->device_ops->close(client->device);
    const bool here = efs_owner_is_this_process(&client->owner);
    if (client->fs && here)
        efs_routing_observer_end(client->fs, client->observer);
    if (client->mount)
        efs_mount_free(client->mount, !here);
    else if (!client->borrowed)
        efs_close(client->fs);
    efs_owner_end(&client->owner);
    free(client);
}

struct efs *efs_client_fs(struct efs_client *client)
{
    return client->fs;
}

errint_t efs_client_attach(struct efs_client *client, struct efs_device *device, const struct efs_device_ops *ops)
{
    if (client->device)
        return -EEXIST;
    client->device = device;
    client->device_ops = ops;
    return 0;
}

struct efs_device *efs_client_device(const struct efs_client *client)
{
    return client->device;
}

errint_t efs_client_experts(struct efs_client *client, struct efs_listed_expert **experts, uint32_t *count,
                            struct efs_error *err)
{
    char *text = NULL;
    size_t bytes;
    *experts = NULL;
    *count = 0;
    errint_t rc = efs_client_check(client, err);
    if (rc < 0)
        return rc;
    rc = client->mount ? efs_mount_layers(client->mount, &text) : efs_describe(client->fs, "layers", &text, &bytes);
    if (rc == 0)
        rc = efs_layers_parse(text, experts, count);
    free(text);
    return rc < 0 ? efs_fail(err, rc, "the list of experts: %s", strerror(-rc)) : 0;
}

char efs_client_state(struct efs_client *client, const struct efs_expert_key *key)
{
    struct efs_need need = {.expert = key->expert};
    struct efs_expert_info info;
    if (client->mount)
        return efs_mount_state(client->mount, key);
    if (efs_experts_find(client->fs, key->stack, key->layer, &need, 1, NULL) < 0 ||
        efs_expert_info(client->fs, efs_id(need.expert), &info) < 0)
        return 'M';
    return info.state;
}

/* Replaces the experts' numbers in the layer by those in the store, and submits the request. */
static errint_t client_begin_in_process(struct efs *fs, const char *stack, uint32_t layer, const struct efs_need *needs,
                                        uint32_t count, enum efs_form form, struct efs_client_request **request,
                                        struct efs_error *err)
{
    struct efs_need few[64], *all = few;
    if (count > efs_expert_count(fs))
        return efs_fail(err, -EINVAL, "%u experts in a request: there are %u", count, efs_expert_count(fs));
    if (count > sizeof(few) / sizeof(few[0]) && !(all = efs_sys_calloc(count, sizeof(*all))))
        return efs_fail(err, -ENOMEM, "no memory for a request");
    for (uint32_t i = 0; i < count; i++)
        all[i] = needs[i];
    const struct efs_request_how how = {.form = form};
    errint_t rc = efs_experts_find(fs, stack, layer, all, count, err);
    if (rc == 0)
        rc = efs_request_submit(fs, all, count, &how, request, err);
    if (all != few)
        free(all);
    return rc;
}

errint_t efs_client_begin(struct efs_client *client, const char *stack, uint32_t layer, const struct efs_need *needs,
                          uint32_t count, enum efs_form form, struct efs_client_request **out, struct efs_error *err)
{
    *out = NULL;
    errint_t rc = efs_client_check(client, err);
    if (rc < 0)
        return rc;
    if (form != EFS_FORM_FULL && form != EFS_FORM_CODED && form != EFS_FORM_ANY && form != EFS_FORM_DEVICE)
        return efs_fail(err, -EINVAL, "there is no form %d", (int)form);
    if (form == EFS_FORM_DEVICE && !client->device)
        return efs_fail(err, -EINVAL, "experts in memory of a device need one: efs_client_gpu()");
    rc = form == EFS_FORM_DEVICE ? client->device_ops->begin(client->device, stack, layer, needs, count, out, err)
         : client->mount         ? efs_mount_begin(client->mount, stack, layer, needs, count, form, out, err)
                                 : client_begin_in_process(client->fs, stack, layer, needs, count, form, out, err);
    if (rc == 0)
        (*out)->owner = &client->owner;
    return rc;
}

/* ---- chosen and predicted experts ---- */

static errint_t client_routing(struct efs_client *client, const struct efs_routing *from, bool hint,
                               struct efs_error *err)
{
    struct efs_routing routing;
    errint_t rc = efs_client_check(client, err);
    if (rc < 0)
        return rc;
    if (!client->mount)
        return efs_routing_submit(client->fs, client->observer, hint, from, err);
    rc = efs_routing_check(from, &routing, hint, err);
    return rc < 0 ? rc : efs_mount_routing(client->mount, &routing, hint, err);
}

errint_t efs_observe(struct efs_client *client, const struct efs_routing *chosen, struct efs_error *err)
{
    return client_routing(client, chosen, false, err);
}

errint_t efs_hint(struct efs_client *client, const struct efs_routing *guessed, struct efs_error *err)
{
    struct efs_routing routing;
    errint_t rc = client_routing(client, guessed, true, err);
    if (client->device && rc == 0 && efs_routing_check(guessed, &routing, true, NULL) == 0)
        client->device_ops->hint(client->device, &routing);
    return rc;
}
