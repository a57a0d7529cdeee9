/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checks.h - page checksums of a shard, which let a reader verify a part of a chunk (struct efs_disk_shard).
 */
#ifndef EFS_CHECKS_H
#define EFS_CHECKS_H

#include "layout.h"

#include <stdbool.h>

/* Size of the page checksums of a shard whose chunks have their offsets and sizes; a multiple of EFS_CHECKS_BLOCK. */
uint32_t efs_checks_bytes(const struct efs_disk_shard *shard);
/* Offset in the store of the page checksums of a shard that has them. */
uint64_t efs_checks_offset(const struct efs_disk_shard *shard);
/* Computes the page checksums of a shard from its chunks into out, of efs_checks_bytes(). */
void efs_checks_make(const struct efs_disk_shard *shard, const void *e, const void *sm, void *out);

/* The checksum of one page of the shard's E-chunk or SM-chunk. */
struct efs_check_place {
    uint64_t block;        /* offset in the store of its block; a block does not cross a page */
    uint32_t slot;         /* its number in the block */
    uint32_t begin, bytes; /* the bytes of the page that it covers */
};
/* page: offset in the store of a page that the chunk has bytes in. */
struct efs_check_place efs_check_at(const struct efs_disk_shard *shard, bool sm, uint64_t page);
/* Whether the block is intact. */
bool efs_check_block(const void *block);
/* Whether the page's bytes have the checksum that the block, which is intact, has for it. */
bool efs_check_page(const struct efs_check_place *place, const void *block, const void *page);

#endif
