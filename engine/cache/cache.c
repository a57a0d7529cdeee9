/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c - see cache.h: requests, and the moves that they lead to. */
#include "cache.h"
#include "stats.h"

#include "record.h"
#include "sys.h"
#include "extent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEASE_PEAK_PERIOD 1024u /* requests */

/* ---- the cache state ---- */

/* Sets the bytes of an expert in each pool; 1 byte where the expert has no such component. */
static void cache_expert_bytes(const struct efs *fs, uint32_t expert, uint64_t bytes[EFS_POOLS])
{
    uint64_t e = 0, sm = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        e += efs_extent_alloc_bytes(fs, efs_extent(fs, i), EFS_COMPONENT_E);
        sm += efs_extent_alloc_bytes(fs, efs_extent(fs, i), EFS_COMPONENT_SM);
    }
    bytes[EFS_POOL_F] = efs_page_up(efs_view_expert_bytes(&fs->view, expert));
    bytes[EFS_POOL_C] = e + sm ? e + sm : 1;
    bytes[EFS_POOL_S] = sm ? sm : 1;
    bytes[EFS_POOL_E] = e ? e : 1;
}

/* Experts are sorted by (stack, layer): each run of the same is a layer of the policy. */
static bool cache_same_layer(const struct efs_store *store, const struct efs_disk_group *a,
                             const struct efs_disk_group *b)
{
    return a->layer == b->layer && a->stack_bytes == b->stack_bytes &&
           memcmp(store->strings + a->stack_offset, store->strings + b->stack_offset, a->stack_bytes) == 0;
}

static void cache_index_layers(struct efs_cache *r, const struct efs_store *store)
{
    for (uint32_t e = 0; e < store->expert_count; e++) {
        if (e == 0 || !cache_same_layer(store, &store->groups[e - 1], &store->groups[e]))
            r->layer_first[r->layers++] = e;
        struct efs_cache_expert *x = &r->expert[e];
        x->layer = r->layers - 1;
        x->index = e - r->layer_first[x->layer];
        r->width = x->index + 1 > r->width ? x->index + 1 : r->width;
    }
    r->layer_first[r->layers] = store->expert_count;
}

uint64_t efs_cache_bytes(const struct efs_store *store)
{
    /* 320: tables of the policy and histories of the plan thread, per expert */
    return sizeof(struct efs_cache) + (uint64_t)store->expert_count * (sizeof(struct efs_cache_expert) + 320);
}

static errint_t cache_new_policy(const struct efs_cache *r, enum efs_policy_kind kind, struct efs_policy **policy)
{
    const struct efs_policy_config config = {.kind = kind,
                                             .layers = r->layers,
                                             .experts = r->width,
                                             .chosen = EFS_CACHE_CHOSEN,
                                             .bytes = (const uint64_t(*)[EFS_POOLS])r->bytes,
                                             .recode = true,
                                             .seed = 1};
    return efs_policy_new(&config, policy);
}

