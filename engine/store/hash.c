/* SPDX-License-Identifier: Apache-2.0 */
/* hash.c - XXH3_64 of libxxhash, which on x86 selects the widest vectors that the CPU supports. */
#include "hash.h"

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

uint64_t efs_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}
