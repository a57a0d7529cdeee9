/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype.h - element types: names and sizes of every safetensors dtype and every ggml type.
 *
 * A type is a sequence of blocks: block_elements elements take block_bits bits. Plain types have one element per block.
 * block_bits is a multiple of 8 for all types except F4 and F6.
 */
#ifndef EFS_DTYPE_H
#define EFS_DTYPE_H

#include "expertfs.h"

struct efs_dtype_info {
    const char *name;
    uint32_t block_elements;
    uint32_t block_bits;
};

/* Name and sizes of a type; NULL if it is unknown. */
const struct efs_dtype_info *efs_dtype_info(enum efs_dtype dtype);
/* The type with this safetensors name; EFS_DTYPE_NONE if unknown. */
enum efs_dtype efs_dtype_from_safetensors(const char *name);
/* The type with this name by efs_dtype_name(), of any kind; EFS_DTYPE_NONE if unknown. */
enum efs_dtype efs_dtype_from_name(const char *name, size_t bytes);
/* The type with this ggml number; EFS_DTYPE_NONE if it is unknown or withdrawn. */
enum efs_dtype efs_dtype_from_ggml(uint32_t type);

/*
 * Bytes of a tensor of shape[0..dims), slowest dimension first; dims = 0 is a scalar. -EUCLEAN: unknown type, the
 * fastest dimension is not a multiple of block_elements, or the size is not whole bytes; -EOVERFLOW: more than 64 bits.
 * Dimensions are multiplied in order and each product must fit, as in the reference reader of safetensors.
 */
errint_t efs_dtype_tensor_bytes(enum efs_dtype dtype, uint32_t dims, const uint64_t *shape, uint64_t *bytes);

#endif
