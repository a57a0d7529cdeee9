/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_f32.h - products with F32 inputs, one matrix number per input float; included by a matvec_*.c after its vector
 * operations on floats, and before efs_number_of() and efs_multiply_add(). Private.
 *
 * Number k of a part, of BF16: the even columns of its even eights, their odd ones, the even ones of odd eights, their
 * odd ones; of F16 (EFS_F16): columns in order.
 */
#ifndef EFS_KERNELS_MATVEC_F32_H
#define EFS_KERNELS_MATVEC_F32_H

#include "matvec_ops.h"

#define EFS_STEPS 4

typedef float efs_x;
typedef efs_floats efs_number; /* numbers of the matrix that one vector of the input is multiplied with */
typedef efs_floats efs_xs;

/* The input of vector k of part p of a group. */
EFS_INLINE const efs_x *efs_part_x(const efs_x *x, unsigned p, unsigned k)
{
#ifdef EFS_F16
    return x + p * EFS_LANES + k * EFS_FLOATS;
#else
    return x + k * (EFS_GROUP / EFS_STEPS) + p * EFS_FLOATS;
#endif
}

EFS_INLINE efs_xs efs_load_xs(const efs_x *p)
{
    return efs_load_floats(p);
}

#endif
