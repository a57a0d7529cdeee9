/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_core.h - what the files of extents share. With efs.lock held unless said otherwise. Each calls those above it:
 *
 *     extent_loads.c   what loads need beside memory      extent.c   what an extent is
 *     extent_keep.c    which components stay, in which list
 *     cache_lost.c     the cache state is told of what went
 *     extent_pass.c    what streams bring
 *     extent_evict.c   who goes
 *     extent_wait.c    who waits for it, and who has it
 *     extent_load.c    reading
 *     extent_ask.c     asking
 */
#ifndef EFS_EXTENT_CORE_H
#define EFS_EXTENT_CORE_H

#include "extent.h"

static inline const struct efs_disk_shard *efs_extent_first_shard(const struct efs *fs, const struct efs_extent *x)
{
    return &fs->store->shards[x->shard_first];
}

static inline const struct efs_disk_shard *efs_extent_last_shard(const struct efs *fs, const struct efs_extent *x)
{
    return &fs->store->shards[x->shard_first + x->shard_count - 1u];
}

/* Bytes of the pages that a component lies in in the store, and so in memory, at the same place of its first page; bits
 * may name both. */
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

/* Where a shard's chunk is in the extent's memory, which is there; NULL: the shard has none of this kind. */
static inline uint8_t *efs_extent_e(const struct efs *fs, const struct efs_extent *x, const struct efs_disk_shard *s)
{
    return s->e_bytes ? x->e.data + (s->e_offset - efs_page_down(efs_extent_first_shard(fs, x)->e_offset)) : NULL;
}

static inline uint8_t *efs_extent_sm(const struct efs *fs, const struct efs_extent *x, const struct efs_disk_shard *s)
{
    return s->sm_bytes ? x->sm.data + (s->sm_offset - efs_page_down(efs_extent_first_shard(fs, x)->sm_offset)) : NULL;
}

/*
 * Memory that a component takes: a little more than its pages, so that the hole which one leaves fits the next.
 * E-chunks of equal tensors differ by a few pages, and where in a page a component begins makes a page more or less;
 * without this, an eviction would hardly ever make room for just one other. Small components take what they need.
 */
static inline size_t efs_extent_room(const struct efs *fs, const struct efs_extent *x, unsigned component)
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

/* Raw bytes of a whole shard of the object. */
uint64_t efs_object_shard_bytes(const struct efs *fs, uint32_t object);

/* ---- extent_loads.c ---- */
struct efs_extent_load {
    struct efs_extent_load *next; /* idle */
    struct efs_extent_load *next_ended;
    struct efs_disk_request e, sm;
    struct efs_job failed;
    struct efs *fs;
    uint32_t extent;
    uint8_t components, why; /* why: enum efs_load */
    bool guessed;            /* it began as EFS_LOAD_GUESS */
    _Atomic int pending;
    _Atomic errint_t error;
};
/* One of them; NULL: there are none, and more are on their way or cannot be had. Give it back. */
struct efs_extent_load *efs_extent_load_take(struct efs *fs);
void efs_extent_load_give(struct efs *fs, struct efs_extent_load *load);
void efs_extent_loads_free(struct efs *fs);

/* ---- extent_keep.c ---- */
/* The components that are in memory and that nobody keeps. */
static inline unsigned efs_extent_evictable(const struct efs_extent *x)
{
    return x->have & ~(unsigned)x->keep;
}

/* The extent stands in the list that its components call for, or in none while it is loaded or empty. */
void efs_extent_enlist(struct efs *fs, uint32_t extent);
void efs_extent_delist(struct efs *fs, uint32_t extent);
/* Free components of an extent without users. */
void efs_extent_drop(struct efs *fs, uint32_t extent, unsigned components);
/* It was used: it does not count as read ahead any more. */
void efs_extent_used(struct efs *fs, struct efs_extent *x);
/* It is in passing from now on, or is not; the caller enlists it. */
void efs_extent_set_passing(struct efs *fs, struct efs_extent *x, bool passing);

/* ---- cache_lost.c ---- */
/* As efs_extent_drop(), also of kept components: the cache state is told. */
void efs_extent_give_up(struct efs *fs, uint32_t extent, unsigned components);

