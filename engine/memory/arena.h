/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - memory of the chunk pool: segments backed by huge pages, divided into granules of 4 KiB.
 *
 * memory/ provides the memory of the pools: segments of the chunk pool (arena), memory files of decoded experts
 * (memfile.h), NUMA nodes, and the amount of memory that is left. io/, cache/, budget/, planner/, fetch/, control/,
 * serve/ and gpu/ call it, core/ contains its arena; the daemon and the tools call efs_memory() and efs_auto_budget().
 * It never takes efs.lock and never reads a store.
 *
 * Each memory node of the machine has one range of addresses, reserved when the arena is initialized; a segment is a
 * part of one range. Adding a segment makes its part accessible and binds its pages to the node; dropping it releases
 * the pages and keeps the addresses reserved. If addresses cannot be reserved, each segment is mapped separately. If a
 * node is full or binding fails, the segment is not bound: access is slower, and the node's bind_error says why. If
 * other processes are to read chunks, a segment is a window file (memfile.h) where one can be created.
 *
 * A block of any number of granules is contiguous in one segment. E-chunks are allocated from the low end of a segment,
 * SM-chunks from its high end: SM-chunks of equal tensors have equal sizes and refill their holes exactly. A node
 * allocates from its first segment with enough room. Not thread-safe: the caller's lock guards the arena, except in
 * functions documented as called without it.
 */
#ifndef EFS_ARENA_H
#define EFS_ARENA_H

#include "expertfs-private.h"
#include "memfile.h"
#include "numa_nodes.h"

#include <pthread.h>
#include <stdio.h>

#define EFS_GRANULE 4096u
#define EFS_ANY_NODE UINT32_MAX

struct efs_segment {
    uint8_t *base;       /* NULL: the slot is unused */
    uint64_t *allocated; /* one bit per granule */
    uint32_t free_granules;
    uint32_t long_refs; /* of the owner: long-lived blocks, which prevent dropping it */
    uint32_t node;      /* index into efs_arena.nodes; the slots of a node are consecutive */
    struct efs_window_file file;
    uint64_t huge_bytes;     /* access as for registered */
    bool registered;         /* registered with the ring; accessed by the I/O thread only */
    bool populated;          /* access as for registered; while populating is set, by the populating thread */
    _Atomic bool populating; /* another thread populates it: the I/O thread does not register it */
    bool bound;              /* its pages are bound to the node */
    bool retiring;           /* no new allocations: efs_arena_retire() to efs_arena_drop() */
    bool pending;            /* chosen but not added yet: base is NULL */
    bool pages_released;     /* efs_arena_release_pages() has run */
};

/* A segment to be added: chosen with the lock held, prepared without it, added with it. */
struct efs_pending_segment {
    uint32_t segment;
    bool full; /* no node has enough memory: the segment is not bound */
    uint8_t *base;
    uint64_t *allocated;
    struct efs_window_file file;
    errint_t bind_error; /* 0: bound, or binding is off */
};

struct efs_arena_node {
    struct efs_numa_node numa;
    uint32_t first, slots; /* range of its segments' indices */
    uint32_t segment_count, pending_count, bound_count;
    errint_t bind_error; /* error of the last failed binding; -ENOMEM: the node was full; 0: none failed */
    bool reserved;       /* its addresses are one reserved range */
    uint64_t used_bytes;
    /* used only by arena.c: */
    uint8_t *base;
    uint32_t *longest, leaves; /* tree over the segments: upper bounds of their longest free runs */
};

struct efs_arena {
    size_t segment_bytes;                /* a multiple of 2 MiB */
    uint32_t segment_max, segment_count; /* slots; segments in use */
    struct efs_segment *segments;
    uint32_t newest; /* the segment added last */
    bool emptied;    /* a retiring segment can be dropped: set by efs_arena_*(), cleared by the owner */
    uint64_t used_bytes;
    const char *numa_kind;         /* see efs_numa */
    struct efs_memfiles *memfiles; /* creates segments that other processes can map; NULL: segments are private */
    uint32_t node_count;
    struct efs_arena_node *nodes;
    /* Bytes of the populated segments, and how many of them are mapped by huge pages. huge_unknown: the kernel does
     * not report huge pages (before Linux 6.7). */
    _Atomic uint64_t populated_bytes, huge_bytes;
    _Atomic bool huge_unknown;
    errint_t (*bind)(void *memory, size_t bytes, uint32_t id);
    uint64_t (*available_bytes)(uint32_t id);
    pthread_mutex_t watch_lock; /* guards watch; taken by any thread */
    struct efs_chunk_watch *watch;
};

