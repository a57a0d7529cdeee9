/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_rehash.h - recomputes the checksums of a store that a test has changed, as a forger would. Offsets and lengths
 * may be out of range: chunks and tables that are not inside the store keep their checksums.
 */
#ifndef EFS_STORE_REHASH_H
#define EFS_STORE_REHASH_H

#include "hash.h"
#include "layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool store_rehash_within(uint64_t offset, uint64_t bytes, size_t store_bytes)
{
    return offset <= store_bytes && bytes <= store_bytes - offset;
}

/* Recompute the checksums of all chunks, in the table of shards. */
static inline void store_rehash_chunks(unsigned char *store, size_t bytes)
{
    struct efs_disk_superblock s;
    struct efs_disk_shard d;
    memcpy(&s, store, sizeof(s));
    const struct efs_disk_table *shards = &s.tables[EFS_TABLE_SHARDS];
    for (uint64_t i = 0; i < shards->count && store_rehash_within(shards->offset, (i + 1) * sizeof(d), bytes); i++) {
        unsigned char *at = store + shards->offset + i * sizeof(d);
        memcpy(&d, at, sizeof(d));
        if (store_rehash_within(d.e_offset, d.e_bytes, bytes))
            d.e_hash = efs_hash(store + d.e_offset, d.e_bytes);
        if (store_rehash_within(d.sm_offset, d.sm_bytes, bytes))
            d.sm_hash = efs_hash(store + d.sm_offset, d.sm_bytes);
        memcpy(at, &d, sizeof(d));
    }
}

/* Recompute the checksums of all tables, the content hash and the superblock's checksum. */
static inline void store_rehash(unsigned char *store, size_t bytes)
{
    struct efs_disk_superblock s;
    uint64_t hashes[EFS_TABLE_COUNT];
    memcpy(&s, store, sizeof(s));
    for (int t = 0; t < EFS_TABLE_COUNT; t++) {
        struct efs_disk_table *table = &s.tables[t];
        if (store_rehash_within(table->offset, table->bytes, bytes))
            table->hash = efs_hash(store + table->offset, table->bytes);
        hashes[t] = table->hash;
    }
    s.content_hash = efs_hash(hashes, sizeof(hashes));
    s.hash = efs_hash(&s, offsetof(struct efs_disk_superblock, hash));
    memcpy(store, &s, sizeof(s));
}

#endif
