/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot_pages.c - see slot.h: small reads. A read of at most EFS_SMALL_BYTES of an object with page checksums
 * (store/checks.h) takes only the pages that it needs, from fragments or from the store. So does a read of a plain
 * store, of objects outside experts from EFS_SMALL_READS_BYTES on: their pages have no checksums, and are not compared.
 */
#include "slot.h"

#include "checks.h"

#include <string.h>

bool efs_small_serves(const struct efs *fs, uint32_t extent, uint32_t object, uint64_t begin, size_t bytes)
{
    const struct efs_store *store = fs->store;
    const struct efs_disk_object *o = &store->objects[object];
    if (bytes > EFS_SMALL_BYTES || begin > o->bytes || bytes > o->bytes - begin || !efs_fragments_serve(fs, extent))
        return false;
    if (store->plain)
        return o->group >= store->expert_count && o->bytes >= EFS_SMALL_READS_BYTES;
    uint64_t shard_bytes = efs_object_shard_bytes(fs, object);
    for (uint64_t s = begin / shard_bytes; s <= (begin + bytes - 1) / shard_bytes; s++)
        if (store->shards[o->shard_first + s].checks == 0)
            return false;
    return true;
}

/* ---- piece ---- */

/* Adds the pages of the store with bytes [begin, end) of a chunk; *at: the first of them. false: the slot is full. */
static bool add_pages(struct efs_slot *slot, bool sm, uint64_t begin, uint64_t end, uint32_t *at)
{
    const struct efs_disk_shard *s = slot->shard;
    uint64_t offset = sm ? s->sm_offset : s->e_offset, page = efs_page_down(offset + begin) / EFS_ALIGN;
    uint64_t pages = efs_page_span(offset + begin, offset + end) / EFS_ALIGN;
    if (pages > EFS_SLOT_PAGES - slot->page_count)
        return false;
    *at = slot->page_count;
    for (uint64_t i = 0; i < pages; i++)
        slot->pages[slot->page_count++] = (struct efs_slot_page){.key = {page + i, 2 * slot->piece.shard + sm}};
    return true;
}

bool efs_slot_pages_begin(struct efs_slot *slot)
{
    const struct efs_store *store = slot->fs->store;
    const struct efs_piece *p = &slot->piece;
    const struct efs_disk_object *object = &store->objects[p->object];
    slot->page_count = slot->looked_up = 0;
    slot->located = slot->shard->codec == EFS_CODEC_NONE;
    if (slot->located)
        return add_pages(slot, true, p->in, p->in + p->bytes, &slot->sm);
    slot->format = (enum efs_format)object->format;
    slot->width = efs_format_bytes(slot->format);
    slot->elements = efs_store_shard_elements(store, object, p->shard);
    slot->first = (size_t)(p->in / slot->width);
    slot->count = (size_t)((p->in % slot->width + p->bytes + slot->width - 1) / slot->width);
    size_t most = efs_cascade_head_bytes(slot->elements), all = slot->shard->e_bytes;
    slot->head_bytes = most < all ? most : all;
    efs_cascade_locate_sm(slot->format, slot->elements, slot->first, slot->count, &slot->range);
    return add_pages(slot, false, 0, slot->head_bytes, &slot->head) &&
           add_pages(slot, true, slot->range.sm_begin, slot->range.sm_end, &slot->sm);
}

/* ---- pages ---- */

static uint32_t find_page(const struct efs_slot *slot, struct efs_fragment_key key, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && (slot->pages[i].key.page != key.page || slot->pages[i].key.chunk != key.chunk))
        i++;
    return i;
}

static struct efs_check_place check_of(const struct efs_slot *slot, const struct efs_slot_page *page)
{
    return efs_check_at(slot->shard, page->key.chunk & 1, page->key.page * EFS_ALIGN);
}

static struct efs_fragment_key checks_key(const struct efs_check_place *place)
{
    return (struct efs_fragment_key){place->block / EFS_ALIGN, EFS_NONE};
}

/* Copies fragments to the pages that were added, and adds the pages of the checksums of those that are missing. Lock
 * held, also released and taken again. false: the slot is full. */
static bool look_up(struct efs_slot *slot)
{
    for (uint32_t i = slot->looked_up; i < slot->page_count; i++) {
        struct efs_slot_page *page = &slot->pages[i];
        uint32_t same = find_page(slot, page->key, i);
        efs_copy_begin(slot->fs, EFS_ALIGN);
        if (same < i && !slot->pages[same].missing) {
            efs_copy_locked(slot->fs, efs_slot_page(slot, i), efs_slot_page(slot, same), EFS_ALIGN);
            continue;
        }
        page->missing = !efs_fragment_get(slot->fs, page->key, 0, EFS_ALIGN, efs_slot_page(slot, i));
        if (!page->missing || page->key.chunk == EFS_NONE || slot->fs->store->plain)
            continue;
        struct efs_check_place place = check_of(slot, page);
        struct efs_fragment_key key = checks_key(&place);
        if (find_page(slot, key, slot->page_count) < slot->page_count)
            continue;
        if (slot->page_count == EFS_SLOT_PAGES)
            return false;
        slot->pages[slot->page_count++] = (struct efs_slot_page){.key = key};
    }
    slot->looked_up = slot->page_count;
    return true;
}

