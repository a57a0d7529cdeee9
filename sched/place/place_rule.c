/* SPDX-License-Identifier: Apache-2.0 */
/* place_rule.c - see place.h: dispatches to the placement rules. */
#include "place_internal.h"

#include <errno.h>
#include <string.h>

static const char *const names[EFS_PLACE_RULES] = {"uniform", "redundance", "smartmoe",   "eplb",
                                                   "greedy",  "prism",      "ours-calls", "ours"};

const char *efs_place_rule_name(enum efs_place_rule rule)
{
    return names[rule];
}

int efs_place_by(enum efs_place_rule rule, const struct efs_place_problem *p, uint64_t seed, uint8_t *placement)
{
    int rc = efs_place_check(p);
    if (rc < 0)
        return rc;
    memset(placement, 0, efs_place_at(p, p->servers, 0, 0));
    switch (rule) {
    case EFS_PLACE_UNIFORM:
    case EFS_PLACE_REDUNDANCE:
        return efs_place_uniform(p, rule == EFS_PLACE_REDUNDANCE, seed, placement);
    case EFS_PLACE_SMARTMOE:
        return efs_place_smartmoe(p, placement);
    case EFS_PLACE_EPLB:
        return efs_place_eplb(p, placement);
    case EFS_PLACE_GREEDY:
        return efs_place_greedy(p, placement);
    case EFS_PLACE_PRISM:
        return efs_place_prism(p, placement);
    case EFS_PLACE_GAIN:
        return efs_place_gain(p, placement);
    case EFS_PLACE_TIME:
        return efs_place_time(p, placement);
    default:
        return -EINVAL;
    }
}
