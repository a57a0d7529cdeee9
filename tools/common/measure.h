/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h - random numbers and medians, for benchmarks. */
#ifndef TOOLS_MEASURE_H
#define TOOLS_MEASURE_H

#include <stdint.h>

/* From 0 to 1, both excluded. The same numbers for the same state. */
double tools_uniform(uint64_t *state);
/* The median; the values are put in order. n > 0. */
double tools_median(double *values, unsigned n);

#endif
