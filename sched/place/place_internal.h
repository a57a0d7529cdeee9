/* SPDX-License-Identifier: Apache-2.0 */
/* place_internal.h - functions shared by the placement rules. Private to sched/place/. */
#ifndef EFS_PLACE_INTERNAL_H
#define EFS_PLACE_INTERNAL_H

#include "place.h"
#include "random.h"
#include "tables.h"

/* Number of holders of each expert: [layers][experts]. */
void efs_place_count_holders(const struct efs_place_problem *problem, const uint8_t *placement, uint32_t *holders);

/* An expert and its worth; sorted by falling worth, ties by number. */
struct efs_place_item {
    double worth;
    uint32_t item; /* layer * experts + expert, or an expert */
};
void efs_place_sort(struct efs_place_item *items, size_t count);

/* Replaces placement by the placement of another rule if that costs less. 0, -ENOMEM, or the error of the rule. */
int efs_place_replace_if_cheaper(const struct efs_place_problem *problem,
                                 int (*place)(const struct efs_place_problem *, uint8_t *),
                                 double (*cost)(const struct efs_place_problem *, const uint8_t *), uint8_t *placement);

int efs_place_uniform(const struct efs_place_problem *problem, bool fill, uint64_t seed, uint8_t *placement);
int efs_place_smartmoe(const struct efs_place_problem *problem, uint8_t *placement);
int efs_place_eplb(const struct efs_place_problem *problem, uint8_t *placement);
int efs_place_prism(const struct efs_place_problem *problem, uint8_t *placement);
int efs_place_greedy(const struct efs_place_problem *problem, uint8_t *placement);
int efs_place_gain(const struct efs_place_problem *problem, uint8_t *placement);
int efs_place_time(const struct efs_place_problem *problem, uint8_t *placement);

#endif
