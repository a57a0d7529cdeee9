/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h - what the benchmarks of kernels share: weights as trained ones are spread, medians, reading alone. */
#ifndef TOOLS_MEASURE_H
#define TOOLS_MEASURE_H

#include <stddef.h>
#include <stdint.h>

/* From 0 to 1, both excluded; normal with mean 0 and deviation 1. The same numbers for the same state. */
double tools_uniform(uint64_t *state);
double tools_normal(uint64_t *state);
/* Rounded to nearest even, as bits; not for NaN. */
uint16_t tools_bf16(float value);
/* The median; the values are put in order. n > 0. */
double tools_median(double *values, unsigned n);
/* Reads all words, with the widest vectors of the processor, and does nothing else. The result is to be used. */
uint64_t tools_read_words(const uint64_t *words, size_t count);

#endif
