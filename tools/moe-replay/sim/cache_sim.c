/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_sim.c - see cache_sim.h. Each policy assigns a worth to an expert; the expert with the least worth is evicted.
 *
 *     oracle        Belady's policy with bypass: knows the whole trace; evicts the expert whose next use is latest
 *     least-stale   first experts whose layer has passed in this pass without requesting them, then those whose layer
 *                   is reached latest (SpecMD, as we read its description); ties by last use
 *     layer-lfu     number of requests; the budget is divided between the layers
 *     fmoe          p * freq: the probability in the last matching expert map, times the number of requests
 *     moe-infinity  (share of the layer's tokens in the active sequences + INFINITY_LEAST) * (1 - layer / L)
 *     dali-printed  Algorithm 2 as printed: experts enter the cache only by a swap every w passes, the first pass
 *                   included, and the swap evicts the experts with the most tokens
 *     dali          the same with these errors corrected (sched/policy/gpu_cache.h)
 *
 * Two systems know no experts: each request reads all experts of its layer that are not in memory, in decoded form.
 *
 *     accelerate    the first layers stay in memory once read; the others are dropped after use. One layer of the
 *                   budget is reserved for those, unless all fit (the disk offload of Accelerate)
 *     zero-3        no layer stays; while a layer runs, the next one is read into a second buffer (DeepSpeed ZeRO-3
 *                   offload; it needs memory for two layers and does not use more)
 */
#include "cache_sim.h"

#include "gpu_cache.h"
#include "tables.h"

#include <stdlib.h>
#include <string.h>

#define INFINITY_LEAST 1e-3 /* for experts that the active sequences have not requested */

struct replay_cache {
    struct efs_tables tables;
    enum replay_cache_kind kind;
    const struct replay_workload *workload;
    const struct replay_predictions *predicted;
    size_t request; /* index of the next request */
    uint64_t pass, token;
    uint32_t units, swaps;
    bool by_layer;
    uint8_t pool;       /* of cached experts */
    uint64_t *room;     /* [layers, or 1]: free capacity, experts */
    bool *cached;       /* [units]: cached */
    size_t *last;       /* [units]: last request of the expert, counted from 1 */
    uint32_t *count;    /* [units]: number of requests */
    float *probability; /* [units]: fmoe's p */
    double *calls;      /* [units]: moe-infinity: tokens since the last start of a sequence */
    size_t *next, *use; /* oracle: next[i]: index in workload->ids of the next use of ids[i]; use[unit]: from now on */
    uint64_t *score;    /* [units]: DALI */
    uint32_t *tokens;   /* [experts]: tokens in the current request */
    /* background reads, DALI */
    uint64_t expert_bytes, background_bytes;
    uint64_t *unread_bytes; /* [units]: bytes still to read; 0: in memory, or not read in the background */
    uint32_t *queue;        /* [units]: ring buffer of units to read; entries with unread_bytes 0 are skipped */
    uint32_t first, queued;
    bool *is_queued;   /* [units]: in the ring buffer */
    uint64_t piece;    /* bytes in flight */
    uint32_t piece_of; /* of this unit */
};

static uint32_t unit_of(const struct replay_workload *w, size_t request, size_t i)
{
    return (uint32_t)(request % w->layers) * w->experts + w->ids[i];
}

static bool is_dali(enum replay_cache_kind kind)
{
    return kind == REPLAY_CACHE_DALI || kind == REPLAY_CACHE_DALI_PRINTED;
}

static bool by_whole_layers(enum replay_cache_kind kind)
{
    return kind >= REPLAY_CACHE_ACCELERATE;
}

/* ---- new and free ----------------------------------------------------------------------------------------------- */

/* Computes the next use of each expert, backwards from the end of the workload. */
static void cache_find_next_uses(struct replay_cache *k)
{
    const struct replay_workload *w = k->workload;
    for (uint32_t u = 0; u < k->units; u++)
        k->use[u] = SIZE_MAX;
    for (size_t r = w->passes * w->layers; r-- > 0;)
        for (size_t i = w->first[r]; i < w->first[r + 1]; i++) {
            uint32_t unit = unit_of(w, r, i);
            k->next[i] = k->use[unit];
            k->use[unit] = i;
        }
}

/* Queues a background read of a cached expert. */
static void cache_queue_read(struct replay_cache *k, uint32_t unit)
{
    k->unread_bytes[unit] = k->expert_bytes;
    if (k->is_queued[unit])
        return;
    k->is_queued[unit] = true;
    k->queue[(k->first + k->queued++) % k->units] = unit;
}

/* DALI's initial cache: the first experts of each layer. */
static void cache_fill(struct replay_cache *k)
{
    const struct replay_workload *w = k->workload;
    for (uint32_t l = 0; l < w->layers; l++)
        for (uint32_t e = 0; e < w->experts && k->room[l] > 0; e++, k->room[l]--) {
            k->cached[l * w->experts + e] = true;
            cache_queue_read(k, l * w->experts + e);
        }
}

/* Accelerate's placement: the first layers, which the first requests read. */
static void cache_keep_layers(struct replay_cache *k, uint64_t units)
{
    uint32_t experts = k->workload->experts;
    uint64_t layers = units / experts, kept = layers >= k->workload->layers ? k->workload->layers
                                              : layers                      ? layers - 1
                                                                            : 0;
    for (uint32_t u = 0; u < kept * experts; u++) {
        k->cached[u] = true;
        k->unread_bytes[u] = k->expert_bytes;
    }
}

struct replay_cache *replay_cache_new(enum replay_cache_kind kind, const struct replay_workload *w,
                                      const struct replay_predictions *predicted, uint64_t units, uint32_t swaps,
                                      uint64_t expert_bytes)
{
    struct replay_cache *k = calloc(1, sizeof(*k));
    size_t all = (size_t)w->layers * w->experts;
    if (!k)
        return NULL;
    *k = (struct replay_cache){.kind = kind,
                               .workload = w,
                               .predicted = predicted,
                               .units = (uint32_t)all,
                               .swaps = swaps,
                               .by_layer = is_dali(kind) || kind == REPLAY_CACHE_LAYER_LFU,
                               .pool = by_whole_layers(kind) ? EFS_POOL_F : EFS_POOL_C,
                               .expert_bytes = expert_bytes};
    EFS_TABLE(&k->tables, k->room, w->layers);
    EFS_TABLE(&k->tables, k->cached, all);
    EFS_TABLE(&k->tables, k->last, all);
    EFS_TABLE(&k->tables, k->count, all);
    EFS_TABLE(&k->tables, k->probability, all);
    EFS_TABLE(&k->tables, k->calls, all);
    EFS_TABLE(&k->tables, k->next, w->first[w->passes * w->layers]);
    EFS_TABLE(&k->tables, k->use, all);
    EFS_TABLE(&k->tables, k->score, all);
    EFS_TABLE(&k->tables, k->tokens, w->experts);
    EFS_TABLE(&k->tables, k->unread_bytes, all);
    EFS_TABLE(&k->tables, k->queue, all);
    EFS_TABLE(&k->tables, k->is_queued, all);
    if (efs_tables_error(&k->tables) < 0) {
        replay_cache_free(k);
        return NULL;
    }
    k->room[0] = units;
    for (uint32_t l = 0; k->by_layer && l < w->layers; l++)
        k->room[l] = units / w->layers + (l < units % w->layers);
    if (kind == REPLAY_CACHE_ORACLE)
        cache_find_next_uses(k);
    if (is_dali(kind))
        cache_fill(k);
    if (kind == REPLAY_CACHE_ACCELERATE)
        cache_keep_layers(k, units);
    return k;
}

void replay_cache_free(struct replay_cache *k)
{
    if (!k)
        return;
    efs_tables_free(&k->tables);
    free(k);
}

/* ---- background reads ------------------------------------------------------------------------------------------- */

uint64_t replay_cache_next_read(struct replay_cache *k, uint64_t most_bytes, bool *begins)
{
    while (k->queued && k->unread_bytes[k->queue[k->first]] == 0) {
        k->is_queued[k->queue[k->first]] = false;
        k->first = (k->first + 1) % k->units;
        k->queued--;
    }
    if (k->queued == 0)
        return 0;
    k->piece_of = k->queue[k->first];
    k->piece = k->unread_bytes[k->piece_of] < most_bytes ? k->unread_bytes[k->piece_of] : most_bytes;
    *begins = k->unread_bytes[k->piece_of] == k->expert_bytes;
    return k->piece;
}

void replay_cache_read_done(struct replay_cache *k)
{
    uint64_t *unread_bytes = &k->unread_bytes[k->piece_of];
    k->background_bytes += k->piece;
    *unread_bytes -=
        *unread_bytes < k->piece ? *unread_bytes : k->piece; /* 0 if it was requested or evicted meanwhile */
}

uint64_t replay_cache_background_bytes(const struct replay_cache *k)
{
    return k->background_bytes;
}

/* ---- the worth of an expert ------------------------------------------------------------------------------------- */

/* Layers until the expert's layer is reached again; the number of layers plus one if its layer has passed without
 * requesting it. */
static double stale(const struct replay_cache *k, uint32_t unit, uint32_t layer)
{
    uint32_t layers = k->workload->layers, of = unit / k->workload->experts;
    size_t pass_began = k->request / layers * layers;
    if (of <= layer && k->last[unit] <= pass_began)
        return layers + 1;
    return of > layer ? of - layer : layers - layer + of;
}

static double infinity(const struct replay_cache *k, uint32_t unit)
{
    const struct replay_workload *w = k->workload;
    uint32_t layer = unit / w->experts;
    double all = 0;
    for (uint32_t e = 0; e < w->experts; e++)
        all += k->calls[layer * w->experts + e];
    return ((all > 0 ? k->calls[unit] / all : 0) + INFINITY_LEAST) * (1 - (double)layer / w->layers);
}

static double worth(const struct replay_cache *k, uint32_t unit, uint32_t layer)
{
    switch (k->kind) {
    case REPLAY_CACHE_ORACLE:
        return -(double)k->use[unit];
    case REPLAY_CACHE_LEAST_STALE:
        return -stale(k, unit, layer);
    case REPLAY_CACHE_LAYER_LFU:
        return k->count[unit];
    case REPLAY_CACHE_FMOE:
        return (double)k->probability[unit] * k->count[unit];
    default:
        return infinity(k, unit);
    }
}

/* ---- eviction --------------------------------------------------------------------------------------------------- */

static bool evict_before(const struct replay_cache *k, double a_worth, uint32_t a, double b_worth, uint32_t b)
{
    return a_worth < b_worth || (!(b_worth < a_worth) && k->last[a] < k->last[b]);
}

/* Caches unit: in free capacity, else by evicting the expert with the least worth. Never evicts an expert of the
 * current request, except for the oracle, which may also bypass unit. */
static void cache_admit(struct replay_cache *k, uint32_t unit)
{
    uint32_t layer = unit / k->workload->experts, domain = k->by_layer ? layer : 0, victim = k->units;
    uint32_t begin = k->by_layer ? layer * k->workload->experts : 0;
    uint32_t end = k->by_layer ? begin + k->workload->experts : k->units;
    double least = 0;
    if (k->room[domain] > 0) {
        k->room[domain]--;
        k->cached[unit] = true;
        return;
    }
    if (k->kind == REPLAY_CACHE_ORACLE) {
        victim = unit;
        least = worth(k, unit, layer);
    }
    for (uint32_t u = begin; u < end; u++) {
        if (!k->cached[u] || (k->last[u] == k->request + 1 && k->kind != REPLAY_CACHE_ORACLE))
            continue;
        double is = worth(k, u, layer);
        if (victim == k->units || evict_before(k, is, u, least, victim)) {
            victim = u;
            least = is;
        }
    }
    if (victim == k->units)
        return;
    k->cached[victim] = false;
    k->cached[unit] = victim != unit;
}

/* Writes to units the experts of a layer with the highest scores, at most k->swaps, among the cached or the uncached
 * ones. Returns their number. */
static uint32_t most_used(const struct replay_cache *k, uint32_t first, bool cached, uint32_t *units)
{
    uint32_t count = 0;
    for (uint32_t u = first; u < first + k->workload->experts; u++) {
        uint32_t at = count;
        if (k->cached[u] != cached)
            continue;
        while (at > 0 && k->score[u] > k->score[units[at - 1]])
            at--;
        count += count < k->swaps;
        if (at >= count)
            continue;
        memmove(units + at + 1, units + at, (count - 1 - at) * sizeof(*units));
        units[at] = u;
    }
    return count;
}

static void swap_in(struct replay_cache *k, uint32_t in, uint32_t out)
{
    k->cached[in] = true;
    k->cached[out] = false;
    k->unread_bytes[out] = 0;
    if (k->last[in] != k->request + 1) /* otherwise the current request reads it */
        cache_queue_read(k, in);
}

static void cache_swap(struct replay_cache *k, uint32_t layer)
{
    struct efs_gpu_swap swaps[EFS_GPU_SWAPS_MAX];
    uint32_t in[EFS_GPU_SWAPS_MAX], out[EFS_GPU_SWAPS_MAX], first = layer * k->workload->experts;
    if (k->kind == REPLAY_CACHE_DALI) {
        struct efs_gpu_cache cache = {.experts = k->workload->experts,
                                      .window = EFS_GPU_WINDOW,
                                      .swaps = k->swaps,
                                      .cached = k->cached + first,
                                      .score = k->score + first,
                                      .passes = (uint32_t)(k->pass % EFS_GPU_WINDOW)};
        uint32_t made = efs_gpu_cache_pass(&cache, k->tokens, swaps);
        for (uint32_t i = 0; i < made; i++)
            swap_in(k, first + swaps[i].in, first + swaps[i].out);
        return;
    }
    for (uint32_t e = 0; e < k->workload->experts; e++)
        k->score[first + e] += k->tokens[e];
    if (k->pass % EFS_GPU_WINDOW)
        return;
    uint32_t ins = most_used(k, first, false, in), outs = most_used(k, first, true, out);
    for (uint32_t i = 0; i < ins && i < outs; i++)
        swap_in(k, in[i], out[i]);
    memset(k->score + first, 0, k->workload->experts * sizeof(*k->score));
}

/* ZeRO-3: drops the layer of the request and starts to read the next one. */
static void cache_read_next_layer(struct replay_cache *k, uint32_t layer)
{
    uint32_t experts = k->workload->experts, next = (layer + 1) % k->workload->layers;
    memset(k->cached + (size_t)layer * experts, false, experts * sizeof(*k->cached));
    for (uint32_t e = 0; e < experts; e++) {
        k->cached[(size_t)next * experts + e] = true;
        cache_queue_read(k, next * experts + e);
    }
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* Updates p for the layers that have predictions: the maximum over the tokens of the pass. */
static void cache_predict(struct replay_cache *k, uint32_t layer)
{
    const struct replay_workload *w = k->workload;
    const struct replay_predictions *f = k->predicted;
    uint32_t width = w->width[k->pass];
    for (uint32_t t = 0, d = 0; t < width; t++) {
        size_t slot = k->token * w->layers + layer * width + t;
        for (size_t i = f->first[slot]; i < f->first[slot + 1]; i++) {
            const struct replay_prediction *g = &f->predictions[i];
            float *row = k->probability + (layer + g->distance) % w->layers * w->experts;
            if (t == 0 && g->distance != d) /* predictions are sorted by distance */
                memset(row, 0, w->experts * sizeof(*row));
            d = g->distance;
            row[g->expert] = g->probability > row[g->expert] ? g->probability : row[g->expert];
        }
    }
}

void replay_cache_request(struct replay_cache *k, struct efs_placement *placements)
{
    const struct replay_workload *w = k->workload;
    size_t r = k->request;
    uint32_t layer = (uint32_t)(r % w->layers);
    if (layer == 0 && w->starts[k->pass]) /* a sequence starts: moe-infinity's matrix is cleared */
        memset(k->calls, 0, k->units * sizeof(*k->calls));
    memset(k->tokens, 0, w->experts * sizeof(*k->tokens));
    for (size_t i = w->first[r]; i < w->first[r + 1]; i++) {
        uint32_t unit = unit_of(w, r, i);
        uint8_t pool = k->cached[unit] && k->unread_bytes[unit] == 0 ? k->pool : EFS_POOL_M;
        placements[i - w->first[r]] = (struct efs_placement){.expert = w->ids[i], .found = pool, .target = pool};
        k->unread_bytes[unit] = 0; /* the request reads it */
        k->last[unit] = r + 1;
        k->count[unit]++;
        k->calls[unit] += w->of_them[i];
        k->tokens[w->ids[i]] = w->of_them[i];
        k->use[unit] = k->next[i];
    }
    if (k->predicted)
        cache_predict(k, layer);
    for (size_t i = w->first[r]; i < w->first[r + 1] && !is_dali(k->kind) && !by_whole_layers(k->kind); i++)
        if (!k->cached[unit_of(w, r, i)])
            cache_admit(k, unit_of(w, r, i));
    if (is_dali(k->kind))
        cache_swap(k, layer);
    if (k->kind == REPLAY_CACHE_ZERO)
        cache_read_next_layer(k, layer);
    k->request++;
    if (layer + 1 == w->layers)
        k->token += w->width[k->pass++];
}
