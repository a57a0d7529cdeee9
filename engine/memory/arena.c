/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - see arena.h: blocks. Each node has a tree over upper bounds of the longest free runs of its segments, which
 * leads to the first candidate in log(segments) steps; the run is then found in the segment's bitmap (64 words for 16
 * MiB).
 */
#include "arena.h"

#include "arena_tree.h"
#include "runs.h"

static bool alloc_in(struct efs_arena *arena, struct efs_arena_node *node, uint32_t need, bool from_high,
                     struct efs_block *block)
{
    uint32_t all = efs_arena_granules(arena), slot;
    while ((slot = efs_arena_first_with(node, need)) != UINT32_MAX) {
        struct efs_segment *s = &arena->segments[node->first + slot];
        uint32_t longest = 0;
        uint32_t g = s->retiring ? all : efs_runs_find(s->allocated, all, need, from_high, &longest);
        if (g == all) { /* the bound was too large */
            efs_arena_set_longest(node, slot, longest);
            continue;
        }
        efs_runs_mark(s->allocated, g, need, true);
        s->free_granules -= need;
        node->used_bytes += (uint64_t)need * EFS_GRANULE;
        arena->used_bytes += (uint64_t)need * EFS_GRANULE;
        *block = (struct efs_block){s->base + (size_t)g * EFS_GRANULE, need, node->first + slot};
        return true;
    }
    return false;
}

static uint32_t with_most_room(const struct efs_arena *arena)
{
    uint32_t best = 0;
    uint64_t most = 0;
    for (uint32_t n = 0; n < arena->node_count; n++) {
        const struct efs_arena_node *node = &arena->nodes[n];
        uint64_t room = (uint64_t)node->segment_count * arena->segment_bytes - node->used_bytes;
        if (room > most) {
            most = room;
            best = n;
        }
    }
    return best;
}

bool efs_arena_alloc_on(struct efs_arena *arena, uint32_t node, size_t bytes, bool from_high, struct efs_block *block)
{
    if (bytes == 0 || bytes > arena->segment_bytes)
        return false;
    uint32_t need = (uint32_t)((bytes + EFS_GRANULE - 1) / EFS_GRANULE);
    uint32_t wanted = node < arena->node_count ? node : with_most_room(arena);
    if (alloc_in(arena, &arena->nodes[wanted], need, from_high, block))
        return true;
    for (uint32_t n = 0; n < arena->node_count; n++)
        if (n != wanted && alloc_in(arena, &arena->nodes[n], need, from_high, block))
            return true;
    return false;
}

bool efs_arena_alloc(struct efs_arena *arena, size_t bytes, bool from_high, struct efs_block *block)
{
    return efs_arena_alloc_on(arena, EFS_ANY_NODE, bytes, from_high, block);
}

void efs_arena_free(struct efs_arena *arena, struct efs_block *block)
{
    if (!block->data)
        return;
    struct efs_segment *s = &arena->segments[block->segment];
    struct efs_arena_node *node = &arena->nodes[s->node];
    uint32_t first = (uint32_t)((size_t)(block->data - s->base) / EFS_GRANULE), slot = block->segment - node->first;
    efs_runs_mark(s->allocated, first, block->granules, false);
    s->free_granules += block->granules;
    node->used_bytes -= (uint64_t)block->granules * EFS_GRANULE;
    arena->used_bytes -= (uint64_t)block->granules * EFS_GRANULE;
    if (s->retiring) {
        arena->emptied |= efs_arena_segment_is_unused(arena, block->segment);
    } else {
        uint32_t run = efs_runs_around(s->allocated, efs_arena_granules(arena), first, block->granules);
        if (run > node->longest[node->leaves + slot])
            efs_arena_set_longest(node, slot, run);
    }
    *block = (struct efs_block){0};
}

uint32_t efs_arena_node_of(const struct efs_arena *arena, const struct efs_block *block)
{
    return block->data ? arena->segments[block->segment].node : EFS_ANY_NODE;
}

bool efs_arena_segment_is_unused(const struct efs_arena *arena, uint32_t segment)
{
    const struct efs_segment *s = &arena->segments[segment];
    return s->retiring && s->free_granules == efs_arena_granules(arena) && !atomic_load(&s->populating);
}

void efs_arena_retire(struct efs_arena *arena, uint32_t segment)
{
    arena->segments[segment].retiring = true;
    arena->emptied |= efs_arena_segment_is_unused(arena, segment);
}

void efs_arena_set_populating(struct efs_arena *arena, uint32_t segment, bool populating)
{
    atomic_store(&arena->segments[segment].populating, populating);
    arena->emptied |= efs_arena_segment_is_unused(arena, segment);
}
