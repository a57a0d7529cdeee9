/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.c - counts in falling order with a binary search for the first of equals, so that one more is one swap.
 */
#include "rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct efs_rank {
    unsigned layers, experts, half_life;
    uint32_t *count;    /* [layer][expert] */
    uint16_t *place;    /* [layer][expert]: its rank */
    uint16_t *order;    /* [layer][rank]: the expert there */
    uint64_t *seen;     /* [layer][rank]: requests for the expert that was there */
    uint64_t *requests; /* [layer] since the profile was cleared */
    uint32_t *age;      /* [layer] requests since the counts were halved */
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
    rank->count = calloc(cells, sizeof(*rank->count));
    rank->place = calloc(cells, sizeof(*rank->place));
    rank->order = calloc(cells, sizeof(*rank->order));
    rank->seen = calloc(cells, sizeof(*rank->seen));
    rank->requests = calloc(layers, sizeof(*rank->requests));
    rank->age = calloc(layers, sizeof(*rank->age));
    if (!rank->count || !rank->place || !rank->order || !rank->seen || !rank->requests || !rank->age) {
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
    free(rank->count);
    free(rank->place);
    free(rank->order);
    free(rank->seen);
    free(rank->requests);
    free(rank->age);
    free(rank);
}

/* The first rank whose expert has no more than count; there is one. */
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

    rank->requests[layer]++;
    for (unsigned i = 0; i < count; i++)
        rank->seen[base + place[expert[i]]]++;
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
    /* By insertion: this is done once, on a few hundred experts, and keeps equal counts in order. */
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

unsigned efs_rank_at(const struct efs_rank *rank, unsigned layer, unsigned place)
{
    return rank->order[(size_t)layer * rank->experts + place];
}

/* Scale weights, all above 0, to sum to chosen with none above 1: what is cut off goes to the others. */
static void weights_scale(double *weight, unsigned experts, unsigned chosen)
{
    for (unsigned round = 0; round < experts; round++) {
        double sum = 0, whole = 0, scale;
        unsigned over = 0;

        for (unsigned r = 0; r < experts; r++) {
            whole += weight[r] >= 1;
            sum += weight[r] >= 1 ? 0 : weight[r];
        }
        if (sum <= 0)
            return;
        scale = (chosen - whole) / sum;
        for (unsigned r = 0; r < experts; r++) {
            if (weight[r] >= 1)
                continue;
            weight[r] *= scale;
            over += weight[r] >= 1;
            weight[r] = fmin(weight[r], 1);
        }
        if (!over)
            return;
    }
}

uint64_t efs_rank_profile(const struct efs_rank *rank, unsigned layer, unsigned chosen, double *inclusion)
{
    unsigned first = layer == EFS_RANK_ALL ? 0 : layer, end = layer == EFS_RANK_ALL ? rank->layers : layer + 1;
    uint64_t requests = 0;

    for (unsigned r = 0; r < rank->experts; r++)
        inclusion[r] = 0.5;
    for (unsigned l = first; l < end; l++) {
        requests += rank->requests[l];
        for (unsigned r = 0; r < rank->experts; r++)
            inclusion[r] += (double)rank->seen[(size_t)l * rank->experts + r];
    }
    for (unsigned r = 0; r < rank->experts; r++)
        inclusion[r] *= 1 / ((double)requests + rank->experts); /* below 1, so that only scaling can pass it */
    weights_scale(inclusion, rank->experts, chosen);
    return requests;
}

void efs_rank_profile_clear(struct efs_rank *rank)
{
    memset(rank->seen, 0, (size_t)rank->layers * rank->experts * sizeof(*rank->seen));
    memset(rank->requests, 0, rank->layers * sizeof(*rank->requests));
}

double efs_rank_drift(const double *planned, const double *seen, unsigned experts)
{
    double apart = 0, sum = 0;

    for (unsigned r = 0; r < experts; r++) {
        apart += fabs(planned[r] - seen[r]);
        sum += planned[r] + seen[r];
    }
    return sum > 0 ? apart / sum : 0;
}
