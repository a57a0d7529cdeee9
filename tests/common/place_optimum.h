/* SPDX-License-Identifier: Apache-2.0 */
/* place_optimum.h - the best placement of a small case, found by trying them all: rules are compared with it. */
#ifndef TESTS_PLACE_OPTIMUM_H
#define TESTS_PLACE_OPTIMUM_H

#include "place.h"

/* The least remote_s (EFS_PLACE_GAIN) or wait_s (EFS_PLACE_TIME) of all placements. -E2BIG: there are more than can be
 * tried; else as efs_place_by(). */
int place_optimum(const struct efs_place_problem *problem, enum efs_place_rule aim, uint8_t *held);

#endif
