/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.h - byte counts in several tables, so that repeated bytes do not stall on store forwarding. Private.
 */
#ifndef EFS_KERNELS_HISTOGRAM_H
#define EFS_KERNELS_HISTOGRAM_H

#include "ops.h"

#include <string.h>

#define EFS_HISTOGRAM_TABLES 8
#define EFS_HISTOGRAM_PIECE (1u << 30) /* a table's counts are 32-bit */

static inline void efs_histogram_piece(const uint8_t *data, size_t n, uint64_t counts[256])
{
    uint32_t tables[EFS_HISTOGRAM_TABLES][256] = {{0}};
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, sizeof(word));
        for (unsigned t = 0; t < EFS_HISTOGRAM_TABLES; t++)
            tables[t][word >> 8 * t & 0xff]++;
    }
    for (; i < n; i++)
        tables[0][data[i]]++;
    for (unsigned s = 0; s < 256; s++) {
        uint64_t sum = 0;
        for (unsigned t = 0; t < EFS_HISTOGRAM_TABLES; t++)
            sum += tables[t][s];
        counts[s] += sum;
    }
}

static inline void efs_histogram_fast(const uint8_t *data, size_t n, uint64_t counts[256])
{
    for (; n > EFS_HISTOGRAM_PIECE; n -= EFS_HISTOGRAM_PIECE, data += EFS_HISTOGRAM_PIECE)
        efs_histogram_piece(data, EFS_HISTOGRAM_PIECE, counts);
    efs_histogram_piece(data, n, counts);
}

#endif
