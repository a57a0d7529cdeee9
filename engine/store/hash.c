/* SPDX-License-Identifier: Apache-2.0 */
/* hash.c - XXH3_64 by the library, which on x86 chooses the widest vectors that the processor has. */
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
