/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot_part.c - see slot.h: reads of a few bytes of an expert's shard, such as those that the kernel reads around
 * another expert. Their store has no page checksums, so that the first such read takes the whole shard. From its good
 * chunks it makes page checksums, and keeps them with the head of the E-chunk as a fragment. While that is in
 * memory, later reads take only the pages that they need. A plain store has no checksums at all,
 * and no head.
 */
#include "slot.h"

#include "checks.h"

#include <string.h>

/* A key that no page of the store has. */
static struct efs_fragment_key part_key(const struct efs_slot *slot)
{
    return (struct efs_fragment_key){UINT64_MAX, 2 * slot->piece.shard};
}

static size_t elements_of(const struct efs_slot *slot)
{
    const struct efs_store *store = slot->fs->store;
    return efs_store_shard_elements(store, &store->objects[slot->piece.object], slot->piece.shard);
}

/* Bytes of the E-chunk's head. */
static size_t head_bytes(const struct efs_slot *slot)
{
    return slot->shard->e_bytes ? efs_cascade_long_head_bytes(elements_of(slot)) : 0;
}

static bool needs_a_part(const struct efs_slot *slot)
{
    return 2 * slot->piece.bytes < efs_object_shard_bytes(slot->fs, slot->piece.object);
}

/* Whether page checksums are kept for the piece: the store has none, and the codec decodes from a part of a chunk. */
static bool part_is_kept(const struct efs_slot *slot)
{
    const struct efs_disk_shard *s = slot->shard;
    return needs_a_part(slot) && slot->fs->fragments && !slot->fs->store->plain && s->checks == 0 &&
           (s->codec == EFS_CODEC_CASCADE || s->codec == EFS_CODEC_NONE) &&
           efs_checks_bytes(s) + head_bytes(slot) <= EFS_ALIGN && head_bytes(slot) <= s->e_bytes;
}

static struct efs_slot_pages pages_of(uint64_t offset, uint64_t begin, uint64_t end)
{
    return (struct efs_slot_pages){efs_page_down(offset + begin), efs_page_up(offset + end)};
}

/* The bytes of the chunks that the piece needs. */
static bool locate(const struct efs_slot *slot, struct efs_cascade_range *range)
{
    const struct efs_piece *p = &slot->piece;
    const enum efs_format format = (enum efs_format)slot->fs->store->objects[p->object].format;
    const size_t width = efs_format_bytes(format), first = (size_t)(p->in / width);
    *range = (struct efs_cascade_range){.sm_begin = (size_t)p->in, .sm_end = (size_t)p->in + p->bytes};
    return slot->shard->codec == EFS_CODEC_NONE ||
           efs_cascade_long_locate(format, slot->checks + efs_checks_bytes(slot->shard), slot->shard->e_bytes,
                                   elements_of(slot), first, (size_t)((p->in + p->bytes + width - 1) / width) - first,
                                   range) == 0;
}

bool efs_slot_part_begin(struct efs_slot *slot)
{
    struct efs *fs = slot->fs;
    struct efs_cascade_range range;
    bool found = fs->store->plain && needs_a_part(slot);
    if (part_is_kept(slot)) {
        efs_lock(fs);
        found = efs_fragment_get(fs, part_key(slot), 0, EFS_ALIGN, slot->checks);
        efs_unlock(fs);
    }
    if (!found || !locate(slot, &range))
        return false;
    slot->part_e = range.code_begin == range.code_end
                       ? (struct efs_slot_pages){0}
                       : pages_of(slot->shard->e_offset, range.code_begin, range.code_end);
    slot->part_sm = range.sm_begin == range.sm_end ? (struct efs_slot_pages){0}
                                                   : pages_of(slot->shard->sm_offset, range.sm_begin, range.sm_end);
    return true;
}

/* The pages of a chunk have these checksums. */
static bool pages_good(const struct efs_slot *slot, bool sm, struct efs_slot_pages pages)
{
    const struct efs_disk_shard *s = slot->shard;
    const uint64_t first = efs_page_down(sm ? s->sm_offset : s->e_offset);
    const uint8_t *page = efs_slot_chunk(slot, sm) - (sm ? s->sm_offset : s->e_offset) % EFS_ALIGN;
    bool good = true;
    for (uint64_t at = pages.begin; at < pages.end && good; at += EFS_ALIGN) {
        const struct efs_check_place place = efs_check_at(s, sm, at);
        good = efs_check_page(&place, slot->checks + (place.block - efs_checks_offset(s)), page + (at - first));
    }
    return good;
}

bool efs_slot_part_check(const struct efs_slot *slot)
{
    if (slot->fs->store->plain)
        return true;
    if (!pages_good(slot, false, slot->part_e) || !pages_good(slot, true, slot->part_sm))
        return false;
    memcpy(efs_slot_chunk(slot, false), slot->checks + efs_checks_bytes(slot->shard), head_bytes(slot));
    return true;
}

void efs_slot_part_keep(const struct efs_slot *slot)
{
    if (!part_is_kept(slot))
        return;
    const uint32_t checks = efs_checks_bytes(slot->shard);
    const uint8_t *e = slot->shard->e_bytes ? efs_slot_chunk(slot, false) : NULL;
    efs_checks_make(slot->shard, e, efs_slot_chunk(slot, true), slot->checks);
    if (e)
        memcpy(slot->checks + checks, e, head_bytes(slot));
    efs_lock(slot->fs);
    efs_fragment_put(slot->fs, part_key(slot), EFS_NONE, slot->checks);
    efs_unlock(slot->fs);
}
