/*
 * arena.h - the chunk pool's memory: segments of huge-page-backed memory, cut in 4 KiB granules.
 *
 * A block of any number of granules is contiguous inside one segment. E-chunks are placed from a segment's low end,
 * SM-chunks from its high end: SM-chunks of equal tensors are equal in size, so that their holes are refilled exactly.
 * Not thread-safe: the caller's lock guards it.
 */
#ifndef EFS_ARENA_H
#define EFS_ARENA_H

#include "libexpertfs.h"

#define EFS_GRANULE 4096u

struct efs_segment {
    uint8_t *base;   /* NULL: the slot is free */
    uint64_t *taken; /* a bit a granule */
    uint32_t free_granules;
    bool pinned;   /* set and read by the I/O thread alone: registered with its ring */
    bool retiring; /* takes no new blocks */
};

struct efs_arena {
    size_t segment_bytes;                /* a multiple of 2 MiB */
    uint32_t segment_max, segment_count; /* slots, segments that have memory */
    struct efs_segment *segments;
    uint64_t used_bytes;
};

struct efs_block {
    uint8_t *data; /* NULL: none */
    uint32_t granules;
    uint32_t segment;
};

errint_t efs_arena_init(struct efs_arena *arena, size_t segment_bytes, uint32_t segment_max);
void efs_arena_destroy(struct efs_arena *arena);
/* Add a segment. -ENOMEM when the system has no memory or all slots are taken. The caller accounts for it. */
errint_t efs_arena_grow(struct efs_arena *arena);
/* Return the memory of a segment without blocks. */
void efs_arena_drop(struct efs_arena *arena, uint32_t segment);
/* A block of bytes bytes (rounded up to granules); from_high: place it from the high end. false: no room. */
bool efs_arena_alloc(struct efs_arena *arena, size_t bytes, bool from_high, struct efs_block *block);
void efs_arena_free(struct efs_arena *arena, struct efs_block *block); /* block is cleared; NULL data is fine */
bool efs_arena_segment_empty(const struct efs_arena *arena, uint32_t segment);

#endif
