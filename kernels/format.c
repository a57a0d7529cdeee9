/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.c - the formats' sizes, and split, merge and histogram over any number of elements.
 */
#include "ops.h"

#include <string.h>

size_t efs_format_bytes(enum efs_format format)
{
    switch (format) {
    case EFS_FORMAT_BYTES:
    case EFS_FORMAT_E4M3:
    case EFS_FORMAT_E5M2:
        return 1;
    case EFS_FORMAT_BF16:
    case EFS_FORMAT_F16:
        return 2;
    case EFS_FORMAT_F32:
        return 4;
    case EFS_FORMAT_COUNT:
        break;
    }
    return 0;
}

/* SM bytes of one block of m elements. */
static size_t block_sm_bytes(enum efs_format format, size_t m)
{
    switch (format) {
    case EFS_FORMAT_BF16:
        return m;
    case EFS_FORMAT_F16:
        return m + efs_plane_bytes(m, 2) + efs_plane_bytes(m, 1);
    case EFS_FORMAT_F32:
        return 3 * m;
    case EFS_FORMAT_E4M3:
        return efs_plane_bytes(m, 4);
    case EFS_FORMAT_E5M2:
        return efs_plane_bytes(m, 2) + efs_plane_bytes(m, 1);
    case EFS_FORMAT_BYTES:
    case EFS_FORMAT_COUNT:
        break;
    }
    return 0;
}

size_t efs_sm_bytes(enum efs_format format, size_t n)
{
    return n / EFS_BLOCK * block_sm_bytes(format, EFS_BLOCK) + block_sm_bytes(format, n % EFS_BLOCK);
}

/* Splits in blocks of `block` elements. */
static void split_blocks(enum efs_format format, size_t block, const void *src, size_t n, uint8_t *e, uint8_t *sm)
{
    const struct efs_kernel_ops *ops = efs_ops();
    const uint8_t *from = src;
    size_t element_bytes = efs_format_bytes(format), sm_step = block_sm_bytes(format, block);

    if (format == EFS_FORMAT_BYTES && n > 0)
        memcpy(e, src, n);
    if (format == EFS_FORMAT_BYTES || element_bytes == 0)
        return;
    while (n > 0) {
        size_t m = n < block ? n : block;
        ops->split(format, from, m, e, sm);
        from += m * element_bytes;
        e += m;
        sm += sm_step;
        n -= m;
    }
}

void efs_split(enum efs_format format, const void *src, size_t n, uint8_t *e, uint8_t *sm)
{
    split_blocks(format, EFS_BLOCK, src, n, e, sm);
}

void efs_split_short(enum efs_format format, const void *src, size_t n, uint8_t *e, uint8_t *sm)
{
    split_blocks(format, EFS_SHORT_BLOCK, src, n, e, sm);
}

void efs_merge(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t n, void *dst)
{
    const struct efs_kernel_ops *ops = efs_ops();
    uint8_t *to = dst;
    size_t element_bytes = efs_format_bytes(format), sm_step = block_sm_bytes(format, EFS_BLOCK);

    if (format == EFS_FORMAT_BYTES && n > 0)
        memcpy(dst, e, n);
    if (format == EFS_FORMAT_BYTES || element_bytes == 0)
        return;
    while (n > 0) {
        size_t m = n < EFS_BLOCK ? n : EFS_BLOCK;
        ops->merge(format, e, sm, m, to);
        to += m * element_bytes;
        e += m;
        sm += sm_step;
        n -= m;
    }
}

void efs_histogram(const uint8_t *data, size_t n, uint64_t counts[256])
{
    efs_ops()->histogram(data, n, counts);
}
