/* SPDX-License-Identifier: Apache-2.0 */
/* chunk_memory.c - the chunk pool's segments, for who registers them with another device: see expertfs-private.h. */
#include "efs.h"

void efs_chunk_watch(struct efs *fs, struct efs_chunk_watch *watch)
{
    efs_arena_watch(&fs->arena, watch);
}

void efs_chunk_unwatch(struct efs *fs, struct efs_chunk_watch *watch)
{
    efs_arena_unwatch(&fs->arena, watch);
}

bool efs_chunk_segment(struct efs *fs, const void *chunk, void **base, size_t *bytes)
{
    efs_lock(fs);
    *base = efs_arena_segment_at(&fs->arena, chunk);
    *bytes = fs->arena.segment_bytes;
    efs_unlock(fs);
    return *base != NULL;
}
