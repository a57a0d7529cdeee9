/* SPDX-License-Identifier: Apache-2.0 */
/* offload_device.c - which device of ggml experts go to, by the environment. */
#include "offload.h"

#include "expertfs-private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The device of that name, which is not the processor; "auto": the graphics processor with most free memory. NULL:
 * none; then `names` lists those that there are. */
static ggml_backend_dev_t find_device(const char *name, char *names, size_t size)
{
    const bool any = strcmp(name, "auto") == 0;
    ggml_backend_dev_t best = NULL;
    size_t most = 0;
    *names = '\0';
    for (size_t i = 0; i < efsg_host.dev_count(); i++) {
        ggml_backend_dev_t device = efsg_host.dev_get(i);
        const enum ggml_backend_dev_type type = device->iface.get_type(device);
        const char *own = device->iface.get_name(device);
        if (type != GGML_BACKEND_DEVICE_TYPE_GPU && type != GGML_BACKEND_DEVICE_TYPE_IGPU)
            continue;
        if (strcmp(own, name) == 0)
            return device;
        if (any && type == GGML_BACKEND_DEVICE_TYPE_GPU) {
            size_t left = 0, total = 0;
            device->iface.get_memory(device, &left, &total);
            best = !best || left > most ? device : best;
            most = left > most ? left : most;
        }
        const size_t length = strlen(names);
        snprintf(names + length, size - length, "%s%s", length ? ", " : "", own);
    }
    return best;
}

const char *efsg_device_wanted(void)
{
    const char *name = getenv("EXPERTFS_DEVICE");
    char names[512];
    if (!name || !*name || strcmp(name, "none") == 0)
        return NULL;
    if (strcmp(name, "auto") == 0 && (!efsg_host_has_devices() || !find_device(name, names, sizeof(names))))
        return NULL;
    return name;
}

void offload_choose(struct efsg_offload *o, const char *name)
{
    const char *budget = getenv("EXPERTFS_DEVICE_BUDGET"), *share = getenv("EXPERTFS_DEVICE_SHARE"),
               *policy = getenv("EXPERTFS_DEVICE_POLICY");
    char names[512];
    uint64_t bytes = 0;
    if (budget && *budget && strcmp(budget, "auto") != 0 && (efs_parse_size(budget, &bytes) < 0 || bytes == 0)) {
        efsg_log(GGML_LOG_LEVEL_ERROR, "EXPERTFS_DEVICE_BUDGET=%s is no size; one is written 8G, 512M, auto", budget);
        return;
    }
    const bool greedy = share && strcmp(share, "greedy") == 0;
    o->costs[0].greedy = o->costs[1].greedy = greedy;
    o->shares = greedy || !share || !*share || strcmp(share, "on") == 0;
    if (!o->shares && strcmp(share, "off") != 0) {
        efsg_log(GGML_LOG_LEVEL_ERROR, "EXPERTFS_DEVICE_SHARE=%s is none of on, greedy, off", share);
        return;
    }
    o->rule = efs_device_rule_by_name(policy);
    if (o->rule == EFS_DEVICE_RULES) {
        efsg_log(GGML_LOG_LEVEL_ERROR, "EXPERTFS_DEVICE_POLICY=%s is none of " EFS_DEVICE_RULE_NAMES, policy);
        return;
    }
    if (!efsg_host_has_devices()) {
        efsg_log(GGML_LOG_LEVEL_WARN, "EXPERTFS_DEVICE=%s: this ggml exports no functions for devices", name);
        return;
    }
    o->budget_bytes = bytes;
    o->device = find_device(name, names, sizeof(names));
    if (!o->device)
        efsg_log(GGML_LOG_LEVEL_ERROR, "EXPERTFS_DEVICE=%s: no such device; ggml has %s", name,
                 *names ? names : "none besides the processor");
}