errint_t efs_cache_build(struct efs *fs, struct efs_error *err)
{
    const struct efs_store *store = fs->store;
    struct efs_cache *r = fs->cache = efs_sys_calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "%s: no memory for the cache state", store->path);
    r->tuning =
        (struct efs_cache_tuning){.pools = EFS_PLAN_ALL_POOLS, .goal = EFS_PLAN_IO, .ratio = {[EFS_POOL_C] = 1}};
    if (store->expert_count == 0)
        return 0;
    r->layer_first = efs_sys_calloc(store->expert_count + 1u, sizeof(*r->layer_first));
    r->expert = efs_sys_calloc(store->expert_count, sizeof(*r->expert));
    if (r->layer_first && r->expert)
        cache_index_layers(r, store);
    efs_record_layers(fs, r->layers, r->width);
    r->bytes = efs_sys_calloc((size_t)r->layers * r->width + 1, sizeof(*r->bytes));
    r->placements = efs_sys_calloc(r->width + 1u, sizeof(*r->placements));
    r->ids = efs_sys_calloc(r->width + 1u, sizeof(*r->ids));
    r->tokens = efs_sys_calloc(r->width + 1u, sizeof(*r->tokens));
    if (!r->layer_first || !r->expert || !r->bytes || !r->placements || !r->ids || !r->tokens)
        return efs_fail(err, -ENOMEM, "%s: no memory for the cache state", store->path);
    for (uint32_t e = 0; e < store->expert_count; e++)
        cache_expert_bytes(fs, e, r->bytes[(size_t)r->expert[e].layer * r->width + r->expert[e].index]);
    errint_t rc = cache_new_policy(r, EFS_POLICY_ZIPMOE, &r->policy);
    if (rc == -EINVAL) { /* more layers or experts than a policy supports: eviction is LRU then */
        efs_log(fs, EFS_LOG_WARNING, "%s: too many experts to plan for; what is used last stays", store->path);
        return 0;
    }
    if (rc == 0 && fs->options.local) {
        r->missed = efs_sys_calloc(r->width + 1u, sizeof(*r->missed));
        rc = r->missed ? cache_new_policy(r, EFS_POLICY_ZIPMOE, &r->local) : -ENOMEM;
    }
    return rc < 0 ? efs_fail(err, rc, "%s: no memory for the cache policy", store->path) : 0;
}

void efs_cache_destroy(struct efs *fs)
{
    struct efs_cache *r = fs->cache;
    if (!r)
        return;
    efs_policy_free(r->policy);
    efs_policy_free(r->local);
    free(r->missed);
    free(r->tokens);
    free(r->ids);
    free(r->placements);
    free(r->bytes);
    free(r->expert);
    free(r->layer_first);
    free(r);
    fs->cache = NULL;
}

/* ---- moves ---- */

/* Protects the components of pool `to` from eviction; queues a demotion if they are missing. */
static void cache_apply_target(struct efs *fs, uint32_t expert, enum efs_pool to)
{
    efs_cache_protect(fs, expert, to);
    efs_demote(fs, expert);
}

/* Applies moves of the policy to memory. Evicts nothing: that would change the policy and its array of moves. */
static void cache_apply(struct efs *fs, const struct efs_move *moves, size_t count)
{
    const struct efs_cache *r = fs->cache;
    for (size_t i = 0; i < count; i++) {
        cache_apply_target(fs, r->layer_first[moves[i].layer] + moves[i].expert, (enum efs_pool)moves[i].to);
        efs_count(fs->stats, demotions, moves[i].to != EFS_POOL_M);
    }
}

static void cache_set_pool(struct efs *fs, uint32_t expert, enum efs_pool pool)
{
    struct efs_cache *r = fs->cache;
    efs_policy_set(r->policy, r->expert[expert].layer, r->expert[expert].index, pool);
    cache_apply_target(fs, expert, pool);
}

/* ---- requests ---- */

/* Counts the form in which an expert was found, and the bytes that need not be read. */
static void cache_count_hit(struct efs *fs, uint32_t expert)
{
    struct efs_cache *r = fs->cache;
    char state = efs_cache_state(fs, expert);
    enum efs_pool pool = efs_cache_state_pool(state);
    const uint64_t *bytes = efs_cache_expert_bytes(fs, expert);
    r->hits[pool]++;
    r->partial[pool] += state == 'S' || state == 'E' || state == 'P';
    r->saved_bytes[pool] += pool == EFS_POOL_M ? 0 : pool == EFS_POOL_F ? bytes[EFS_POOL_C] : bytes[pool];
    efs_count(fs->stats, requests_f, state == 'F');
    efs_count(fs->stats, requests_c, state == 'C');
    efs_count(fs->stats, requests_s, state == 'S');
    efs_count(fs->stats, requests_e, state == 'E');
    efs_count(fs->stats, requests_p, state == 'P');
    efs_count(fs->stats, requests_m, state == 'M');
}

/* The policy of the local copy gets the requests that memory does not answer. With the ranks of all requests the copy
 * would hold what memory holds: behind a memory for 40 % of the experts none of its hits is left (gpt-oss, 30 %). */
