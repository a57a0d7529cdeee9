/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.c - the layout of extents, and offsets in them; which of their components stay in memory, and the list of each
 * (enum efs_reclaim_rank). The policy protects components of experts that it keeps. All other components are
 * *evictable*: of dense tensors, of experts that are not kept, components that their expert lost.
 */
#include "extent.h"

#include "codec_table.h"
#include "kernels.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOADS_MAX 8192u              /* in flight; more than the extents of a layer */
#define SHARED_BYTES (4 * EFS_ALIGN) /* limit of an extent of several objects: a read of one reads them all */

/* Whether the next chunk starts less than a page after the end of a chunk, or both are empty. */
static bool chunk_follows(uint64_t offset, uint32_t bytes, uint64_t next, uint32_t next_bytes)
{
    if (bytes == 0 || next_bytes == 0)
        return bytes == next_bytes;
    return next >= offset + bytes && next - (offset + bytes) < EFS_ALIGN;
}

/* Whether shard b follows a on disk, E after E and SM after SM. */
static bool shard_follows(const struct efs_disk_shard *a, const struct efs_disk_shard *b)
{
    return chunk_follows(a->e_offset, a->e_bytes, b->e_offset, b->e_bytes) &&
           chunk_follows(a->sm_offset, a->sm_bytes, b->sm_offset, b->sm_bytes);
}

/* The number of shards from `first` on that form one extent. */
static uint16_t extent_length(const struct efs *fs, uint32_t first, uint32_t end)
{
    const struct efs_disk_shard *s = fs->store->shards;
    uint64_t bytes = efs_page_up(s[first].e_bytes) + efs_page_up(s[first].sm_bytes);
    uint32_t n = 1;
    while (first + n < end && n < EFS_EXTENT_SHARDS && shard_follows(&s[first + n - 1], &s[first + n])) {
        bytes += efs_page_up(s[first + n].e_bytes) + efs_page_up(s[first + n].sm_bytes);
        if (bytes > fs->extents->max_bytes)
            break;
        n++;
    }
    return (uint16_t)n;
}

/* Whether the object is one SM chunk of less than a page and belongs to no expert. The objects of an expert are
 * exported one by one. */
static bool object_may_share(const struct efs *fs, uint32_t number)
{
    const struct efs_disk_object *o = &fs->store->objects[number];
    const struct efs_disk_shard *s = &fs->store->shards[o->shard_first];
    return o->group >= fs->store->expert_count && o->shard_count == 1 && s->e_bytes == 0 && s->sm_bytes < EFS_ALIGN;
}

/* The number of objects from `first` on that share one extent. */
static uint32_t objects_sharing(const struct efs *fs, uint32_t first)
{
    const struct efs_disk_shard *s = &fs->store->shards[fs->store->objects[first].shard_first];
    uint64_t most = SHARED_BYTES < fs->extents->max_bytes ? SHARED_BYTES : fs->extents->max_bytes;
    uint32_t n = 1;
    if (!object_may_share(fs, first))
        return 1;
    while (first + n < fs->store->object_count && n < EFS_EXTENT_SHARDS && object_may_share(fs, first + n) &&
           shard_follows(&s[n - 1], &s[n]) && efs_page_span(s->sm_offset, s[n].sm_offset + s[n].sm_bytes) <= most)
        n++;
    return n;
}

/* Returns the number of extents. Fills them and the first extent of each object, unless extents is NULL. */
static uint32_t extents_layout(const struct efs *fs, struct efs_extent *extents, uint32_t *object_extent)
{
    uint32_t n = 0;
    for (uint32_t o = 0, sharing; o < fs->store->object_count; o += sharing) {
        const struct efs_disk_object *object = &fs->store->objects[o];
        uint32_t end = object->shard_first + object->shard_count;
        sharing = objects_sharing(fs, o);
        for (uint32_t i = 0; extents && i < sharing; i++)
            object_extent[o + i] = n;
        for (uint32_t s = object->shard_first; s < end; n++) {
            uint16_t length = sharing > 1 ? (uint16_t)sharing : extent_length(fs, s, end);
            if (extents) {
                extents[n].object = o;
                extents[n].shard_first = s;
                extents[n].shard_count = length;
                extents[n].rank = EFS_RANK_EVICTABLE;
                extents[n].link.newer = EFS_NONE;
                extents[n].required = (uint8_t)((fs->store->shards[s].e_bytes ? EFS_COMPONENT_E : 0) |
                                                (fs->store->shards[s].sm_bytes ? EFS_COMPONENT_SM : 0));
            }
            s += length;
        }
    }
    if (extents)
        object_extent[fs->store->object_count] = n;
    return n;
}

