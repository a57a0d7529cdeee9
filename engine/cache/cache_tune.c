/* SPDX-License-Identifier: Apache-2.0 */
/* cache_tune.c - changes of the policy's settings while the store is served. */
#include "cache.h"

#include <errno.h>
#include <string.h>

static void policy_copy_state(struct efs_cache *r, struct efs_policy *from, struct efs_policy *to, uint32_t *counts)
{
    for (uint32_t l = 0; l < r->layers; l++) {
        uint64_t most = 1;
        for (uint32_t e = 0; e < r->width; e++) {
            counts[e] = efs_policy_count(from, l, e);
            most = counts[e] > most ? counts[e] : most;
        }
        efs_policy_seed(to, l, counts, most);
        for (uint32_t e = r->layer_first[l]; e < r->layer_first[l + 1]; e++) {
            uint32_t index = r->expert[e].index;
            efs_policy_user_pin(to, l, index, efs_policy_user_pinned(from, l, index));
            efs_policy_set(to, l, index, efs_policy_state(from, l, index));
            for (uint32_t n = 0; n < r->expert[e].pins; n++)
                efs_policy_pin(to, l, index);
        }
    }
}

errint_t efs_cache_set_policy(struct efs *fs, enum efs_policy_kind kind)
{
    struct efs_cache *r = fs->cache;
    for (;;) {
        struct efs_policy *from, *to;
        efs_lock(fs);
        from = r->policy;
        struct efs_policy_config config = r->config;
        efs_unlock(fs);
        if (!from)
            return 0;
        config.kind = kind;
        errint_t rc = efs_policy_new(&config, &to);
        if (rc < 0)
            return rc;
        efs_lock(fs);
        bool done = r->policy == from; /* false: another thread changed the policy; retry */
        if (done) {
            policy_copy_state(r, from, to, r->ids);
            r->policy = to;
            r->config = config;
            r->tuning.policy = config.kind;
        }
        efs_unlock(fs);
        efs_policy_free(done ? from : to);
        if (done)
            return 0;
    }
}

void efs_cache_user_pin(struct efs *fs, uint32_t expert, enum efs_pool pool)
{
    const struct efs_cache_expert *x = &fs->cache->expert[expert];
    if (!fs->cache->policy)
        return;
    efs_policy_user_pin(fs->cache->policy, x->layer, x->index, pool);
    if (pool == EFS_POOL_M)
        efs_cache_fit(fs);
}

void efs_cache_resize(struct efs *fs, uint64_t pools_bytes, const uint64_t capacity_bytes[EFS_POOLS])
{
    struct efs_cache *r = fs->cache;
    const struct efs_move *moves;
    size_t count;
    r->pools_bytes = pools_bytes;
    if (!r->policy)
        return;
    efs_policy_resize(r->policy, capacity_bytes, &moves, &count);
    efs_cache_apply(fs, moves, count);
}

void efs_cache_seed(struct efs *fs, uint32_t layer, const uint32_t *counts, uint64_t passes)
{
    efs_policy_seed(fs->cache->policy, layer, counts, passes);
}
