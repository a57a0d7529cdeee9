/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_sum_order.h - the order of sums of matvec.h, with vectors; included by a matvec_*.c after its vector
 * operations on floats, before matvec_simd.h. Private.
 *
 * Each part of a group of BF16 has its own vectors of sums: first those of even columns, part by part, then those of
 * odd columns. F16 is added in the order of columns.
 */
#ifndef EFS_KERNELS_MATVEC_SUM_ORDER_H
#define EFS_KERNELS_MATVEC_SUM_ORDER_H

#include "matvec_ops.h"

#define EFS_SUMS_REST 0 /* the end of a row is padded with zeros */

/* The vector of sums for vector k of part p of a group. */
EFS_INLINE unsigned efs_sum_of(unsigned p, unsigned k)
{
#ifdef EFS_F16
    return (p * EFS_STEPS + k) % EFS_SUM_VECTORS;
#else
    return k % 2 * EFS_PARTS + p;
#endif
}

/* Adds pairwise: floats that are 16, 8, 4, 2, 1 apart. */
EFS_INLINE float efs_sums_total(const efs_floats *sums)
{
    efs_floats all[EFS_SUM_VECTORS];

    for (unsigned v = 0; v < EFS_SUM_VECTORS; v++)
        all[v] = sums[v];
    for (unsigned half = EFS_SUM_VECTORS / 2; half > 0; half /= 2)
        for (unsigned v = 0; v < half; v++)
            all[v] = efs_add_floats(all[v], all[v + half]);
    return efs_total(all[0]);
}

#endif
