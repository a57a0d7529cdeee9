/* SPDX-License-Identifier: Apache-2.0 */
/* prefetcher_queue.c - see prefetcher.h: reads what the queue selects, tracks prefetched experts until they are used or
 * dropped. */
#include "prefetcher_internal.h"

#include "budget.h"
#include "extent.h"

/* Memory for prefetched experts reduces the cache: a few experts suffice for the next layers. 0.5 % of the pools, and
 * at least two experts, of at most a tenth of the pools. */
#define SHARE 200u
#define SHARE_MOST 10u
#define NO_SEQUENCE UINT64_MAX /* not the id of any sequence */

static struct efs_prefetcher_expert *expert_of(struct efs *fs, uint32_t number)
{
    return &fs->prefetcher->experts[number];
}

static uint32_t number_of(const struct efs *fs, uint32_t layer, uint32_t expert)
{
    return efs_cache(fs)->layer_first[layer] + expert;
}

static void expert_wasted(struct efs_prefetcher *pf, struct efs_prefetcher_expert *e)
{
    if (!e->read)
        return;
    e->read = false;
    pf->scores[e->distance].wasted++;
    pf->scores[e->distance].wasted_bytes += e->bytes;
}

/* ---- actions of the queue ---- */

static void load_done(struct efs *fs, uint32_t extent, errint_t error);

/* Starts loads of the missing extents. false: none are missing, or no memory is free or evictable. With may_wait, the
 * loads are retried at the end of a growth job. */
static bool start_loads(struct efs *fs, uint32_t number, bool may_wait)
{
    struct efs_prefetcher_expert *e = expert_of(fs, number);
    e->missing = efs_extents_missing(fs, number);
    uint32_t loads = efs_extents_prefetch(fs, number, load_done);
    e->pending += (uint16_t)loads;
    e->retry = may_wait && loads == 0 && fs->growing && efs_extents_missing(fs, number);
    fs->prefetcher->retry |= e->retry;
    return loads > 0 || e->retry;
}

static void read_expert(struct efs *fs, const struct efs_prefetch_action *a)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    uint32_t number = number_of(fs, a->layer, a->expert);
    struct efs_prefetcher_expert *e = expert_of(fs, number);
    const struct efs_prefetch_action *actions;
    size_t none;
    uint64_t bytes = efs_extents_missing(fs, number);
    if (!start_loads(fs, number, true)) {
        efs_prefetch_done(pf->queue, a->layer, a->expert, false, &actions, &none);
        return;
    }
    e->read = true;
    e->observed = false;
    e->error = 0;
    e->bytes = bytes;
    pf->scores[e->distance].read++;
    pf->scores[e->distance].read_bytes += bytes;
}

/* If actions contain a read, it is the last of them. */
static void apply_actions(struct efs *fs, const struct efs_prefetch_action *actions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t number = number_of(fs, actions[i].layer, actions[i].expert);
        switch (actions[i].what) {
        case EFS_PREFETCH_READ:
            read_expert(fs, &actions[i]);
            break;
        case EFS_PREFETCH_RAISE:
            efs_extents_prefetch_raise(fs, number);
            break;
        case EFS_PREFETCH_CANCEL:
            efs_extents_prefetch_cancel(fs, number);
            expert_of(fs, number)->read &= expert_of(fs, number)->pending > 0; /* no retry */
            break;
        case EFS_PREFETCH_DROP:
            efs_extents_prefetch_drop(fs, number);
            expert_wasted(fs->prefetcher, expert_of(fs, number));
            break;
        }
    }
}

static bool expert_is_resident(const struct efs *fs, uint32_t number)
{
    char state = efs_cache_state(fs, number);
    return state == 'F' || state == 'C';
}

/* Adds an expert to the list, which may still contain it from an earlier read. */
static void add_prefetched(struct efs_prefetcher *pf, uint32_t number)
{
    uint32_t i = 0;
    while (i < pf->prefetched_count && pf->prefetched[i] != number)
        i++;
    if (i == pf->prefetched_count)
        pf->prefetched[pf->prefetched_count++] = number;
}

