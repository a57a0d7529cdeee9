/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - the chunk pool's memory: segments of huge-page-backed memory, cut in 4 KiB granules.
 *
 * Every memory node of the machine has one range of addresses, reserved when the arena is made; a segment is a part of
 * one. Growing makes a part usable and binds its pages to the node, dropping gives the pages back, the addresses stay.
 * Where addresses cannot be reserved, a segment is mapped by itself; where a node is full or binding fails, a segment
 * is not bound: slower, and the node says so. Where other processes are to see chunks, a segment is a window file
 * (memfile.h), if one can be had.
 *
 * A block of any number of granules is contiguous inside one segment. E-chunks are placed from a segment's low end,
 * SM-chunks from its high end: SM-chunks of equal tensors are equal in size, so that their holes are refilled exactly.
 * Within a node the first segment with room is taken. Not thread-safe: the caller's lock guards it, but for what is
 * said to be without it.
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
    uint8_t *base;   /* NULL: the slot is free */
    uint64_t *taken; /* a bit a granule */
    uint32_t free_granules;
    uint32_t held; /* the owner's: blocks that are not given back for long, so that it cannot leave */
    uint32_t node; /* index into the arena's nodes; slots of a node follow each other */
    struct efs_window_file file;
    uint64_t huge_bytes;     /* like pinned */
    bool pinned;             /* set and read by the I/O thread alone: registered with its ring */
    bool populated;          /* like pinned, or while populating by who does that */
    _Atomic bool populating; /* efs_arena_populate_part() is at work: the I/O thread lets it alone */
    bool bound;              /* its pages come from the node */
    bool retiring;           /* takes no new blocks; set by the owner, goes only with efs_arena_drop() */
    bool coming;             /* chosen, and not added yet: there is no base */
    bool given_back;         /* efs_arena_give_back() was there */
};

/* A segment that is to come: chosen with the lock, made usable without, added with it again. */
struct efs_coming_segment {
    uint32_t segment;
    bool full; /* no node has memory: it is not bound */
    uint8_t *base;
    uint64_t *taken;
    struct efs_window_file file;
    errint_t bind_error; /* 0: it is bound, or was not to be */
};

struct efs_arena_node { /* to be read by all who show it */
    struct efs_numa_node numa;
    uint32_t first, slots; /* its segments' indices */
    uint32_t segment_count, coming_count, bound_count;
    errint_t
        bind_error; /* why the last segment that is not bound is not: -ENOMEM the node was full; 0: not asked for */
    bool reserved;  /* its addresses are contiguous */
    uint64_t used_bytes;
    /* its own */
    uint8_t *base;
    uint32_t *longest, leaves; /* a tree: the longest free run that a segment may have */
};

struct efs_arena {
    size_t segment_bytes;                /* a multiple of 2 MiB */
    uint32_t segment_max, segment_count; /* slots, segments that have memory */
    struct efs_segment *segments;
    uint32_t newest; /* what was added last */
    uint64_t used_bytes;
    const char *numa_kind;         /* see efs_numa */
    struct efs_memfiles *memfiles; /* where segments are made that others may see; NULL: nobody may */
    uint32_t node_count;
    struct efs_arena_node *nodes;
    /* Of the segments that efs_arena_populate() filled, and how much of that are huge pages; huge_unknown: the system
     * does not tell (Linux before 6.7). */
    _Atomic uint64_t populated_bytes, huge_bytes;
    _Atomic bool huge_unknown;
    errint_t (*bind)(void *memory, size_t bytes, uint32_t id);
    uint64_t (*available_bytes)(uint32_t id);
    pthread_mutex_t watch_lock; /* guards who watches, for any thread */
    struct efs_chunk_watch *watch;
};

struct efs_block {
    uint8_t *data; /* NULL: none */
    uint32_t granules;
    uint32_t segment;
};