static void cache_request_local(struct efs_cache *r, const struct efs_uses *uses)
{
    uint32_t count = 0;
    for (uint32_t i = 0; r->local && i < uses->count; i++) {
        enum efs_pool pool = efs_policy_state(r->policy, uses->layer, uses->ids[i]);
        if (pool != EFS_POOL_F && pool != EFS_POOL_C)
            r->missed[count++] = uses->ids[i];
    }
    if (!r->local || efs_policy_request(r->local, uses->layer, r->missed, count, r->placements) < 0)
        return;
    for (uint32_t i = 0; i < count; i++)
        efs_policy_unpin(r->local, uses->layer, r->missed[i]);
    r->local_known = r->local_known || count > 0;
}

void efs_cache_place(struct efs *fs, const struct efs_uses *uses)
{
    struct efs_cache *r = fs->cache;
    const struct efs_move *moves;
    size_t move_count;
    uint64_t begin = efs_now_ns();
    if (r->policy)
        cache_request_local(r, uses);
    if (!r->policy || efs_policy_request(r->policy, uses->layer, uses->ids, uses->count, r->placements) < 0)
        return;
    efs_policy_admit(r->policy, uses->layer, r->placements, uses->count, &moves, &move_count);
    efs_count(fs->stats, policy_ns, efs_now_ns() - begin);
    if (++r->requests % LEASE_PEAK_PERIOD == 0) { /* leased_peak_bytes covers the last two periods */
        r->leased_peak_bytes = r->leased_recent_bytes;
        r->leased_recent_bytes = 0;
    }
    cache_apply(fs, moves, move_count);
    for (uint32_t i = 0; i < uses->count; i++) {
        uint32_t expert = r->layer_first[uses->layer] + r->placements[i].expert;
        enum efs_pool target = (enum efs_pool)r->placements[i].target;
        /* without a lease no full form is made */
        if (target == EFS_POOL_F && !uses->full && fs->full->at[expert].state != EFS_FULL_READY)
            cache_set_pool(fs, expert, EFS_POOL_C);
        else
            cache_apply_target(fs, expert, target);
    }
    for (uint32_t i = 0; i < uses->count && !uses->full; i++)
        efs_policy_unpin(r->policy, uses->layer, uses->ids[i]);
}

/* Whether the expert was requested AHEAD and not used since: its next use is counted already. */
static bool cache_was_counted_ahead(const struct efs_cache_expert *x)
{
    return x->pass == 0 && x->left_bytes != 0;
}

void efs_cache_request(struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_use_kind kind,
                       struct efs_uses *uses)
{
    struct efs_cache *r = fs->cache;
    *uses = (struct efs_uses){.layer = r->expert[needs[0].expert].layer,
                              .ids = r->ids,
                              .tokens = r->tokens,
                              .full = kind != EFS_USE_AHEAD,
                              .named = kind != EFS_USE_OPENED};
    for (uint32_t i = 0; i < count; i++) {
        struct efs_cache_expert *x = &r->expert[needs[i].expert];
        x->pins += uses->full;
        x->touches++;
        if (kind == EFS_USE_AHEAD) {
            x->pass = 0;
            x->left_bytes = efs_cache_expert_bytes(fs, needs[i].expert)[EFS_POOL_F];
        } else if (cache_was_counted_ahead(x)) {
            x->left_bytes = 0;
            if (r->policy)
                efs_policy_pin(r->policy, x->layer, x->index);
            continue;
        }
        cache_count_hit(fs, needs[i].expert);
        r->tokens[uses->count] = needs[i].tokens;
        r->ids[uses->count++] = x->index;
    }
}

/* Lets the policy demote or drop experts above the sizes of the pools. Needs a policy. */
static void cache_fit(struct efs *fs)
{
    const struct efs_move *moves;
    size_t count;
    efs_policy_fit(fs->cache->policy, &moves, &count);
    cache_apply(fs, moves, count);
}

