/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_internal.h - shared by the files of extents. With efs.lock held unless stated otherwise. Each file calls only
 * those above it:
 *
 *     extent.c         layout of extents, their lists
 *     cache_state.c    updates the cache state after losses
 *     reclaim.c        eviction, extents of streams
 *     extent_load.c    memory, waiters and references, loading, requests, read-ahead, prefetch
 */
#ifndef EFS_EXTENT_INTERNAL_H
#define EFS_EXTENT_INTERNAL_H

#include "extent.h"

static inline const struct efs_disk_shard *efs_extent_first_shard(const struct efs *fs, const struct efs_extent *x)
{
    return &fs->store->shards[x->shard_first];
}

static inline const struct efs_disk_shard *efs_extent_last_shard(const struct efs *fs, const struct efs_extent *x)
{
    return &fs->store->shards[x->shard_first + x->shard_count - 1u];
}

/* Bytes of the pages that contain a component in the store, and of its copy in memory, which starts at the same offset
 * in a page; for both bits the sum. */
static inline size_t efs_extent_span(const struct efs *fs, const struct efs_extent *x, unsigned components)
{
    const struct efs_disk_shard *first = efs_extent_first_shard(fs, x), *last = efs_extent_last_shard(fs, x);
    size_t bytes = 0;
    if (components & EFS_COMPONENT_E)
        bytes += efs_page_span(first->e_offset, last->e_offset + last->e_bytes);
    if (components & EFS_COMPONENT_SM)
        bytes += efs_page_span(first->sm_offset, last->sm_offset + last->sm_bytes);
    return bytes;
}

/* Offset of a shard's chunk in its component of the extent, for shards that have a chunk of this kind. */
static inline size_t efs_extent_offset(const struct efs *fs, const struct efs_extent *x, const struct efs_disk_shard *s,
                                       unsigned component)
{
    const struct efs_disk_shard *first = efs_extent_first_shard(fs, x);
    return component == EFS_COMPONENT_E ? s->e_offset - efs_page_down(first->e_offset)
                                        : s->sm_offset - efs_page_down(first->sm_offset);
}

/* Address of a shard's chunk in the extent, which is in memory; NULL: the shard has no chunk of this kind. */
static inline uint8_t *efs_extent_e(const struct efs *fs, const struct efs_extent *x, const struct efs_disk_shard *s)
{
    return s->e_bytes ? x->e.data + efs_extent_offset(fs, x, s, EFS_COMPONENT_E) : NULL;
}

static inline uint8_t *efs_extent_sm(const struct efs *fs, const struct efs_extent *x, const struct efs_disk_shard *s)
{
    return s->sm_bytes ? x->sm.data + efs_extent_offset(fs, x, s, EFS_COMPONENT_SM) : NULL;
}

/*
 * Bytes allocated for a component: its size rounded up by up to 1/32, and a granule, so that the hole left by one
 * component fits the next. E-chunks of equal tensors differ by a few pages, and the offset of a component in its first
 * page can add a page; without rounding, an eviction would rarely make room for another component. Components below 64
 * granules get only their pages.
 */
static inline size_t efs_extent_alloc_bytes(const struct efs *fs, const struct efs_extent *x, unsigned component)
{
    const struct efs_disk_shard *first = efs_extent_first_shard(fs, x), *last = efs_extent_last_shard(fs, x);
    size_t step = EFS_GRANULE, bytes = component == EFS_COMPONENT_E
                                           ? last->e_offset + last->e_bytes - first->e_offset
                                           : last->sm_offset + last->sm_bytes - first->sm_offset;
    if (bytes < 64 * step)
        return efs_extent_span(fs, x, component);
    while (step * 64 <= bytes)
        step *= 2;
    return (bytes + step - 1) / step * step + EFS_GRANULE;
}

/* The extents of an expert: the first, and the one after its last. */
static inline uint32_t efs_expert_extent_first(const struct efs *fs, uint32_t expert)
{
    return fs->extents->object_first[fs->store->groups[expert].object_first];
}

static inline uint32_t efs_expert_extent_end(const struct efs *fs, uint32_t expert)
{
    const struct efs_disk_group *g = &fs->store->groups[expert];
    return fs->extents->object_first[g->object_first + g->object_count];
}

/* The components to be read; 0 while it is loaded or waits for memory. */
static inline unsigned efs_extent_missing(const struct efs_extent *x)
{
    return x->state == EFS_EXTENT_IDLE ? x->required & ~(unsigned)x->resident : 0;
}

