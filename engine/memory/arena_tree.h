/* SPDX-License-Identifier: Apache-2.0 */
/* arena_tree.h - a tree that finds the first segment of a node with a free run of some length. Used by arena*.c
 * only. */
#ifndef EFS_ARENA_TREE_H
#define EFS_ARENA_TREE_H

#include "arena.h"

static inline uint32_t efs_arena_granules(const struct efs_arena *arena)
{
    return (uint32_t)(arena->segment_bytes / EFS_GRANULE);
}

/* slot: the segment's index within its node. A value in the tree is an upper bound: it can be too large after an
 * allocation. 0: the slot is unused, or the segment takes no new blocks. */
static inline void efs_arena_set_longest(struct efs_arena_node *node, uint32_t slot, uint32_t granules)
{
    uint32_t i = node->leaves + slot, *tree = node->longest;
    for (tree[i] = granules; i > 1; i /= 2)
        tree[i / 2] = tree[i] > tree[i ^ 1] ? tree[i] : tree[i ^ 1];
}

/* The first slot that may have `need` (at least 1) consecutive free granules, or UINT32_MAX. */
static inline uint32_t efs_arena_first_with(const struct efs_arena_node *node, uint32_t need)
{
    uint32_t i = 1;
    if (node->longest[1] < need)
        return UINT32_MAX;
    while (i < node->leaves)
        i = node->longest[2 * i] >= need ? 2 * i : 2 * i + 1;
    return i - node->leaves;
}

#endif
