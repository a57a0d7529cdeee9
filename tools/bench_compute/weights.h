/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights.h - matrices for the benchmark: normal weights with a log-normal scale for each row, plain and coded.
 */
#ifndef EFS_BENCH_COMPUTE_WEIGHTS_H
#define EFS_BENCH_COMPUTE_WEIGHTS_H

#include "matvec.h"

/* As many matrices of one shape as fit in some bytes, each in both forms. */
struct weights {
    uint32_t rows, cols;
    size_t count;
    size_t plain_bytes, coded_bytes; /* of all of them */
    struct efs_matrix *plain, *coded;
};

/* Memory in huge pages where the system gives them; ends the program when there is none. */
void *huge_memory(size_t bytes);
/* Matrices of about plain_bytes in all, BF16 or F16. Ends the program when memory is short. Nothing is freed. */
void weights_make(struct weights *weights, bool f16, uint32_t rows, uint32_t cols, size_t plain_bytes);

#endif