/* Raw bytes of a whole shard of the object. */
uint64_t efs_object_shard_bytes(const struct efs *fs, uint32_t object);

struct efs_extent_load {
    struct efs_extent_load *next; /* free, or completed */
    struct efs_io e, sm;
    struct efs_job failed;
    struct efs *fs;
    uint32_t extent;
    uint8_t components, why; /* why: enum efs_load_reason */
    efs_load_done_fn *done;
    uint8_t was; /* enum efs_extent_state: before it was LOADING */
    _Atomic int pending;
    _Atomic errint_t error;
};

/* ---- extent.c ---- */
/* The components that are in memory and not kept by the policy. */
static inline unsigned efs_extent_evictable(const struct efs_extent *x)
{
    return x->resident & ~(unsigned)x->protected;
}

/* Puts the extent into the list for its components, or into none while it is being loaded or empty; removes it from its
 * list. */
void efs_extent_enlist(struct efs *fs, uint32_t extent);
void efs_extent_delist(struct efs *fs, uint32_t extent);
/* Frees the memory of components of an extent without references. */
void efs_extent_free(struct efs *fs, struct efs_extent *x, unsigned components);
/* The extent was used: its bytes no longer count as read ahead. */
void efs_extent_used(struct efs *fs, struct efs_extent *x);
/* Sets its list while some of it is not protected; the caller enlists it. A protected extent is not of a scan, nor is
 * any while the pool has room for the whole store. */
void efs_extent_set_rank(struct efs *fs, struct efs_extent *x, enum efs_reclaim_rank rank);

/* ---- reclaim.c ---- */
/* The last reference was dropped, or a load has ended: evicts a damaged extent, and components in retiring segments. */
void efs_extent_released(struct efs *fs, uint32_t extent);
/* An extent that is not protected moves to EFS_RANK_USED_UP: it will not be used soon. */
void efs_extent_evict_first(struct efs *fs, uint32_t extent);

/* A reader of this pace requests bytes of the extent. */
void efs_extent_accessed(struct efs *fs, uint32_t extent, enum efs_pace pace);
/* Drops stale scan extents, oldest first, until `bytes` more fit into the streams' quota. false: they do not fit. */
bool efs_extents_scan_reserve(struct efs *fs, uint64_t bytes);

/* ---- extent_decode.c ---- */
/* A range of bytes inside one shard. efs_piece_at() returns the longest one that starts at offset `at` of the object;
 * if `at` is not in the object, it continues in the next ones. */
struct efs_piece {
    uint32_t object, shard;
    uint64_t at, in; /* in the object, in the shard */
    size_t bytes;
};
struct efs_piece efs_piece_at(const struct efs *fs, uint32_t object, uint64_t at, size_t bytes);
/* Decodes the bytes from chunks that are in no extent; NULL: the shard has no such chunk. check: checks the chunks
 * first; else the parts of them that are decoded were compared with page checksums. Without lock. 0, -EUCLEAN; -EIO in
 * a plain store. */
errint_t efs_shard_decode_from(struct efs *fs, const struct efs_piece *piece, const uint8_t *e, const uint8_t *sm,
                               bool check, void *dst, struct efs_codec_scratch *scratch);

/* ---- extent_load.c ---- */
static inline bool efs_extent_is_complete(const struct efs_extent *x)
{
    return x->state == EFS_EXTENT_IDLE && x->resident == x->required;
}

/* Allocates these components, which the extent lacks, and sets it to LOADING; evicts for it, except for EFS_LOAD_WARM.
 * false: the memory is in use or being freed, or there is none. */
bool efs_extent_alloc(struct efs *fs, uint32_t extent, unsigned components, enum efs_load_reason why);
/* A load of these components has completed or failed: adds them to the extent, or frees them after an error. Completes
 * the waiters or, if the extent is not whole, queues it again. -EAGAIN: the components could not be made from memory
 * and must be read. -ECANCELED: the load had no waiters; waiters that came later are queued again. */
void efs_extent_loaded(struct efs *fs, uint32_t extent, unsigned components, errint_t error);
/* Starts loading the missing components of an extent that is not LOADING. true: its reads are deferred, and done (may
 * be NULL) is called at the end; false: no memory now. */
bool efs_extent_load(struct efs *fs, uint32_t extent, enum efs_load_reason why, efs_load_done_fn *done);

#endif
