/*
 * paths_avx512.h - the block operations of the AVX-512 path; ops.h says what each does. Private.
 */
#ifndef EFS_KERNELS_PATHS_AVX512_H
#define EFS_KERNELS_PATHS_AVX512_H

#include "ops.h"

void efs_split_avx512(enum efs_format format, const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm);
void efs_merge_avx512(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst);
void efs_encode_avx512(const struct efs_cascade_block *plan, const uint8_t *symbols, uint8_t *dst);
bool efs_decode_avx512(const struct efs_cascade_block *block, uint8_t *out);
bool efs_decode_merge_avx512(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm,
                             uint8_t *dst, bool stream);

#endif