uint32_t efs_extents_size(struct efs *fs, size_t max_bytes)
{
    if (max_bytes != fs->extents->max_bytes) {
        fs->extents->max_bytes = max_bytes;
        fs->extents->count = extents_layout(fs, NULL, NULL);
        fs->extents->loads_max = fs->extents->count < LOADS_MAX ? fs->extents->count : LOADS_MAX;
    }
    return fs->extents->count;
}

uint64_t efs_extents_table_bytes(const struct efs *fs)
{
    return ((uint64_t)fs->extents->count + EFS_RANKS) * sizeof(struct efs_extent) +
           (uint64_t)fs->extents->loads_max * sizeof(struct efs_extent_load) +
           (uint64_t)fs->store->object_count * sizeof(uint32_t) + (uint64_t)fs->store->expert_count * sizeof(uint64_t);
}

errint_t efs_extents_build(struct efs *fs, struct efs_error *err)
{
    fs->extents->at = efs_sys_calloc(fs->extents->count + (size_t)EFS_RANKS, sizeof(*fs->extents->at));
    fs->extents->object_first = efs_sys_calloc(fs->store->object_count + 1u, sizeof(uint32_t));
    fs->extents->expert_bytes = efs_sys_calloc(fs->store->expert_count + 1u, sizeof(uint64_t));
    fs->extents->load_structs = efs_sys_calloc(fs->extents->loads_max + 1u, sizeof(*fs->extents->load_structs));
    if (!fs->extents->at || !fs->extents->object_first || !fs->extents->expert_bytes || !fs->extents->load_structs)
        return efs_fail(err, -ENOMEM, "%s: no memory for the table of extents", fs->store->path);
    efs_sys_advise_huge(fs->extents->at, (fs->extents->count + (size_t)1) * sizeof(*fs->extents->at));
    extents_layout(fs, fs->extents->at, fs->extents->object_first);
    for (uint32_t i = 0; i < fs->extents->count; i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        uint32_t group = fs->store->objects[x->object].group;
        size_t bytes = efs_extent_span(fs, x, EFS_BOTH);
        fs->extents->all_bytes += bytes;
        if (group < fs->store->expert_count)
            fs->extents->expert_bytes[group] += bytes;
    }
    for (unsigned rank = 0; rank < EFS_RANKS; rank++)
        efs_lru_init(&fs->extents->lists[rank], &fs->extents->at[0].link, sizeof(struct efs_extent),
                     fs->extents->count + rank);
    EFS_QUEUE_INIT(&fs->extents->completed);
    efs_lru_init(&fs->extents->waiting, &fs->extents->at[0].waiting, sizeof(struct efs_extent), fs->extents->count);
    return 0;
}

void efs_extents_destroy(struct efs *fs)
{
    free(fs->extents->load_structs);
    free(fs->extents->expert_bytes);
    free(fs->extents->object_first);
    free(fs->extents->at);
}

uint64_t efs_object_shard_bytes(const struct efs *fs, uint32_t object)
{
    return (uint64_t)fs->store->sb.shard_elements *
           efs_format_bytes((enum efs_format)fs->store->objects[object].format);
}

uint64_t efs_extent_begin(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    return (x->shard_first - fs->store->objects[x->object].shard_first) * efs_object_shard_bytes(fs, x->object);
}

uint64_t efs_extent_end(const struct efs *fs, uint32_t extent, uint32_t object)
{
    return extent + 1 < fs->extents->object_first[object + 1] ? efs_extent_begin(fs, extent + 1)
                                                              : fs->store->objects[object].bytes;
}

