/* SPDX-License-Identifier: Apache-2.0 */
/* run_values.c - see run_values.h. */
#include "run_values.h"

#include "expertfs-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* EXPERTFS_BUDGET in bytes; 0: not set, empty or auto. */
static errint_t budget_read(uint64_t *bytes, struct efs_error *err)
{
    const char *budget = getenv("EXPERTFS_BUDGET");
    *bytes = 0;
    if (!budget || !*budget || strcmp(budget, "auto") == 0 || (efs_parse_size(budget, bytes) == 0 && *bytes > 0))
        return 0;
    return efs_fail(err, -EINVAL, "EXPERTFS_BUDGET=%s is no size; one is written 8G, 512M, auto", budget);
}

errint_t ctl_run_values_check(struct efs_error *err)
{
    const char *prefetch = getenv("EXPERTFS_PREFETCH");
    struct efs_error why = {""};
    uint64_t bytes;
    errint_t rc = budget_read(&bytes, err);
    if (rc == 0 && prefetch && *prefetch &&
        (rc = efs_tunable_check(&efs_tunables[EFS_TUNE_prefetch], prefetch, &why)) < 0)
        efs_fail(err, rc, "EXPERTFS_PREFETCH: %s", why.text);
    return rc;
}

errint_t ctl_run_values_check_store(const char *source, bool backend, struct efs_error *err)
{
    struct efs_client_options options = {.coded_only = true, .no_state = true};
    struct efs_client *client;
    struct efs_store *store;
    struct efs_error why = {""};
    errint_t rc = efs_store_open(source, &store, err);
    if (rc < 0)
        return rc;
    efs_store_close(store);
    if (!backend || budget_read(&options.budget_bytes, &why) < 0 || options.budget_bytes == 0)
        return 0;
    rc = efs_client_open(source, &options, &client, &why);
    if (rc < 0)
        return efs_fail(err, rc, "EXPERTFS_BUDGET: %s", why.text);
    efs_client_close(client);
    return 0;
}
