/*
 * weights.h - synthetic weights for the benchmark: normal, a log-normal scale for each row.
 */
#ifndef EFS_BENCH_WEIGHTS_H
#define EFS_BENCH_WEIGHTS_H

#include "kernels.h"

/* n elements of format into raw, the same for the same seed. 0 or -ENOMEM. */
int weights_make(enum efs_format format, uint8_t *raw, size_t n, uint64_t seed);

/* Entropy of the counted symbols, bits a symbol. */
double weights_entropy_bits(const uint64_t counts[256]);

#endif
