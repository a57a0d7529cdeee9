/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights.h - weights for the benchmark: made up, or a given checkpoint's own.
 */
#ifndef EFS_BENCH_WEIGHTS_H
#define EFS_BENCH_WEIGHTS_H

#include "kernels.h"
#include "expertfs.h"

/* scaled: normal, a log-normal scale for each row; normal: one scale; heavy: Student's t of 4 degrees, row scales. */
enum weights_kind { WEIGHTS_SCALED, WEIGHTS_NORMAL, WEIGHTS_HEAVY, WEIGHTS_FOREIGN };

/* What rows are taken from. */
struct weights {
    enum weights_kind kind;
    float *table;
    size_t count;
};

/* kind: "scaled", "normal", "heavy" or the path of a checkpoint. 0 or -errno. weights_close() also after a failure. */
errint_t weights_open(const char *kind, struct weights *weights, struct efs_error *err);
void weights_close(struct weights *weights);

/* n elements of format into raw, the same for the same seed; they repeat after some 32 million, or a checkpoint's end.
 * 0 or -ENOMEM. */
int weights_make(const struct weights *weights, enum efs_format format, uint8_t *raw, size_t n, uint64_t seed);

/* Entropy of the counted symbols, bits a symbol. */
double weights_entropy_bits(const uint64_t counts[256]);

#endif
