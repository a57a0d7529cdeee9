/* SPDX-License-Identifier: Apache-2.0 */
/* run_values.c - see run_values.h. */
#include "run_values.h"

#include "device_slots.h"
#include "expertfs-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A variable in bytes; 0: not set, empty or auto. */
static errint_t size_read(const char *name, uint64_t *bytes, struct efs_error *err)
{
    const char *size = getenv(name);
    *bytes = 0;
    if (!size || !*size || strcmp(size, "auto") == 0 || (efs_parse_size(size, bytes) == 0 && *bytes > 0))
        return 0;
    return efs_fail(err, -EINVAL, "%s=%s is no size; one is written 8G, 512M, auto", name, size);
}

/* EXPERTFS_DEVICE and, if it names a device, the settings of its slots. */
static errint_t device_check(struct efs_error *err)
{
    const char *device = getenv("EXPERTFS_DEVICE"), *share = getenv("EXPERTFS_DEVICE_SHARE"),
               *policy = getenv("EXPERTFS_DEVICE_POLICY");
    uint64_t bytes;
    if (!device || !*device || strcmp(device, "none") == 0)
        return 0;
    if (strcmp(device, "CPU") == 0)
        return efs_fail(err, -EINVAL, "EXPERTFS_DEVICE=CPU: the processor is no device");
    for (const char *c = device; *c; c++)
        if (*c <= ' ' || *c > '~' || *c == ',')
            return efs_fail(err, -EINVAL, "EXPERTFS_DEVICE=%s: is no name of one device; one is written CUDA0, auto",
                            device);
    if (share && *share && strcmp(share, "on") != 0 && strcmp(share, "greedy") != 0 && strcmp(share, "off") != 0)
        return efs_fail(err, -EINVAL, "EXPERTFS_DEVICE_SHARE=%s is none of on, greedy, off", share);
    if (efs_device_rule_by_name(policy) == EFS_DEVICE_RULES)
        return efs_fail(err, -EINVAL, "EXPERTFS_DEVICE_POLICY=%s is none of " EFS_DEVICE_RULE_NAMES, policy);
    return size_read("EXPERTFS_DEVICE_BUDGET", &bytes, err);
}

/* EXPERTFS_PEERS, HOST:PORT,..., and its key. */
static errint_t peers_check(struct efs_error *err)
{
    const char *peers = getenv("EXPERTFS_PEERS"), *key = getenv("EXPERTFS_PEER_KEY");
    struct efs_error why = {""};
    errint_t rc = 0;
    if (!peers || !*peers)
        return 0;
    for (const char *at = peers; *at && rc == 0; at += strspn(at, ",")) {
        const size_t bytes = strcspn(at, ",");
        char *address = strndup(at, bytes);
        rc = address ? efs_peer_check(address, &why) : efs_fail(&why, -ENOMEM, "no memory");
        free(address);
        at += bytes;
    }
    if (rc < 0)
        return efs_fail(err, rc, "EXPERTFS_PEERS: %s", why.text);
    if (!key || !*key)
        return efs_fail(err, -EINVAL, "EXPERTFS_PEERS needs EXPERTFS_PEER_KEY, the file with their key");
    return access(key, R_OK) < 0 ? efs_fail(err, -errno, "EXPERTFS_PEER_KEY=%s: %s", key, strerror(errno)) : 0;
}

errint_t ctl_run_values_check(struct efs_error *err)
{
    const char *prefetch = getenv("EXPERTFS_PREFETCH");
    struct efs_error why = {""};
    uint64_t bytes;
    errint_t rc = size_read("EXPERTFS_BUDGET", &bytes, err);
    if (rc == 0 && prefetch && *prefetch &&
        (rc = efs_tunable_check(&efs_tunables[EFS_TUNE_prefetch], prefetch, &why)) < 0)
        efs_fail(err, rc, "EXPERTFS_PREFETCH: %s", why.text);
    if (rc == 0)
        rc = device_check(err);
    return rc == 0 ? peers_check(err) : rc;
}

errint_t ctl_run_values_check_store(const char *source, bool backend, struct ctl_run_memory *memory,
                                    struct efs_error *err)
{
    struct efs_client_options options = {.coded_only = true, .no_state = true};
    struct efs_client *client;
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error why = {""};
    errint_t rc = efs_store_open(source, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info);
    efs_store_close(store);
    if (backend)
        size_read("EXPERTFS_BUDGET", &options.budget_bytes, &why);
    *memory = (struct ctl_run_memory){info.expert_coded_bytes, options.budget_bytes};
    if (options.budget_bytes == 0)
        return 0;
    rc = efs_client_open(source, &options, &client, &why);
    if (rc < 0)
        return efs_fail(err, rc, "EXPERTFS_BUDGET: %s", why.text);
    efs_client_close(client);
    return 0;
}
