/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_fmoe.h - the formulas of fMoE, each by itself.
 */
#ifndef EFS_PREDICT_FMOE_H
#define EFS_PREDICT_FMOE_H

/* delta: the less alike the map is, the more is fetched: experts by falling p until their sum is delta. */
static inline float efs_fmoe_delta(float score)
{
    return score > 1 ? 0 : score < 0 ? 1 : 1 - score;
}

/* PRI of prefetching: nearer layers first. */
static inline float efs_fmoe_priority(float probability, unsigned distance)
{
    return probability / (float)distance;
}

/* RDY: how much of a new map an old one says already. distance d of layers L ahead. */
static inline float efs_fmoe_redundancy(float semantic, float trajectory, unsigned distance, unsigned layers)
{
    float part = (float)distance / (float)layers;

    return part * semantic + (1 - part) * trajectory;
}

#endif
