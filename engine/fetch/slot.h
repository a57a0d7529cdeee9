/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot.h - reads that bypass the chunk pool. Each goes through a *slot*, which has memory for pages of the store:
 *
 *     piece    the part of the read in the next shard
 *     pages    the pages that are needed: copied from fragments (cache/fragment.h), or read from the store
 *     check    what was read is compared with page checksums
 *     decode   to the reader's memory; then the next piece
 *     reply    after the last piece; the slot is passed to the next read that waits for one
 *
 * There are slots of two sizes. A slot for a few pages makes *small reads*: of few bytes of an object with page
 * checksums, or of a plain store. A *bounce slot* has memory for a shard: it reads whole chunks, whose checksums the
 * decoder compares, for readers and loads that find no memory in the pool because clients hold it, for a few bytes of
 * an extent that is not worth loading, and for small reads whose pages are not good: it reports why, or succeeds. Of a
 * shard of which it had to read a part before, it reads only the pages that the piece needs.
 *
 * The slots are allocated when the store is opened. A slot is held for at most two reads of the disk and a decode of
 * each shard in turn, so a wait for one depends on the disk and the workers only.
 */
#ifndef EFS_SLOT_H
#define EFS_SLOT_H

#include "fetch.h"

#include "direct.h"
#include "extent.h"
#include "fragment.h"
#include "kernels.h"

#define EFS_SLOT_PAGES 20u

struct efs_slot_page {
    struct efs_fragment_key key;
    bool missing; /* to be read from the store */
};

struct efs_slot {
    struct efs_slot *next; /* free */
    uint8_t *memory;       /* not initialised */
    struct efs *fs;
    bool is_bounce;
    uint8_t *checks;  /* of a bounce slot, a page: see part_is_kept() */
    bool part, whole; /* of the piece: a bounce slot reads only the pages of part_e and part_sm, or must not */
    struct efs_slot_pages {
        uint64_t begin, end; /* offsets in the store, multiples of EFS_ALIGN */
    } part_e, part_sm;
    struct efs_uncached *read;
    struct efs_job job;
    enum { EFS_SLOT_PIECE, EFS_SLOT_PAGE, EFS_SLOT_CHECK, EFS_SLOT_DECODE } step; /* the next one */
    size_t done; /* bytes of the read that are decoded */
    struct efs_piece piece;
    bool from_disk; /* of the read: some page was read from the store */
    _Atomic uint32_t pending;
    _Atomic errint_t error;
    const struct efs_disk_shard *shard; /* of the piece */
    /* Of a small read: the parts of the shard that it needs. */
    bool located; /* range has the code, whose pages are in the slot */
    enum efs_format format;
    size_t width, elements, first, count; /* bytes of an element; elements of the shard; those that the bytes touch */
    size_t head_bytes;
    struct efs_cascade_range range;
    uint32_t head, code, sm; /* the first page of each in the slot */
    uint32_t page_count, looked_up;
    struct efs_slot_page pages[EFS_SLOT_PAGES];
    struct efs_direct direct;
    uint32_t io_count;
    struct efs_io io[EFS_SLOT_PAGES]; /* the reads of this step, linked */
};

struct efs_slots {
    pthread_mutex_t lock; /* guards the pools; a leaf */
    struct efs_slot_pool {
        struct efs_slot *free;
        EFS_QUEUE(struct efs_uncached) waiting;
    } pools[2];      /* [1]: bounce slots */
    uint8_t *memory; /* of all slots */
    unsigned count;
    struct efs_slot slots[];
};

static inline uint8_t *efs_slot_page(const struct efs_slot *slot, uint32_t i)
{
    return slot->memory + (size_t)i * EFS_ALIGN;
}

#endif