uint32_t efs_extent_at(const struct efs *fs, uint32_t object, uint64_t offset)
{
    uint32_t shard = fs->store->objects[object].shard_first + (uint32_t)(offset / efs_object_shard_bytes(fs, object));
    uint32_t low = fs->extents->object_first[object], high = fs->extents->object_first[object + 1];
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (fs->extents->at[mid].shard_first <= shard)
            low = mid;
        else
            high = mid;
    }
    return low;
}

bool efs_extent_decodes_inline(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    for (uint32_t i = 0; i < x->shard_count; i++) {
        uint32_t codec = fs->store->shards[x->shard_first + i].codec;
        if (!efs_codec_of(codec)->decode_range)
            return false;
    }
    return true;
}

/* ---- lists ---- */

void efs_extent_set_rank(struct efs *fs, struct efs_extent *x, enum efs_reclaim_rank rank)
{
    if (rank == EFS_RANK_SCAN) {
        /* the plan is for experts, and gives some memory to no pool; blocks of different sizes leave an eighth unused
         */
        const uint64_t all = fs->extents->all_bytes + fs->extents->all_bytes / 8;
        const uint64_t room = fs->account.planned_segments * fs->arena.segment_bytes + fs->account.unplanned_bytes;
        rank = x->protected || all <= room ? EFS_RANK_EVICTABLE : rank;
    }
    if (x->rank != rank && (x->rank == EFS_RANK_SCAN || rank == EFS_RANK_SCAN)) {
        const uint64_t bytes = efs_extent_span(fs, x, x->required);
        fs->extents->scan_bytes += rank == EFS_RANK_SCAN ? bytes : -bytes;
    }
    x->rank = (uint8_t)rank;
}

void efs_extent_delist(struct efs *fs, uint32_t extent)
{
    if (fs->extents->at[extent].link.newer != EFS_NONE)
        efs_lru_remove(&fs->extents->lists[0], extent);
}

void efs_extent_enlist(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    efs_extent_delist(fs, extent);
    if (x->resident == 0 || x->state == EFS_EXTENT_LOADING)
        return;
    enum efs_reclaim_rank rank = efs_extent_evictable(x) ? (enum efs_reclaim_rank)x->rank : EFS_RANK_PROTECTED;
    efs_lru_insert(&fs->extents->lists[rank], extent, rank != EFS_RANK_USED_UP);
}

void efs_extent_used(struct efs *fs, struct efs_extent *x)
{
    fs->extents->ahead_bytes -= x->ahead_bytes;
    x->ahead_bytes = 0;
}

void efs_extent_free(struct efs *fs, struct efs_extent *x, unsigned components)
{
    if (components & EFS_COMPONENT_E)
        efs_arena_free(&fs->arena, &x->e);
    if (components & EFS_COMPONENT_SM)
        efs_arena_free(&fs->arena, &x->sm);
}

void efs_extents_protect(struct efs *fs, uint32_t expert, unsigned components)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        struct efs_extent *x = &fs->extents->at[i];
        uint8_t protect = (uint8_t)(components & x->required);
        if (x->protected != protect) {
            x->protected = protect;
            efs_extent_set_rank(fs, x, EFS_RANK_EVICTABLE);
            efs_extent_enlist(fs, i);
        }
    }
}

unsigned efs_extents_resident(const struct efs *fs, uint32_t expert, bool *some)
{
    unsigned all = EFS_BOTH, any = 0;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        unsigned have = x->state == EFS_EXTENT_IDLE ? x->resident : 0;
        all &= have | (EFS_BOTH & ~(unsigned)x->required);
        any |= have;
    }
    *some = any != 0;
    return any ? all : 0;
}

bool efs_extents_loading(const struct efs *fs, uint32_t expert)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++)
        if (fs->extents->at[i].state != EFS_EXTENT_IDLE)
            return true;
    return false;
}

bool efs_extents_only_long_refs(const struct efs *fs)
{
    const struct efs_extents *extents = fs->extents;
    bool loading = false;
    for (unsigned why = 0; why < EFS_LOADS; why++)
        loading |= extents->loads[why] != 0;
    return extents->refs == extents->long_refs && !loading && !fs->account.bytes[EFS_ACCOUNT_RETURNING] && !fs->growing;
}
