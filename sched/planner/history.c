/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - the counts of a workload: by expert, and by rank.
 */
#include "history.h"

#include <errno.h>
#include <string.h>

static size_t history_units(const struct efs_history *h)
{
    return (size_t)h->layers * h->experts;
}

int efs_history_init(struct efs_history *h, unsigned layers, unsigned experts)
{
    *h = (struct efs_history){0};
    if (!layers || layers > EFS_HISTORY_MAX_LAYERS || !experts || experts > EFS_HISTORY_MAX_EXPERTS)
        return -EINVAL;
    h->layers = layers;
    h->experts = experts;
    EFS_TABLE(&h->tables, h->counts, history_units(h));
    EFS_TABLE(&h->tables, h->at_rank, history_units(h));
    EFS_TABLE(&h->tables, h->passes, layers);
    EFS_TABLE(&h->tables, h->ranked, layers);
    if (!h->tables.failed)
        return 0;
    efs_history_free(h);
    return -ENOMEM;
}

void efs_history_free(struct efs_history *h)
{
    efs_tables_free(&h->tables);
    *h = (struct efs_history){0};
}

void efs_history_clear(struct efs_history *h)
{
    memset(h->counts, 0, history_units(h) * sizeof(*h->counts));
    memset(h->at_rank, 0, history_units(h) * sizeof(*h->at_rank));
    memset(h->passes, 0, h->layers * sizeof(*h->passes));
    memset(h->ranked, 0, h->layers * sizeof(*h->ranked));
    h->sequences = 0;
}

/* Multiplies all numbers of a layer by part / whole, rounded down, so that no count exceeds the passes. */
static void history_shrink_layer(struct efs_history *h, unsigned layer, uint64_t part, uint64_t whole)
{
    uint32_t *counts = h->counts + (size_t)layer * h->experts, *at_rank = h->at_rank + (size_t)layer * h->experts;

    for (unsigned i = 0; i < h->experts; i++) {
        counts[i] = (uint32_t)(counts[i] * part / whole);
        at_rank[i] = (uint32_t)(at_rank[i] * part / whole);
    }
    h->passes[layer] = h->passes[layer] * part / whole;
    h->ranked[layer] = h->ranked[layer] * part / whole;
}

int efs_history_request(struct efs_history *h, unsigned layer, const uint32_t *experts, const uint32_t *ranks,
                        unsigned count)
{
    uint32_t *counts, *at_rank;

    if (layer >= h->layers || count > h->experts)
        return -EINVAL;
    for (unsigned i = 0; i < count; i++)
        if (experts[i] >= h->experts || (ranks && ranks[i] >= h->experts))
            return -EINVAL;
    if (h->passes[layer] >= EFS_HISTORY_MAX_PASSES)
        history_shrink_layer(h, layer, 1, 2);
    counts = h->counts + (size_t)layer * h->experts;
    at_rank = h->at_rank + (size_t)layer * h->experts;
    h->passes[layer]++;
    h->ranked[layer] += ranks != NULL;
    for (unsigned i = 0; i < count; i++) {
        counts[experts[i]]++;
        if (ranks)
            at_rank[ranks[i]]++;
    }
    return 0;
}

static bool history_same_shape(const struct efs_history *a, const struct efs_history *b)
{
    return a->layers == b->layers && a->experts == b->experts;
}

int efs_history_add(struct efs_history *h, const struct efs_history *other)
{
    if (!history_same_shape(h, other))
        return -EINVAL;
    for (size_t i = 0; i < history_units(h); i++) { /* no overflow: each is at most EFS_HISTORY_MAX_PASSES, 2^30 */
        h->counts[i] += other->counts[i];
        h->at_rank[i] += other->at_rank[i];
    }
    for (unsigned l = 0; l < h->layers; l++) {
        h->passes[l] += other->passes[l];
        h->ranked[l] += other->ranked[l];
        if (h->passes[l] > EFS_HISTORY_MAX_PASSES)
            history_shrink_layer(h, l, 1, 2);
    }
    h->sequences += other->sequences;
    return 0;
}

int efs_history_copy(struct efs_history *to, const struct efs_history *from)
{
    if (!history_same_shape(to, from))
        return -EINVAL;
    memcpy(to->counts, from->counts, history_units(to) * sizeof(*to->counts));
    memcpy(to->at_rank, from->at_rank, history_units(to) * sizeof(*to->at_rank));
    memcpy(to->passes, from->passes, to->layers * sizeof(*to->passes));
    memcpy(to->ranked, from->ranked, to->layers * sizeof(*to->ranked));
    to->sequences = from->sequences;
    return 0;
}

void efs_history_fade(struct efs_history *h, uint64_t most_passes)
{
    for (unsigned l = 0; l < h->layers; l++)
        if (h->passes[l] > most_passes)
            history_shrink_layer(h, l, most_passes, h->passes[l]);
}
