/*
 * unit_core.h - what the files of units share: unit.c (what a unit is), unit_keep.c (what is kept and what goes),
 * unit_load.c (reading), unit_decode.c. With efs.lock held unless said otherwise.
 */
#ifndef EFS_UNIT_CORE_H
#define EFS_UNIT_CORE_H

#include "serve.h"

static inline const struct efs_disk_shard *efs_unit_first_shard(const struct efs *fs, const struct efs_unit *u)
{
    return &fs->store->shards[u->shard_first];
}

static inline const struct efs_disk_shard *efs_unit_last_shard(const struct efs *fs, const struct efs_unit *u)
{
    return &fs->store->shards[u->shard_first + u->shard_count - 1u];
}

/* Bytes of the pages that a half lies in in the store, and so in memory, at the same place of its first page; bits may
 * name both. */
static inline size_t efs_unit_span(const struct efs *fs, const struct efs_unit *u, unsigned halves)
{
    const struct efs_disk_shard *first = efs_unit_first_shard(fs, u), *last = efs_unit_last_shard(fs, u);
    size_t bytes = 0;
    if (halves & EFS_HALF_E)
        bytes += efs_page_span(first->e_offset, last->e_offset + last->e_bytes);
    if (halves & EFS_HALF_SM)
        bytes += efs_page_span(first->sm_offset, last->sm_offset + last->sm_bytes);
    return bytes;
}

/* Where a shard's chunk is in the unit's memory, which is there; NULL: the shard has none of this kind. */
static inline uint8_t *efs_unit_e(const struct efs *fs, const struct efs_unit *u, const struct efs_disk_shard *s)
{
    return s->e_bytes ? u->e.data + (s->e_offset - efs_page_down(efs_unit_first_shard(fs, u)->e_offset)) : NULL;
}

static inline uint8_t *efs_unit_sm(const struct efs *fs, const struct efs_unit *u, const struct efs_disk_shard *s)
{
    return s->sm_bytes ? u->sm.data + (s->sm_offset - efs_page_down(efs_unit_first_shard(fs, u)->sm_offset)) : NULL;
}

/*
 * Memory that a half takes: a little more than its pages, so that the hole which one leaves fits the next. E-chunks of
 * equal tensors differ by a few pages, and where in a page a half begins makes a page more or less; without this, an
 * eviction would hardly ever make room for just one other. Small halves take what they need.
 */
static inline size_t efs_unit_room(const struct efs *fs, const struct efs_unit *u, unsigned half)
{
    const struct efs_disk_shard *first = efs_unit_first_shard(fs, u), *last = efs_unit_last_shard(fs, u);
    size_t step = EFS_GRANULE, bytes = half == EFS_HALF_E ? last->e_offset + last->e_bytes - first->e_offset
                                                          : last->sm_offset + last->sm_bytes - first->sm_offset;
    if (bytes < 64 * step)
        return efs_unit_span(fs, u, half);
    while (step * 64 <= bytes)
        step *= 2;
    return (bytes + step - 1) / step * step + EFS_GRANULE;
}

/* The units of an expert: the first, and the one after its last. */
static inline uint32_t efs_expert_unit_first(const struct efs *fs, uint32_t expert)
{
    return fs->object_unit[fs->store->groups[expert].object_first];
}

static inline uint32_t efs_expert_unit_end(const struct efs *fs, uint32_t expert)
{
    const struct efs_disk_group *g = &fs->store->groups[expert];
    return fs->object_unit[g->object_first + g->object_count];
}

/* Raw bytes of a whole shard of the object. */
uint64_t efs_object_shard_bytes(const struct efs *fs, uint32_t object);

/* ---- unit_keep.c ---- */
/* The unit stands in the list that its halves call for, or in none while it is loaded or empty. */
void efs_unit_enlist(struct efs *fs, uint32_t unit);
void efs_unit_delist(struct efs *fs, uint32_t unit);
/* Free halves of a unit without users. */
void efs_unit_drop(struct efs *fs, uint32_t unit, unsigned halves);
/* It has no users any more: what is damaged or in a segment that leaves goes. */
void efs_unit_settle(struct efs *fs, uint32_t unit);
/* It was used: it does not count as read ahead any more. */
void efs_unit_used(struct efs *fs, struct efs_unit *u);

/* ---- unit_pass.c ---- */
/* It is in passing from now on, or is not; the caller enlists it. */
void efs_unit_set_passing(struct efs *fs, struct efs_unit *u, bool passing);
/* A reader of that pace asks for bytes of it. */
void efs_unit_asked(struct efs *fs, uint32_t unit, enum efs_pace pace, size_t bytes);
/* Drop what streams have left behind, oldest first, until bytes more are within their quota; wanted: also what was read
 * in part. false: there is no more of it, and it is not enough. */
bool efs_units_pass_on(struct efs *fs, uint64_t bytes, bool wanted);
/* Drop the oldest unit without users that is in passing: what nobody comes for any more, also what was read in part, or
 * any. */
enum efs_passing { EFS_PASSING_LEFT, EFS_PASSING_READ, EFS_PASSING_ALL };
enum efs_evicted efs_units_evict_passing(struct efs *fs, enum efs_passing what);

/* ---- unit_load.c ---- */
/* Blocks for these halves, which the unit does not have. 0; -EAGAIN: others hold the memory; -ENOMEM: the system has
 * none and nothing will be freed. */
errint_t efs_unit_place(struct efs *fs, uint32_t unit, unsigned halves);
/* What was under way for these halves has ended: the unit has them, or they are freed again with an error. Waiters are
 * put on *ready or, if the unit is not whole yet, it is read on. -EAGAIN: they could not be made from memory; read. */
void efs_unit_loaded(struct efs *fs, uint32_t unit, unsigned halves, errint_t error, struct efs_unit_waiter **ready,
                     struct efs_disk_request **submit);
/* Begin to load what is missing of a unit that rests. 0: its reads were put on *submit. -EAGAIN: no room now. -ENOMEM.
 */
errint_t efs_unit_load(struct efs *fs, uint32_t unit, enum efs_load why, struct efs_disk_request **submit);
/* Without lock: tell waiters that were taken off a unit. */
void efs_unit_push_waiters(struct efs *fs, struct efs_unit_waiter *list, errint_t error);

#endif
