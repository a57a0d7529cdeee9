/* SPDX-License-Identifier: Apache-2.0 */
/* names.c - names of policies, pools, runners and schedules; parses --policy and --budget. */
#include "replay.h"

#include "expertfs-private.h"
#include "size.h"

#include <string.h>

static const char *const runner_names[REPLAY_RUNNERS] = {"simulate",   "expertfs", "mmap",    "read-lru",
                                                         "accelerate", "zero-3",   "read-lfu"};
static const char *const schedule_names[EFS_SCHEDULE_KINDS] = {"request", "paper"};
static const char *const cache_names[REPLAY_CACHES] = {
    "", "oracle", "least-stale", "layer-lfu", "fmoe", "moe-infinity", "dali-printed", "dali", "accelerate", "zero-3"};
static const char *const pools_names[REPLAY_POOLS] = {"io", "makespan", "coded", "even", "full", "raw"};

const char *replay_runner_name(enum replay_runner runner)
{
    return runner_names[runner];
}

const char *replay_schedule_name(enum efs_schedule_kind kind)
{
    return schedule_names[kind];
}

const char *replay_pools_name(enum replay_pools pools)
{
    return pools_names[pools];
}

static enum replay_pools pools_by_name(const char *name)
{
    unsigned p = 0;
    while (p < REPLAY_POOLS && strcmp(pools_names[p], name) != 0)
        p++;
    return (enum replay_pools)p;
}

bool replay_policy_parse(const char *text, struct replay_policy *policy)
{
    const char *colon = strchr(text, ':');
    size_t bytes = colon ? (size_t)(colon - text) : strlen(text);
    *policy = (struct replay_policy){.pools = REPLAY_POOLS};
    if (bytes == 0 || bytes >= sizeof(policy->name))
        return false;
    memcpy(policy->name, text, bytes);
    policy->published = strcmp(policy->name, "published") == 0;
    policy->kind = policy->published ? EFS_POLICY_ZIPMOE : efs_policy_by_name(policy->name);
    for (unsigned k = REPLAY_CACHE_NONE + 1; k < REPLAY_CACHES; k++)
        if (strcmp(policy->name, cache_names[k]) == 0)
            policy->cache = (enum replay_cache_kind)k;
    if (policy->cache != REPLAY_CACHE_NONE) {
        policy->pools = policy->cache >= REPLAY_CACHE_ACCELERATE ? REPLAY_RAW : REPLAY_CODED;
        return !colon;
    }
    if (policy->kind == EFS_POLICY_KINDS)
        return false;
    if (!colon)
        policy->pools = policy->kind == EFS_POLICY_ZIPMOE ? REPLAY_IO : REPLAY_CODED;
    if (colon)
        policy->pools = pools_by_name(colon + 1);
    return policy->pools != REPLAY_POOLS;
}

bool replay_budget_parse(const char *text, double raw_bytes, uint64_t *bytes)
{
    char number[32];
    size_t length = strlen(text);
    double percent;
    if (text[0] == '\0' || text[length - 1] != '%')
        return efs_parse_size(text, bytes) == 0 && *bytes > 0 && (double)*bytes <= 1e17;
    if (length > sizeof(number))
        return false;
    memcpy(number, text, length - 1);
    number[length - 1] = '\0';
    if (!tools_decimal_parse(number, 0, 100, &percent) || percent == 0)
        return false;
    *bytes = (uint64_t)(raw_bytes * percent / 100);
    return true;
}
