/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h - random numbers and medians, for benchmarks. */
#ifndef TOOLS_MEASURE_H
#define TOOLS_MEASURE_H

#include <stdint.h>

/* A uniform number in (0, 1); advances *state. Deterministic. */
double tools_uniform(uint64_t *state);
/* The median of n > 0 values. Sorts the values. */
double tools_median(double *values, unsigned n);

#endif
