/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_tune.c - the budget cut into pools, and what a user changes while the store is served.
 *
 * The budget is: what is fixed, a segment or two for chunks on their way, as much as leases on experts outside of F
 * held at once, lately, and the rest for the pools. F is memfds; C, S and E share the chunk pool, of which blocks of
 * differing sizes leave some unused.
 */
#include "cache.h"

#include <errno.h>
#include <string.h>

#define PASSING_SHARE 64 /* of the memory for chunks that are read, decoded and not kept: a segment or two */
#define CHUNK_FILL 0.97  /* of the chunk pool can be used, as blocks do not fit seamlessly */
#define LEASED_SHARE 2   /* leases may take component of the pools' memory before they must wait for it */
#define RATIO_ROUND (1.0 + 1e-9)

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* What is kept free for full experts that are leased but not kept. */
static uint64_t for_leases(const struct efs *fs, uint64_t available)
{
    const struct efs_cache *r = fs->cache;
    uint64_t most = available / LEASED_SHARE;
    return !fs->options.full_pool ? 0 : r->leased_peak_bytes < most ? r->leased_peak_bytes : most;
}

void efs_cache_resize(struct efs *fs)
{
    struct efs_cache *r = fs->cache;
    const struct efs_move *moves;
    size_t count;
    uint64_t segment = fs->arena.segment_bytes, available = less(fs->options.budget_bytes, fs->fixed_bytes);
    uint64_t leases = for_leases(fs, available), passing = available / PASSING_SHARE > segment ? 2 : 1;
    r->pools_bytes = less(available, passing * segment + leases);
    uint64_t capacity[EFS_POOLS], chunks = 0;
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        double bytes = r->tuning.ratio[p] * (double)r->pools_bytes;
        capacity[p] = (uint64_t)(p == EFS_POOL_F ? bytes : bytes * CHUNK_FILL);
        chunks += p == EFS_POOL_F ? 0 : (uint64_t)bytes;
    }
    fs->planned_segments = (chunks + segment - 1) / segment + passing;
    if (fs->planned_segments * segment > available)
        fs->planned_segments = available / segment;
    if (fs->planned_segments < fs->floor_segments)
        fs->planned_segments = fs->floor_segments;
    if (r->policy) {
        efs_policy_resize(r->policy, capacity, NULL, &moves, &count);
        efs_cache_apply(fs, moves, count);
    }
    efs_budget_shrink(fs);
    efs_again(fs, EFS_AGAIN_LEASES); /* there may be more room now */
    efs_again(fs, EFS_AGAIN_CODED);
}

void efs_cache_set_budget(struct efs *fs, uint64_t bytes)
{
    efs_budget_set(fs, bytes);
    efs_cache_resize(fs);
    efs_again(fs, EFS_AGAIN_EXTENTS);
}

/* ---- another policy ---- */

static void take_over(struct efs_cache *r, struct efs_policy *from, struct efs_policy *to, uint32_t *counts)
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
            for (uint32_t n = 0; n < r->expert[e].holds; n++)
                efs_policy_pin(to, l, index);
        }
    }
}

errint_t efs_cache_set_policy(struct efs *fs, const enum efs_policy_kind *kind, const double *delta)
{
    struct efs_cache *r = fs->cache;
    for (;;) {
        struct efs_policy *from, *to;
        efs_lock(fs);
        from = r->policy;
        struct efs_policy_config config = r->config;
        double threshold = delta ? *delta : r->tuning.delta;
        efs_unlock(fs);
        if (!from)
            return 0;
        config.kind = kind ? *kind : config.kind;
        config.tuning.published = threshold >= 0;
        config.tuning.delta = threshold >= 0 ? threshold : 0;
        errint_t rc = efs_policy_new(&config, &to);
        if (rc < 0)
            return rc;
        efs_lock(fs);
        bool done = r->policy == from; /* else another came between: once more, from that */
        if (done) {
            take_over(r, from, to, r->ids);
            r->policy = to;
            r->config = config;
            r->tuning.policy = config.kind;
            r->tuning.delta = threshold;
            efs_cache_resize(fs);
        }
        efs_unlock(fs);
        efs_policy_free(done ? from : to);
        if (done)
            return 0;
    }
}

void efs_cache_pin(struct efs *fs, uint32_t expert, enum efs_pool pool)
{
    const struct efs_cache_expert *x = &fs->cache->expert[expert];
    if (fs->cache->policy)
        efs_policy_user_pin(fs->cache->policy, x->layer, x->index, pool);
}
