/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.c - counts in falling order; a binary search finds the first of equal counts, so an increment is one swap.
 */
#include "rank.h"
#include "tables.h"

#include <stdlib.h>
#include <string.h>

struct efs_rank {
    unsigned layers, experts, half_life;
    struct efs_tables tables;
    uint32_t *count; /* [layer][expert] */
    uint16_t *place; /* [layer][expert] rank */
    uint16_t *order; /* [layer][rank] expert */
    uint32_t *age;   /* [layer] requests since the counts were last halved */
};

struct efs_rank *efs_rank_new(unsigned layers, unsigned experts, unsigned half_life)
{
    struct efs_rank *rank;
    size_t cells = (size_t)layers * experts;

    if (!layers || !experts || layers > EFS_RANK_MAX_LAYERS || experts > EFS_RANK_MAX_EXPERTS)
        return NULL;
    rank = calloc(1, sizeof(*rank));
    if (!rank)
        return NULL;
    *rank = (struct efs_rank){.layers = layers, .experts = experts, .half_life = half_life};
    EFS_TABLE(&rank->tables, rank->count, cells);
    EFS_TABLE(&rank->tables, rank->place, cells);
    EFS_TABLE(&rank->tables, rank->order, cells);
    EFS_TABLE(&rank->tables, rank->age, layers);
    if (rank->tables.failed) {
        efs_rank_free(rank);
        return NULL;
    }
    for (size_t i = 0; i < cells; i++)
        rank->place[i] = rank->order[i] = (uint16_t)(i % experts);
    return rank;
}

void efs_rank_free(struct efs_rank *rank)
{
    if (!rank)
        return;
    efs_tables_free(&rank->tables);
    free(rank);
}

/* The first rank whose expert has at most `count`, or `last`. */
static unsigned rank_first_of(const uint32_t *counts, const uint16_t *order, unsigned last, uint32_t count)
{
    unsigned low = 0, high = last;

    while (low < high) {
        unsigned middle = (low + high) / 2;

        if (counts[order[middle]] <= count)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void rank_count_one(uint32_t *counts, uint16_t *order, uint16_t *place, unsigned expert)
{
    unsigned here = place[expert], first;
    uint16_t other;

    if (counts[expert] == UINT32_MAX)
        return;
    first = rank_first_of(counts, order, here, counts[expert]);
    other = order[first];
    order[first] = (uint16_t)expert;
    order[here] = other;
    place[other] = (uint16_t)here;
    place[expert] = (uint16_t)first;
    counts[expert]++;
}

void efs_rank_request(struct efs_rank *rank, unsigned layer, const uint32_t *expert, unsigned count)
{
    size_t base = (size_t)layer * rank->experts;
    uint32_t *counts = rank->count + base;
    uint16_t *place = rank->place + base;

    for (unsigned i = 0; i < count; i++)
        rank_count_one(counts, rank->order + base, place, expert[i]);
    if (rank->half_life && ++rank->age[layer] >= rank->half_life) {
        rank->age[layer] = 0;
        for (unsigned i = 0; i < rank->experts; i++)
            counts[i] /= 2;
    }
}

void efs_rank_seed(struct efs_rank *rank, unsigned layer, const uint32_t *counts)
{
    size_t base = (size_t)layer * rank->experts;
    uint16_t *order = rank->order + base;

    memcpy(rank->count + base, counts, rank->experts * sizeof(*counts));
    /* Insertion sort: runs once, on a few hundred experts, and is stable. */
    for (unsigned i = 0; i < rank->experts; i++) {
        unsigned at = i;

        for (; at > 0 && counts[order[at - 1]] < counts[i]; at--)
            order[at] = order[at - 1];
        order[at] = (uint16_t)i;
    }
    for (unsigned i = 0; i < rank->experts; i++)
        rank->place[base + order[i]] = (uint16_t)i;
    rank->age[layer] = 0;
}

unsigned efs_rank_of(const struct efs_rank *rank, unsigned layer, unsigned expert)
{
    return rank->place[(size_t)layer * rank->experts + expert];
}

uint32_t efs_rank_count(const struct efs_rank *rank, unsigned layer, unsigned expert)
{
    return rank->count[(size_t)layer * rank->experts + expert];
}