static const uint8_t *head_of(const struct efs_slot *slot)
{
    return efs_slot_page(slot, slot->head) + slot->shard->e_offset % EFS_ALIGN;
}

static bool head_is_here(const struct efs_slot *slot)
{
    for (uint32_t i = slot->head; i < slot->sm; i++) /* its pages are followed by those of the SM chunk */
        if (slot->pages[i].missing)
            return false;
    return true;
}

static bool locate(const struct efs_slot *slot, size_t first, size_t count, struct efs_cascade_range *range)
{
    return efs_cascade_locate(slot->format, head_of(slot), slot->head_bytes, slot->shard->e_bytes, slot->elements,
                              first, count, range) == 0;
}

bool efs_slot_pages_gather(struct efs_slot *slot)
{
    struct efs *fs = slot->fs;
    efs_lock(fs);
    for (struct efs_slot_page *page = slot->pages; page < slot->pages + slot->page_count; page++) {
        if (!page->missing)
            continue;
        efs_copy_begin(fs, EFS_ALIGN);
        efs_fragment_put(fs, page->key, page->key.chunk == EFS_NONE ? EFS_NONE : slot->read->extent,
                         efs_slot_page(slot, (uint32_t)(page - slot->pages)));
        page->missing = false;
    }
    bool good = look_up(slot);
    if (good && !slot->located && head_is_here(slot)) {
        slot->located = true;
        good = locate(slot, slot->first, slot->count, &slot->range) &&
               add_pages(slot, false, slot->range.code_begin, slot->range.code_end, &slot->code) && look_up(slot);
    }
    efs_unlock(fs);
    return good;
}

/* ---- check ---- */

bool efs_slot_pages_check(const struct efs_slot *slot)
{
    for (uint32_t i = 0; i < slot->page_count && !slot->fs->store->plain; i++) {
        const struct efs_slot_page *page = &slot->pages[i];
        if (!page->missing || page->key.chunk == EFS_NONE)
            continue;
        struct efs_check_place place = check_of(slot, page);
        const uint8_t *block =
            efs_slot_page(slot, find_page(slot, checks_key(&place), slot->page_count)) + place.block % EFS_ALIGN;
        if (!efs_check_block(block) || !efs_check_page(&place, block, efs_slot_page(slot, i)))
            return false;
    }
    return true;
}

/* ---- decode ---- */

static bool decode_elements(const struct efs_slot *slot, size_t first, size_t count, uint8_t *dst,
                            struct efs_codec_scratch *scratch)
{
    const struct efs_disk_shard *s = slot->shard;
    const struct efs_cascade_range *all = &slot->range;
    struct efs_cascade_range range;
    void *memory = efs_codec_memory(scratch);
    if (!memory || !locate(slot, first, count, &range))
        return false;
    const uint8_t *code = efs_slot_page(slot, slot->code) + (s->e_offset + all->code_begin) % EFS_ALIGN;
    const uint8_t *sm = efs_slot_page(slot, slot->sm) + (s->sm_offset + all->sm_begin) % EFS_ALIGN;
    return efs_cascade_merge_range(slot->format, head_of(slot), slot->head_bytes, s->e_bytes,
                                   code + (range.code_begin - all->code_begin), sm + (range.sm_begin - all->sm_begin),
                                   first, count, dst, memory) == 0;
}

/* The piece may begin and end inside an element. */
bool efs_slot_pages_decode(const struct efs_slot *slot, struct efs_codec_scratch *scratch)
{
    const struct efs_piece *p = &slot->piece;
    const size_t width = slot->width;
    uint8_t *dst = slot->read->dst + slot->done, one[8];
    if (slot->shard->codec == EFS_CODEC_NONE) {
        memcpy(dst, efs_slot_page(slot, slot->sm) + (slot->shard->sm_offset + p->in) % EFS_ALIGN, p->bytes);
        return true;
    }
    size_t at = slot->first, skip = (size_t)(p->in % width);
    for (size_t left = p->bytes, n; left > 0; left -= n, dst += n, skip = 0) {
        const size_t whole = skip == 0 ? left / width : 0; /* elements; 0: a part of one */
        if (!decode_elements(slot, at, whole ? whole : 1, whole ? dst : one, scratch))
            return false;
        n = whole ? whole * width : width - skip < left ? width - skip : left;
        if (!whole)
            memcpy(dst, one + skip, n);
        at += whole ? whole : 1;
    }
    return true;
}
