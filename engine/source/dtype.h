/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype.h - element types: names and sizes of every safetensors dtype and every ggml type.
 *
 * A type is a run of blocks: block_elements elements take block_bits bits. Plain types have blocks of one element;
 * block_bits is a multiple of 8 for all types but F4 and F6.
 */
#ifndef EFS_DTYPE_H
#define EFS_DTYPE_H

#include "expertfs.h"

struct efs_dtype_info {
    const char *name;
    uint32_t block_elements;
    uint32_t block_bits;
};

/* What is known of a type; NULL for one that is not known. */
const struct efs_dtype_info *efs_dtype_info(enum efs_dtype dtype);
/* The type that safetensors calls name; EFS_DTYPE_NONE when there is none. */
enum efs_dtype efs_dtype_from_safetensors(const char *name);
/* The type that GGUF calls by this number; EFS_DTYPE_NONE when it is unknown or was withdrawn. */
enum efs_dtype efs_dtype_from_ggml(uint32_t type);

/*
 * Bytes of a tensor of shape[0..dims), slowest dimension first; dims = 0 is a scalar. -EUCLEAN: an unknown type, the
 * fastest dimension is not whole blocks, the bits are not whole bytes; -EOVERFLOW: more than 64 bits can count. The
 * dimensions are multiplied in order and each product must fit, as the reference reader of safetensors does it.
 */
errint_t efs_dtype_tensor_bytes(enum efs_dtype dtype, uint32_t dims, const uint64_t *shape, uint64_t *bytes);

#endif
