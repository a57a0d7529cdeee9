/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h - memory that can be saved and restored: the heap of the engine and of the model's callers. While the heap
 * is on, malloc() and its kin, which the Makefile replaces (--wrap), take memory from it. The pages that were written
 * since snapshot_begin() are tracked by write protection; a snapshot is a copy of these pages, so it costs some
 * microseconds.
 */
#ifndef EFS_MODEL_SNAPSHOT_H
#define EFS_MODEL_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- heap ---- */

/* A block on the heap. `data` begins after it. */
struct heap_block {
    uint32_t size_class;
    uint32_t bytes; /* requested */
    uint64_t tag;   /* heap_tag() and the number of the allocation since then; 0: allocated before snapshot_begin() */
    struct heap_block *next, **link; /* live blocks with a tag */
};

/* Reserves the heap and turns it on. */
void heap_begin(void);
/* Turns it off and on: memory of the engine is freed by the function that fits its address in either case. */
void heap_enable(bool on);
/* Allocations from here on belong to this actor, a number from 1 on. */
void heap_tag(uint32_t actor);
/* Both with the number of allocations since then. */
uint64_t heap_tag_get(void);
void heap_tag_set(uint64_t tag);
/* The live blocks that were allocated since snapshot_begin(). */
const struct heap_block *heap_live(void);
/* The live block that contains the address; NULL: none, or it has no tag. */
const struct heap_block *heap_block_at(const void *address);
bool heap_contains(const void *address);
/* Whether the address is in no block that is allocated, in memory that was given out since snapshot_begin(). */
bool heap_is_free(const void *address);
/* Whether the number may be one half of an address in that memory. */
bool heap_is_half(uint32_t half);

/* ---- snapshots ---- */

struct snapshot {
    unsigned pages;
    uint8_t *data;
    unsigned capacity;
};

/* Starts to track writes. */
void snapshot_begin(void);
void snapshot_end(void);
/* Pages that were written since snapshot_begin(). */
unsigned snapshot_pages(void);
/* Copies them; the memory of *snapshot is reused. */
void snapshot_save(struct snapshot *snapshot);
/* Sets the heap to its content at snapshot_save(). */
void snapshot_restore(const struct snapshot *snapshot);

#endif
