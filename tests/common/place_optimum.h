/* SPDX-License-Identifier: Apache-2.0 */
/* place_optimum.h - the best placement of a small case by exhaustive search, as reference for the placement rules. */
#ifndef TESTS_PLACE_OPTIMUM_H
#define TESTS_PLACE_OPTIMUM_H

#include "place.h"

/* Minimizes remote_s (EFS_PLACE_GAIN) or wait_s (EFS_PLACE_TIME) over all placements. -E2BIG: more than 5 servers, 20
 * experts or 5,000,000 placements. -EINVAL: another aim. -ENOSPC: the experts do not fit. Otherwise as
 * efs_place_check(). */
int place_optimum(const struct efs_place_problem *problem, enum efs_place_rule aim, uint8_t *held);

#endif