struct efs_block {
    uint8_t *data; /* NULL: none */
    uint32_t granules;
    uint32_t segment;
};

/* Initializes the arena on the nodes of this machine (efs_numa_discover()). -EINVAL: segment_bytes is not a multiple
 * of 2 MiB, or segment_max is out of range; -ENOMEM. Allocates only the tables. */
errint_t efs_arena_init(struct efs_arena *arena, size_t segment_bytes, uint32_t segment_max);
/* As efs_arena_init(), on the given nodes. Slots are divided in proportion to the nodes' memory; a node without a
 * slot is not used. */
errint_t efs_arena_init_nodes(struct efs_arena *arena, size_t segment_bytes, uint32_t segment_max,
                              const struct efs_numa *numa);
void efs_arena_destroy(struct efs_arena *arena);
/* Adds a segment to the node that has used the least of its slots and has enough memory. -ENOMEM if the system has
 * no memory or all slots are in use. The caller accounts for the memory. */
errint_t efs_arena_grow(struct efs_arena *arena);
/* efs_arena_grow() in three steps, for callers that must not wait for the system with the lock held. First, without
 * the lock: a bit mask of the nodes that have memory for a segment. */
uint64_t efs_arena_nodes_with_memory(const struct efs_arena *arena);
/* With the lock. false: all slots are in use or chosen. */
bool efs_arena_choose(struct efs_arena *arena, uint64_t with_memory, struct efs_pending_segment *pending);
/* Without the lock: maps and binds the segment. 0 or -ENOMEM. */
errint_t efs_arena_prepare(const struct efs_arena *arena, struct efs_pending_segment *pending);
/* With the lock: adds the prepared segment, or discards it (also after a failed efs_arena_prepare()). */
void efs_arena_add(struct efs_arena *arena, const struct efs_pending_segment *pending);
void efs_arena_discard(struct efs_arena *arena, const struct efs_pending_segment *pending);
/* Drops a segment that has no blocks. Most of the time is spent releasing its pages: efs_arena_release_pages() can do
 * that before, without the lock, if the segment is retiring. */
void efs_arena_drop(struct efs_arena *arena, uint32_t segment);
void efs_arena_release_pages(struct efs_arena *arena, uint32_t segment);
/* Called by the I/O thread without the lock when a segment is first used, or by another thread that has set its
 * populating flag before its first block was allocated: populates all its pages and counts the huge ones. -ENOMEM: some
 * pages are not available. 0 also if the kernel cannot populate (before Linux 5.14); pages are then allocated on first
 * access. */
errint_t efs_arena_populate(struct efs_arena *arena, uint32_t segment);

/* Registers a callback that efs_arena_release_pages() calls before it releases pages. */
void efs_arena_watch(struct efs_arena *arena, struct efs_chunk_watch *watch);
void efs_arena_unwatch(struct efs_arena *arena, struct efs_chunk_watch *watch);
/* Start of the segment that contains the address, or NULL. */
void *efs_arena_segment_at(const struct efs_arena *arena, const void *address);

/* Allocates a block of `bytes` bytes, rounded up to granules, if possible on the node with the most free bytes.
 * from_high: from the high end of a segment. false: no room. */
bool efs_arena_alloc(struct efs_arena *arena, size_t bytes, bool from_high, struct efs_block *block);
/* The same, if possible on the given node (index into nodes, or EFS_ANY_NODE). */
bool efs_arena_alloc_on(struct efs_arena *arena, uint32_t node, size_t bytes, bool from_high, struct efs_block *block);
void efs_arena_free(struct efs_arena *arena, struct efs_block *block); /* clears *block; does nothing if data is NULL */
/* The node of the block's segment; EFS_ANY_NODE if data is NULL. */
uint32_t efs_arena_node_of(const struct efs_arena *arena, const struct efs_block *block);
/* Writes the lines of CONFIG from "numa" on (expertfs-proc(5)): nodes and pages. */
void efs_arena_describe(const struct efs_arena *arena, FILE *out);
/* No more blocks are allocated in the segment, which can be dropped when it is empty. */
void efs_arena_retire(struct efs_arena *arena, uint32_t segment);
/* Sets whether a thread populates it: it cannot be dropped meanwhile. */
void efs_arena_set_populating(struct efs_arena *arena, uint32_t segment, bool populating);
/* Whether a retiring segment can be dropped. */
bool efs_arena_segment_is_unused(const struct efs_arena *arena, uint32_t segment);

#endif