/* On the nodes of this machine (efs_numa_discover()). -EINVAL: segment_bytes is not a multiple of 2 MiB, or no slots;
 * -ENOMEM. No memory is used yet but for the tables. */
errint_t efs_arena_init(struct efs_arena *arena, size_t segment_bytes, uint32_t segment_max);
/* On these nodes. Slots are shared out as the nodes have memory; a node without a slot is left out. */
errint_t efs_arena_init_nodes(struct efs_arena *arena, size_t segment_bytes, uint32_t segment_max,
                              const struct efs_numa *numa);
void efs_arena_destroy(struct efs_arena *arena);
/* Add a segment, to the node that has used the least of its share and still has memory. -ENOMEM when the system has
 * none or all slots are taken. The caller accounts for it. */
errint_t efs_arena_grow(struct efs_arena *arena);
/* The same in three steps, for who must not wait for the system with the lock held. Nodes that have memory for a
 * segment, a bit each; without the lock. */
uint64_t efs_arena_nodes_with_memory(const struct efs_arena *arena);
/* false: all slots are taken or chosen. */
bool efs_arena_choose(struct efs_arena *arena, uint64_t with_memory, struct efs_coming_segment *coming);
/* Without the lock. 0, -ENOMEM. */
errint_t efs_arena_prepare(const struct efs_arena *arena, struct efs_coming_segment *coming);
/* Or, should it not be wanted or not be there (what was prepared goes). */
void efs_arena_add(struct efs_arena *arena, const struct efs_coming_segment *coming);
void efs_arena_forget(struct efs_arena *arena, const struct efs_coming_segment *coming);
/* Return the memory of a segment without blocks. What takes time of it is giving the pages back, which may be done
 * before without the lock, if the segment is retiring. */
void efs_arena_drop(struct efs_arena *arena, uint32_t segment);
void efs_arena_give_back(struct efs_arena *arena, uint32_t segment);
/* The I/O thread, without the lock, when the segment is first used: have its pages all at once, and see whether they
 * are huge. -ENOMEM: not all of them can be had; 0 also where older kernels leave it to who touches them. */
errint_t efs_arena_populate(struct efs_arena *arena, uint32_t segment);
/* The same by another thread, part by part, of a segment that was marked as populating before it got blocks: the pages
 * from byte offset on; then, or to give up, _done(). 0, -errno: older kernels cannot. */
#define EFS_ARENA_PART ((size_t)2 << 20)
errint_t efs_arena_populate_part(struct efs_arena *arena, uint32_t segment, size_t offset);
void efs_arena_populate_done(struct efs_arena *arena, uint32_t segment, bool whole);

/* Who watches is told by efs_arena_give_back(), before pages go. */
void efs_arena_watch(struct efs_arena *arena, struct efs_chunk_watch *watch);
void efs_arena_unwatch(struct efs_arena *arena, struct efs_chunk_watch *watch);
/* The segment that has this address; NULL: none. */
void *efs_arena_segment_at(const struct efs_arena *arena, const void *address);

/* A block of bytes bytes (rounded up to granules); from_high: place it from the high end. false: no room. It comes from
 * the node with the most room, if possible. */
bool efs_arena_alloc(struct efs_arena *arena, size_t bytes, bool from_high, struct efs_block *block);
/* The same, from that node (index into nodes, or EFS_ANY_NODE) if possible. */
bool efs_arena_alloc_on(struct efs_arena *arena, uint32_t node, size_t bytes, bool from_high, struct efs_block *block);
void efs_arena_free(struct efs_arena *arena, struct efs_block *block); /* block is cleared; NULL data is fine */
/* The node that a block is on; EFS_ANY_NODE for none. */
uint32_t efs_arena_node_of(const struct efs_arena *arena, const struct efs_block *block);
/* Lines of `name: value`: expertfs-proc(5), CONFIG, from numa on. */
void efs_arena_describe(const struct efs_arena *arena, FILE *out);
bool efs_arena_segment_empty(const struct efs_arena *arena, uint32_t segment);

#endif
