/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte_table.h - expand and compress 8 bytes under an 8-bit mask by one table shuffle, for processors without an
 * instruction for it. Private.
 *
 * expand: byte i takes source byte k if bit i is the k-th set bit, and becomes 0 if the bit is clear (index 0x80).
 * compress: byte k takes source byte i if bit i is the k-th set bit; bytes past the last set bit are junk.
 */
#ifndef EFS_KERNELS_BYTE_TABLE_H
#define EFS_KERNELS_BYTE_TABLE_H

#include <stdint.h>

#define EFS_BIT(m, i) ((uint64_t)(m) >> (i)&1)
/* Set bits of m below bit i. */
#define EFS_BELOW_1(m) EFS_BIT(m, 0)
#define EFS_BELOW_2(m) (EFS_BELOW_1(m) + EFS_BIT(m, 1))
#define EFS_BELOW_3(m) (EFS_BELOW_2(m) + EFS_BIT(m, 2))
#define EFS_BELOW_4(m) (EFS_BELOW_3(m) + EFS_BIT(m, 3))
#define EFS_BELOW_5(m) (EFS_BELOW_4(m) + EFS_BIT(m, 4))
#define EFS_BELOW_6(m) (EFS_BELOW_5(m) + EFS_BIT(m, 5))
#define EFS_BELOW_7(m) (EFS_BELOW_6(m) + EFS_BIT(m, 6))

#define EFS_EXPAND_BYTE(m, i, below) ((EFS_BIT(m, i) ? (below) : UINT64_C(0x80)) << 8 * (i))
#define EFS_EXPAND(m)                                                                                                  \
    (EFS_EXPAND_BYTE(m, 0, 0) | EFS_EXPAND_BYTE(m, 1, EFS_BELOW_1(m)) | EFS_EXPAND_BYTE(m, 2, EFS_BELOW_2(m)) |        \
     EFS_EXPAND_BYTE(m, 3, EFS_BELOW_3(m)) | EFS_EXPAND_BYTE(m, 4, EFS_BELOW_4(m)) |                                   \
     EFS_EXPAND_BYTE(m, 5, EFS_BELOW_5(m)) | EFS_EXPAND_BYTE(m, 6, EFS_BELOW_6(m)) |                                   \
     EFS_EXPAND_BYTE(m, 7, EFS_BELOW_7(m)))

#define EFS_COMPRESS_BYTE(m, i, below) (EFS_BIT(m, i) * UINT64_C(i) << 8 * (below))
#define EFS_COMPRESS(m)                                                                                                \
    (EFS_COMPRESS_BYTE(m, 1, EFS_BELOW_1(m)) | EFS_COMPRESS_BYTE(m, 2, EFS_BELOW_2(m)) |                               \
     EFS_COMPRESS_BYTE(m, 3, EFS_BELOW_3(m)) | EFS_COMPRESS_BYTE(m, 4, EFS_BELOW_4(m)) |                               \
     EFS_COMPRESS_BYTE(m, 5, EFS_BELOW_5(m)) | EFS_COMPRESS_BYTE(m, 6, EFS_BELOW_6(m)) |                               \
     EFS_COMPRESS_BYTE(m, 7, EFS_BELOW_7(m)))

#define EFS_TABLE_4(f, m) f(m), f((m) + 1), f((m) + 2), f((m) + 3)
#define EFS_TABLE_16(f, m) EFS_TABLE_4(f, m), EFS_TABLE_4(f, (m) + 4), EFS_TABLE_4(f, (m) + 8), EFS_TABLE_4(f, (m) + 12)
#define EFS_TABLE_64(f, m)                                                                                             \
    EFS_TABLE_16(f, m), EFS_TABLE_16(f, (m) + 16), EFS_TABLE_16(f, (m) + 32), EFS_TABLE_16(f, (m) + 48)
#define EFS_TABLE_256(f) EFS_TABLE_64(f, 0), EFS_TABLE_64(f, 64), EFS_TABLE_64(f, 128), EFS_TABLE_64(f, 192)

static const uint64_t efs_expand_table[256] __attribute__((aligned(64))) = {EFS_TABLE_256(EFS_EXPAND)};
static const uint64_t efs_compress_table[256] __attribute__((aligned(64))) = {EFS_TABLE_256(EFS_COMPRESS)};

#endif