/* All loads of the expert have completed. */
static void expert_loaded(struct efs *fs, uint32_t number, bool may_wait)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    struct efs_prefetcher_expert *e = expert_of(fs, number);
    const struct efs_prefetch_action *actions;
    uint32_t layer = efs_cache(fs)->expert[number].layer, index = number - efs_cache(fs)->layer_first[layer];
    size_t count;
    bool resident = e->error == 0 && expert_is_resident(fs, number);
    /* Not all of it fitted into memory: load the rest, if the last attempt loaded some. */
    bool more = !may_wait || efs_extents_missing(fs, number) < e->missing;
    if (!resident && e->error == 0 && e->read && more && pf->queue && start_loads(fs, number, may_wait))
        return;
    e->read = e->read && resident && pf->queue; /* without a queue, prefetch is off and no request would take it */
    if (e->read)
        add_prefetched(pf, number);
    else
        efs_extents_prefetch_drop(fs, number);
    if (!pf->queue)
        return;
    efs_prefetch_done(pf->queue, layer, index, resident, &actions, &count);
    apply_actions(fs, actions, count);
}

static void load_done(struct efs *fs, uint32_t extent, errint_t error)
{
    uint32_t number = fs->store->objects[efs_extent(fs, extent)->object].group;
    struct efs_prefetcher_expert *e = expert_of(fs, number);
    e->error = error < 0 && e->error == 0 ? error : e->error;
    if (--e->pending == 0)
        expert_loaded(fs, number, true);
}

/* Retries loads that could not be started in the previous turn. */
static void retry_loads(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    if (!pf->retry)
        return;
    pf->retry = false;
    for (uint32_t number = 0; number < fs->store->expert_count; number++)
        if (expert_of(fs, number)->retry) {
            expert_of(fs, number)->retry = false;
            expert_loaded(fs, number, false);
        }
}

/* Removes experts from the list that were evicted or used. */
static void prune_prefetched(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    for (uint32_t i = pf->prefetched_count; i-- > 0;) {
        uint32_t number = pf->prefetched[i];
        struct efs_prefetcher_expert *e = expert_of(fs, number);
        uint32_t layer = efs_cache(fs)->expert[number].layer, index = number - efs_cache(fs)->layer_first[layer];
        if (e->read && efs_extents_missing(fs, number)) {
            efs_prefetch_evicted(pf->queue, layer, index);
            efs_extents_prefetch_drop(fs, number);
            expert_wasted(pf, e);
        }
        if (!e->read || e->pending)
            pf->prefetched[i] = pf->prefetched[--pf->prefetched_count];
    }
}

/* ---- idle reads ---- */

static void read_predictions(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    const struct efs_prefetch_demand none = {0, 0};
    const struct efs_prefetch_action *actions;
    size_t count = 1;
    efs_prefetcher_update_share(fs);
    retry_loads(fs);
    prune_prefetched(fs);
    if (!efs_extents_idle(fs))
        return;
    while (count > 0) {
        efs_prefetch_next(pf->queue, &none, &actions, &count);
        bool read = count > 0 && actions[count - 1].what == EFS_PREFETCH_READ;
        apply_actions(fs, actions, count);
        count = read ? count : 0;
    }
}

void efs_prefetcher_run_idle(struct efs *fs)
{
    if (fs->closing)
        return;
    if (fs->prefetcher->queue)
        read_predictions(fs);
    efs_prefetcher_fill(fs);
}

/* ---- predictions ---- */

void efs_prefetcher_update_share(struct efs *fs)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    uint64_t pools = efs_account_available(&fs->account), two = 2 * pf->expert_bytes;
    if (fs->account.budget_bytes == pf->budget_bytes)
        return;
    pf->budget_bytes = fs->account.budget_bytes;
    two = two < pools / SHARE_MOST ? two : pools / SHARE_MOST;
    const struct efs_prefetch_config caps = {.in_flight_bytes = pf->expert_bytes,
                                             .resident_bytes = pools / SHARE > two ? pools / SHARE : two};
    efs_prefetch_set_caps(pf->queue, &caps);
    if (caps.resident_bytes == fs->account.prefetch_bytes)
        return;
    efs_budget_set_prefetch(fs, caps.resident_bytes);
    efs_budget_cut(fs);
}