void efs_cache_release(struct efs *fs, uint32_t expert)
{
    struct efs_cache_expert *x = &fs->cache->expert[expert];
    bool some;
    x->pins--;
    if (!fs->cache->policy)
        return;
    efs_policy_unpin(fs->cache->policy, x->layer, x->index);
    if (x->pins > 0)
        return;
    /* in F by the policy, but requested coded, or without room */
    if (fs->full->at[expert].state == EFS_FULL_NONE && efs_cache_target(fs, expert) == EFS_POOL_F)
        cache_set_pool(fs, expert, efs_extents_resident(fs, expert, &some) == EFS_BOTH ? EFS_POOL_C : EFS_POOL_M);
    cache_fit(fs); /* a pinned expert is not moved when its pool is reduced */
}

/*
 * Whether a read starts another use of the expert: its first read in a pass, or a read after all of its bytes were
 * read. A pass ends at a read 2 or more layers before the previous one (1 or more if the store has at most 2 layers).
 */
static bool cache_is_another_use(struct efs *fs, uint32_t expert, uint64_t bytes)
{
    struct efs_cache *r = fs->cache;
    struct efs_cache_expert *x = &r->expert[expert];
    if (x->layer + 2 <= r->pass_layer || (r->layers <= 2 && x->layer < r->pass_layer))
        r->pass++;
    r->pass_layer = x->layer;
    bool another = x->pass != r->pass + 1 || x->left_bytes == 0;
    if (another)
        x->left_bytes = efs_cache_expert_bytes(fs, expert)[EFS_POOL_F];
    x->pass = r->pass + 1;
    x->left_bytes -= bytes < x->left_bytes ? bytes : x->left_bytes;
    return another;
}

void efs_cache_read(struct efs *fs, uint32_t expert, uint64_t bytes, struct efs_uses *uses)
{
    struct efs_cache *r = fs->cache;
    struct efs_cache_expert *x = &r->expert[expert];
    *uses = (struct efs_uses){.layer = x->layer, .ids = r->ids};
    bool counted = cache_was_counted_ahead(x); /* of any pass: requests may be a pass ahead of reads */
    if (!cache_is_another_use(fs, expert, bytes))
        return;
    x->touches++;
    if (counted)
        return;
    cache_count_hit(fs, expert);
    r->ids[uses->count++] = x->index;
}

/* Updates the peak of leased bytes, which plans leave free: leases take memory from the pools while they are held. */
void efs_cache_leased(struct efs *fs)
{
    struct efs_cache *r = fs->cache;
    r->leases++;
    if (fs->full->leased_evictable_bytes > r->leased_recent_bytes)
        r->leased_recent_bytes = fs->full->leased_evictable_bytes;
    if (fs->full->leased_evictable_bytes > r->leased_peak_bytes)
        r->leased_peak_bytes = fs->full->leased_evictable_bytes;
}

/* ---- changes of the policy's settings while the store is served ---- */

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
    struct efs_policy *policy;
    errint_t rc = cache_new_policy(r, kind, &policy);
    if (rc < 0)
        return rc == -EINVAL ? 0 : rc; /* -EINVAL: the store has no policy */
    efs_lock(fs);
    struct efs_policy *from = r->policy;
    policy_copy_state(r, from, policy, r->ids);
    r->policy = policy;
    r->tuning.policy = kind;
    efs_unlock(fs);
    efs_policy_free(from);
    return 0;
}

void efs_cache_user_pin(struct efs *fs, uint32_t expert, enum efs_pool pool)
{
    const struct efs_cache_expert *x = &fs->cache->expert[expert];
    if (!fs->cache->policy)
        return;
    efs_policy_user_pin(fs->cache->policy, x->layer, x->index, pool);
    if (pool == EFS_POOL_M)
        cache_fit(fs);
}

bool efs_cache_keep(struct efs *fs, uint32_t expert)
{
    const struct efs_cache_expert *x = &fs->cache->expert[expert];
    const struct efs_move *moves;
    size_t count;
    enum efs_pool pool = efs_policy_keep(fs->cache->policy, x->layer, x->index, &moves, &count);
    cache_apply(fs, moves, count);
    cache_apply_target(fs, expert, pool);
    return pool <= EFS_POOL_C;
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
    cache_apply(fs, moves, count);
}
