/* SPDX-License-Identifier: Apache-2.0 */
/* hash.c - XXH3_64 with the widest vectors that the processor has. */
#include "hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

typedef uint64_t hash_fn(const void *data, size_t bytes);

static uint64_t hash_baseline(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

static hash_fn *hash_choose(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        return efs_hash_avx2;
#endif
    return hash_baseline;
}

/* Set once; threads that race here store the same value. */
static hash_fn *chosen;

uint64_t efs_hash(const void *data, size_t bytes)
{
    hash_fn *hash = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (!hash) {
        hash = hash_choose();
        __atomic_store_n(&chosen, hash, __ATOMIC_RELAXED);
    }
    return hash(data, bytes);
}