void efs_prefetcher_submit(struct efs *fs, uint64_t sequence, int64_t now, uint32_t count)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    unsigned taken = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct efs_prefetch_prediction p = pf->predictions[i];
        uint32_t number = number_of(fs, p.layer, p.expert);
        if (!expert_of(fs, number)->read)
            expert_of(fs, number)->distance = pf->distances[i];
        p.bytes = efs_full_of(fs, number)->state == EFS_FULL_NONE ? efs_extents_missing(fs, number) : 0;
        if (p.bytes > 0 && p.due > now && p.worth >= EFS_PREFETCHER_LEAST)
            pf->predictions[taken++] = p;
    }
    efs_prefetch_offer(pf->queue, sequence, now < 0 ? 0 : now, pf->predictions, taken);
}

/* ---- requests ---- */

/* The experts of a layer are requested, by any program or observed in a sequence: their predictions end, and others may
 * be read. */
static void predictions_end(struct efs *fs, uint64_t sequence, int64_t now, uint32_t layer, const uint16_t *ids,
                            uint32_t count)
{
    const struct efs_prefetch_action *actions;
    size_t n;
    if (efs_prefetch_requested(fs->prefetcher->queue, sequence, now, layer, ids, count, &actions, &n) == 0)
        apply_actions(fs, actions, n);
    efs_changed(fs, EFS_CHANGED_PREDICTIONS);
}

void efs_prefetcher_count_request(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = number_of(fs, layer, ids[i]);
        struct efs_prefetcher_expert *e = expert_of(fs, number);
        bool resident = expert_is_resident(fs, number);
        if (!resident || e->read)
            pf->missed++;
        if (e->read && resident)
            pf->scores[e->distance].covered++;
        else if (e->read && e->pending)
            pf->scores[e->distance].late++;
        else
            expert_wasted(pf, e);
        e->read = false;
        pf->ids[i] = (uint16_t)ids[i];
    }
    predictions_end(fs, NO_SEQUENCE, 0, layer, pf->ids, count);
}

/* Drops prefetched experts that the sequence chose in this layer (EFS_NONE: in any) for its previous token, and that no
 * request has taken: the queue believes that they were used, and would not drop them. */
static void observed_expire(struct efs *fs, uint64_t sequence, uint32_t layer)
{
    struct efs_prefetcher *pf = fs->prefetcher;
    for (uint32_t i = 0; i < pf->prefetched_count; i++) {
        struct efs_prefetcher_expert *e = expert_of(fs, pf->prefetched[i]);
        bool passed = layer == EFS_NONE || efs_cache(fs)->expert[pf->prefetched[i]].layer == layer;
        if (!e->read || e->pending || !e->observed || e->observer != sequence || !passed)
            continue;
        efs_extents_prefetch_drop(fs, pf->prefetched[i]);
        expert_wasted(pf, e);
    }
}

void efs_prefetcher_layer_observed(struct efs *fs, uint64_t sequence, int64_t now, uint32_t layer, const uint16_t *ids,
                                   uint32_t count)
{
    observed_expire(fs, sequence, layer);
    predictions_end(fs, sequence, now, layer, ids, count);
    for (uint32_t i = 0; i < count; i++) {
        struct efs_prefetcher_expert *e = expert_of(fs, number_of(fs, layer, ids[i]));
        e->observed = e->read;
        e->observer = sequence;
    }
}

void efs_prefetcher_sequence_ended(struct efs *fs, uint64_t sequence)
{
    const struct efs_prefetch_action *actions;
    size_t n;
    observed_expire(fs, sequence, EFS_NONE);
    efs_prefetch_end(fs->prefetcher->queue, sequence, &actions, &n);
    apply_actions(fs, actions, n);
}
