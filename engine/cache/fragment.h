/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fragment.h - fragments: single pages of chunks in the memory of the chunk pool, for small reads of extents that are
 * not in memory. A fragment was compared with its page checksum before it was put here, unless the store is plain.
 *
 * Fragments are kept in slabs of EFS_FRAGMENT_SLAB bytes. The oldest slab is reused for new fragments, except those of
 * its fragments that were read meanwhile (second chance). Fragments have no references: they are copied under the lock,
 * and can be evicted at any time. Fragments take at most half of the budget for pools, and are evicted before extents
 * while they have more than an eighth.
 */
#ifndef EFS_FRAGMENT_H
#define EFS_FRAGMENT_H

#include "efs.h"

#define EFS_FRAGMENT_SLAB (256u << 10)

/* The bytes of one chunk in a page of the store: a page that two chunks share is two fragments. */
struct efs_fragment_key {
    uint64_t page;  /* number of the page in the store */
    uint32_t chunk; /* 2 * shard, + 1 for the SM-chunk; EFS_NONE: page checksums */
};

/* Memory of the table, bytes: part of the fixed memory; 0 for a packed store without page checksums. */
uint64_t efs_fragments_bytes(const struct efs *fs);
errint_t efs_fragments_build(struct efs *fs); /* 0, -ENOMEM */
void efs_fragments_destroy(struct efs *fs);
/* With lock held: */
/* Copies bytes [begin, begin + bytes) of the fragment, by efs_copy_locked(). false: it is not here. */
bool efs_fragment_get(struct efs *fs, struct efs_fragment_key key, size_t begin, size_t bytes, void *dst);
/* Evicts the oldest slab; if_many: if fragments take more than their share. false: none. */
bool efs_fragments_evict(struct efs *fs, bool if_many);
void efs_fragments_drop_retiring(struct efs *fs); /* drops slabs in retiring segments */
/* Whether to read pages of the extent: it is not in memory nor being loaded, and has few fragments. With half of its
 * pages here, and at least 64, reading the rest at once takes less of the disk. A limit of 64 alone makes random reads
 * of a table load extents that they evict before all is used: 29 KiB of disk a read, not 5. */
bool efs_fragments_serve(const struct efs *fs, uint32_t extent);
/* The steps of efs_fragment_put(): adds a fragment to the newest slab (false: it has no room); whether there may be
 * another one; makes a slab of this memory, or of the oldest one (data NULL), the newest (false: there is none). */
bool efs_fragments_add(struct efs *fs, struct efs_fragment_key key, uint32_t extent, const void *page);
bool efs_fragments_may_grow(const struct efs *fs);
bool efs_fragments_make_room(struct efs *fs, const struct efs_block *block);

/* ---- extent_load.c ---- */
/* With lock held: adds a fragment of an extent, if memory is free, or can be freed by evicting fragments or extents
 * that are not needed. The page is copied by efs_copy_locked(). */
void efs_fragment_put(struct efs *fs, struct efs_fragment_key key, uint32_t extent, const void *page);

#endif