/* ---- extent_evict.c ---- */
/* It has no users any more: what is damaged or in a segment that leaves goes, or moves. */
void efs_extent_released(struct efs *fs, uint32_t extent);
/* What is evictable in segments that leave goes, but for what has users. */
void efs_extents_drop_leaving(struct efs *fs);
/* Components in segments that leave. */
unsigned efs_extent_in_leaving(const struct efs *fs, const struct efs_extent *x);
/* Nobody will come back for it soon: it goes before others do and before the pool grows. */
void efs_extent_evict_first(struct efs *fs, uint32_t extent);

/* Drop the oldest that nobody keeps, uses or comes for. false: there is none. */
bool efs_extents_evict_idle(struct efs *fs);

/* ---- extent_pass.c ---- */
/* A reader of that pace asks for bytes of it. */
void efs_extent_asked(struct efs *fs, uint32_t extent, enum efs_pace pace, size_t bytes);
/* Drop what streams have left behind, oldest first, until bytes more are within their quota; wanted: also what was read
 * in part. false: there is no more of it, and it is not enough. */
bool efs_extents_pass_on(struct efs *fs, uint64_t bytes, bool wanted);
/* Drop the oldest extent without users that is in passing: what nobody comes for any more, also what was read in part,
 * or any. */
enum efs_passing { EFS_PASSING_LEFT, EFS_PASSING_READ, EFS_PASSING_ALL };
enum efs_evicted efs_extents_evict_passing(struct efs *fs, enum efs_passing what);

/* ---- extent_wait.c ---- */
static inline bool efs_extent_is_whole(const struct efs_extent *x)
{
    return x->state == EFS_EXTENT_REST && x->have == x->needs;
}

/* A reference more, for who waited, or did not have to. */
void efs_extent_ref(struct efs *fs, struct efs_extent *x, const struct efs_extent_waiter *waiter);
/* Who waited, and is not in the extent's list any more, or all who are, are told the error, or 0 with a reference. */
void efs_extent_tell_waiter(struct efs *fs, struct efs_extent *x, struct efs_extent_waiter *waiter, errint_t error);
void efs_extent_tell_waiters(struct efs *fs, struct efs_extent *x, errint_t error);
/* The extent at this place of the line leaves it, and is to be loaded or to rest. */
void efs_extent_leave_line(struct efs *fs, struct efs_extent **at);

/* ---- extent_decode.c ---- */
/* Raw bytes [begin, begin + bytes) of the object, all in that shard (index into the store's), from its chunks there;
 * NULL: it has none of that kind. They are checked first. Without lock. 0, -EUCLEAN. */
errint_t efs_shard_decode_from(struct efs *fs, uint32_t object, uint32_t shard, const uint8_t *e, const uint8_t *sm,
                               uint64_t begin, size_t bytes, void *dst, struct efs_codec_scratch *scratch);

/* ---- extent_load.c ---- */
/* Blocks for these components, which the extent does not have. 0: it is LOADING; -EAGAIN: others hold the memory;
 * -ENOMEM: the system has none and nothing will be freed. */
errint_t efs_extent_place(struct efs *fs, uint32_t extent, unsigned components);
/* What was under way for these components has ended: the extent has them, or they are freed again with an error. Who
 * waits is told or, if the extent is not whole yet, it is read on. -EAGAIN: they could not be made from memory; read.
 * -ECANCELED: nobody wanted them; who has come since does. */
void efs_extent_loaded(struct efs *fs, uint32_t extent, unsigned components, errint_t error);
/* It is not LOADING any more, and who waits is told the error or 0 or, if it is not whole yet, it is read on: also for
 * -EAGAIN and -ECANCELED. */
void efs_extent_rests(struct efs *fs, uint32_t extent, errint_t error);
/* Someone gives way: first what nobody will come back for, then the budget, then the oldest that is evictable, and only
 * when all memory is kept the oldest of that. For a guess nothing goes that is kept, or that a reader comes for. false:
 * nobody can. */
bool efs_extents_more_memory(struct efs *fs, enum efs_load why);
/* The oldest goes that is kept, whoever else may yet let go. false: none is, or all are in use. */
bool efs_extents_kept_give_way(struct efs *fs);
/* Begin to load what is missing of an extent that rests. 0: its reads are deferred. -EAGAIN: no room now.
 * -ENOMEM.
 */
errint_t efs_extent_load(struct efs *fs, uint32_t extent, enum efs_load why);
/* Somebody has come for it: if it is being loaded for nobody, its reads do not wait behind others any more. */
void efs_extent_load_raise(struct efs *fs, uint32_t extent);

#endif
