/* SPDX-License-Identifier: Apache-2.0 */
/* chunk_check.c - compares a chunk with its checksum. */
#include "hash.h"
#include "store.h"

#include <errno.h>

errint_t efs_store_check_chunk(const struct efs_store *store, uint32_t shard, bool sm, const void *chunk)
{
    const struct efs_disk_shard *s = &store->shards[shard];
    uint64_t hash = efs_hash(chunk, sm ? s->sm_bytes : s->e_bytes), none = 0;
    if (!store->plain)
        return hash == (sm ? s->sm_hash : s->e_hash) ? 0 : -EUCLEAN;
    uint64_t *first = (uint64_t *)(uintptr_t)(sm ? &s->sm_hash : &s->e_hash); /* in the store's index, in memory */
    hash = hash ? hash : 1;                                                   /* 0: not read yet */
    if (__atomic_compare_exchange_n(first, &none, hash, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return 0;
    return none == hash ? 0 : -EIO;
}
