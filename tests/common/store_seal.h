/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_seal.h - the checksums of a store that a test has changed are made those of what is there, as somebody would
 * who forges one. Any number in it may be another by now: what lies outside of the store keeps its checksum.
 */
#ifndef EFS_STORE_SEAL_H
#define EFS_STORE_SEAL_H

#include "hash.h"
#include "layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool store_seal_within(uint64_t offset, uint64_t bytes, size_t store_bytes)
{
    return offset <= store_bytes && bytes <= store_bytes - offset;
}

/* Of all chunks, in the table of shards. */
static inline void store_seal_chunks(unsigned char *store, size_t bytes)
{
    struct efs_disk_superblock s;
    struct efs_disk_shard d;
    memcpy(&s, store, sizeof(s));
    const struct efs_disk_table *shards = &s.tables[EFS_TABLE_SHARDS];
    for (uint64_t i = 0; i < shards->count && store_seal_within(shards->offset, (i + 1) * sizeof(d), bytes); i++) {
        unsigned char *at = store + shards->offset + i * sizeof(d);
        memcpy(&d, at, sizeof(d));
        if (store_seal_within(d.e_offset, d.e_bytes, bytes))
            d.e_hash = efs_hash(store + d.e_offset, d.e_bytes);
        if (store_seal_within(d.sm_offset, d.sm_bytes, bytes))
            d.sm_hash = efs_hash(store + d.sm_offset, d.sm_bytes);
        memcpy(at, &d, sizeof(d));
    }
}

/* Of all tables, in the superblock, and its own. */
static inline void store_seal(unsigned char *store, size_t bytes)
{
    struct efs_disk_superblock s;
    uint64_t hashes[EFS_TABLE_COUNT];
    memcpy(&s, store, sizeof(s));
    for (int t = 0; t < EFS_TABLE_COUNT; t++) {
        struct efs_disk_table *table = &s.tables[t];
        if (store_seal_within(table->offset, table->bytes, bytes))
            table->hash = efs_hash(store + table->offset, table->bytes);
        hashes[t] = table->hash;
    }
    s.content_hash = efs_hash(hashes, sizeof(hashes));
    s.hash = efs_hash(&s, offsetof(struct efs_disk_superblock, hash));
    memcpy(store, &s, sizeof(s));
}

#endif
