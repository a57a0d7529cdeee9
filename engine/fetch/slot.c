/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot.c - see slot.h: small reads, bounce slots, and the steps of both.
 *
 * A read of at most EFS_SMALL_BYTES of an object with page checksums (store/checks.h) is a small read: it takes only
 * the pages that it needs, from fragments or from the store. So does a read of a plain store, of objects outside
 * experts from EFS_SMALL_READS_BYTES on: their pages have no checksums, and are not compared.
 *
 * A bounce slot serves reads of a few bytes of an expert's shard, such as those that the kernel reads around another
 * expert. Their store has no page checksums, so that the first such read takes the whole shard. From its good chunks it
 * makes page checksums, and keeps them with the head of the E-chunk as a fragment. While that is in memory, later reads
 * take only the pages that they need. A plain store has no checksums at all, and no head.
 */
#include "slot.h"
#include "stats.h"

#include "checks.h"
#include "container.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_SLOTS 16u
#define BOUNCE_SLOTS_MAX 4u /* one more than workers, so that a read is in flight while all decode; but at most 4 */
#define SMALL_SLOT_BYTES                                                                                               \
    ((EFS_SLOT_PAGES + 1) * (size_t)EFS_ALIGN) /* decoding reads up to EFS_CASCADE_SLACK bytes past the code */

static void slot_run(struct efs_job *job, struct efs_codec_scratch *scratch);

/* ---- small reads ---- */

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

/* Adds the pages of the store with bytes [begin, end) of a chunk; *at: the first of them. false: the slot is full. */
static bool name_pages(struct efs_slot *slot, bool sm, uint64_t begin, uint64_t end, uint32_t *at)
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

/* Names the pages of the piece's head and of its signs and mantissas. false, here and below: the read is not served by
 * a few pages. */
static bool small_begin(struct efs_slot *slot)
{
    const struct efs_store *store = slot->fs->store;
    const struct efs_piece *p = &slot->piece;
    const struct efs_disk_object *object = &store->objects[p->object];
    slot->page_count = slot->looked_up = 0;
    slot->located = slot->shard->codec == EFS_CODEC_NONE;
    if (slot->located)
        return name_pages(slot, true, p->in, p->in + p->bytes, &slot->sm);
    slot->format = (enum efs_format)object->format;
    slot->width = efs_format_bytes(slot->format);
    slot->elements = efs_store_shard_elements(store, object, p->shard);
    slot->first = (size_t)(p->in / slot->width);
    slot->count = (size_t)((p->in % slot->width + p->bytes + slot->width - 1) / slot->width);
    size_t most = efs_cascade_head_bytes(slot->elements), all = slot->shard->e_bytes;
    slot->head_bytes = most < all ? most : all;
    efs_cascade_locate_sm(slot->format, slot->elements, slot->first, slot->count, &slot->range);
    return name_pages(slot, false, 0, slot->head_bytes, &slot->head) &&
           name_pages(slot, true, slot->range.sm_begin, slot->range.sm_end, &slot->sm);
}

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

static bool locate_code(const struct efs_slot *slot, size_t first, size_t count, struct efs_cascade_range *range)
{
    return efs_cascade_locate(slot->format, head_of(slot), slot->head_bytes, slot->shard->e_bytes, slot->elements,
                              first, count, range) == 0;
}

/* Makes the pages that were read fragments, names all pages that can be named now, and copies fragments to them. Those
 * that are missing are to be read. */
static bool small_gather(struct efs_slot *slot)
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
        good = locate_code(slot, slot->first, slot->count, &slot->range) &&
               name_pages(slot, false, slot->range.code_begin, slot->range.code_end, &slot->code) && look_up(slot);
    }
    efs_unlock(fs);
    return good;
}

/* Compares the pages that were read. */
static bool small_check(const struct efs_slot *slot)
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

static bool decode_elements(const struct efs_slot *slot, size_t first, size_t count, uint8_t *dst,
                            struct efs_codec_scratch *scratch)
{
    const struct efs_disk_shard *s = slot->shard;
    const struct efs_cascade_range *all = &slot->range;
    struct efs_cascade_range range;
    void *memory = efs_codec_memory(scratch);
    if (!memory || !locate_code(slot, first, count, &range))
        return false;
    const uint8_t *code = efs_slot_page(slot, slot->code) + (s->e_offset + all->code_begin) % EFS_ALIGN;
    const uint8_t *sm = efs_slot_page(slot, slot->sm) + (s->sm_offset + all->sm_begin) % EFS_ALIGN;
    return efs_cascade_merge_range(slot->format, head_of(slot), slot->head_bytes, s->e_bytes,
                                   code + (range.code_begin - all->code_begin), sm + (range.sm_begin - all->sm_begin),
                                   first, count, dst, memory) == 0;
}

/* All pages are here. The piece may begin and end inside an element. */
static bool small_decode(const struct efs_slot *slot, struct efs_codec_scratch *scratch)
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

/* ---- parts of shards, for bounce slots ---- */

/* Where a bounce slot has the first byte of a chunk: pages of the E-chunk, followed by those of the SM-chunk. */
static uint8_t *slot_chunk(const struct efs_slot *slot, bool sm)
{
    const struct efs_disk_shard *s = slot->shard;
    const size_t e = s->e_bytes ? efs_page_span(s->e_offset, s->e_offset + s->e_bytes) : 0;
    return slot->memory + (sm ? e + s->sm_offset % EFS_ALIGN : s->e_offset % EFS_ALIGN);
}

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
    return begin == end ? (struct efs_slot_pages){0}
                        : (struct efs_slot_pages){efs_page_down(offset + begin), efs_page_up(offset + end)};
}

/* The bytes of the chunks that the piece needs. */
static bool locate_part(const struct efs_slot *slot, struct efs_cascade_range *range)
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

/* Whether the pages that the piece needs can be read alone: sets part_e and part_sm. */
static bool part_begin(struct efs_slot *slot)
{
    struct efs *fs = slot->fs;
    struct efs_cascade_range range;
    bool found = fs->store->plain && needs_a_part(slot);
    if (part_is_kept(slot)) {
        efs_lock(fs);
        found = efs_fragment_get(fs, part_key(slot), 0, EFS_ALIGN, slot->checks);
        efs_unlock(fs);
    }
    if (!found || !locate_part(slot, &range))
        return false;
    slot->part_e = pages_of(slot->shard->e_offset, range.code_begin, range.code_end);
    slot->part_sm = pages_of(slot->shard->sm_offset, range.sm_begin, range.sm_end);
    return true;
}

/* The pages of a chunk have these checksums. */
static bool pages_good(const struct efs_slot *slot, bool sm, struct efs_slot_pages pages)
{
    const struct efs_disk_shard *s = slot->shard;
    const uint64_t first = efs_page_down(sm ? s->sm_offset : s->e_offset);
    const uint8_t *page = slot_chunk(slot, sm) - (sm ? s->sm_offset : s->e_offset) % EFS_ALIGN;
    bool good = true;
    for (uint64_t at = pages.begin; at < pages.end && good; at += EFS_ALIGN) {
        const struct efs_check_place place = efs_check_at(s, sm, at);
        good = efs_check_page(&place, slot->checks + (place.block - efs_checks_offset(s)), page + (at - first));
    }
    return good;
}

/* Compares the pages that were read, in the places that they have in whole chunks, and completes the head. */
static bool part_check(const struct efs_slot *slot)
{
    if (slot->fs->store->plain)
        return true;
    if (!pages_good(slot, false, slot->part_e) || !pages_good(slot, true, slot->part_sm))
        return false;
    memcpy(slot_chunk(slot, false), slot->checks + efs_checks_bytes(slot->shard), head_bytes(slot));
    return true;
}

/* Keeps page checksums of the shard that was read whole and is good, if the piece needed a part of it. */
static void part_keep(const struct efs_slot *slot)
{
    if (!part_is_kept(slot))
        return;
    const uint32_t checks = efs_checks_bytes(slot->shard);
    const uint8_t *e = slot->shard->e_bytes ? slot_chunk(slot, false) : NULL;
    efs_checks_make(slot->shard, e, slot_chunk(slot, true), slot->checks);
    if (e)
        memcpy(slot->checks + checks, e, head_bytes(slot));
    efs_lock(slot->fs);
    efs_fragment_put(slot->fs, part_key(slot), EFS_NONE, slot->checks);
    efs_unlock(slot->fs);
}

/* ---- pages ---- */

static void io_done(struct efs_io *io, errint_t error)
{
    struct efs_slot *slot = io->owner;
    if (error < 0)
        slot->error = error;
    if (atomic_fetch_sub(&slot->pending, 1) == 1)
        efs_workers_push(slot->fs->workers, &slot->job, EFS_JOB_NORMAL);
}

/* Adds a read to those of this step; one that continues the last read extends it. */
static void add_read(struct efs_slot *slot, uint64_t offset, size_t bytes, uint8_t *memory)
{
    struct efs_io *last = slot->io_count ? &slot->io[slot->io_count - 1] : NULL;
    if (last && last->data + last->bytes == memory && last->offset + last->bytes == offset) {
        last->bytes += bytes;
        return;
    }
    struct efs_io *io = &slot->io[slot->io_count++];
    *io = (struct efs_io){.offset = offset,
                          .bytes = bytes,
                          .data = memory,
                          .segment = EFS_NONE,
                          .class = EFS_IO_DEMAND,
                          .complete = io_done,
                          .owner = slot};
    if (last)
        last->next = io;
}

/* Reads pages of a chunk of a bounce slot to their place. */
static void add_pages(struct efs_slot *slot, bool sm, struct efs_slot_pages pages)
{
    const uint64_t first = efs_page_down(sm ? slot->shard->sm_offset : slot->shard->e_offset);
    uint8_t *page = slot->memory + efs_page_down((uint64_t)(slot_chunk(slot, sm) - slot->memory));
    if (pages.begin < pages.end)
        add_read(slot, pages.begin, pages.end - pages.begin, page + (pages.begin - first));
}

/* Reads the chunks of the piece's shard to a bounce slot, or the pages of them that it needs. */
static void add_chunks(struct efs_slot *slot)
{
    const struct efs_disk_shard *s = slot->shard;
    slot->part = !slot->whole && part_begin(slot);
    add_pages(slot, false, slot->part ? slot->part_e : pages_of(s->e_offset, 0, s->e_bytes));
    add_pages(slot, true, slot->part ? slot->part_sm : pages_of(s->sm_offset, 0, s->sm_bytes));
}

/* Reads on this thread, if the read may block. false: not read. */
static bool read_direct(struct efs_slot *slot)
{
    struct efs *fs = slot->fs;
    int fd = slot->read->may_block ? efs_io_direct_fd(fs->io) : -1;
    uint64_t bytes = 0;
    if (fd < 0 || efs_direct_read(&slot->direct, fd, slot->io) < 0)
        return false;
    for (uint32_t i = 0; i < slot->io_count; i++)
        bytes += slot->io[i].bytes;
    efs_count(fs->stats, disk_reads, slot->io_count);
    efs_count(fs->stats, disk_bytes, bytes);
    return true;
}

/* Finds or reads pages. true: the I/O thread reads them, and a worker goes on. */
static bool slot_pages(struct efs_slot *slot, errint_t *rc)
{
    slot->io_count = 0;
    slot->step = EFS_SLOT_DECODE;
    if (slot->is_bounce) {
        add_chunks(slot);
    } else {
        *rc = small_gather(slot) ? 0 : -EUCLEAN;
        for (uint32_t i = 0; i < slot->page_count && *rc == 0; i++)
            if (slot->pages[i].missing)
                add_read(slot, slot->pages[i].key.page * EFS_ALIGN, EFS_ALIGN, efs_slot_page(slot, i));
    }
    if (slot->io_count == 0)
        return false;
    if (!slot->is_bounce || slot->part)
        slot->step = EFS_SLOT_CHECK;
    if (!slot->is_bounce) {
        slot->from_disk = true;
        if (read_direct(slot))
            return false;
    }
    slot->read->may_block = false; /* a worker does not wait for the disk */
    slot->pending = slot->io_count;
    efs_io_submit(slot->fs->io, slot->io);
    return true;
}

/* ---- decode ---- */

static errint_t slot_decode(struct efs_slot *slot, struct efs_codec_scratch *scratch)
{
    const struct efs_disk_shard *s = slot->shard;
    if (!slot->is_bounce)
        return small_decode(slot, scratch) ? 0 : -EUCLEAN;
    const uint8_t *e = s->e_bytes ? slot_chunk(slot, false) : NULL, *sm = s->sm_bytes ? slot_chunk(slot, true) : NULL;
    uint8_t *dst = slot->read->dst + slot->done;
    errint_t rc = efs_shard_decode_from(slot->fs, &slot->piece, e, sm, !slot->part, dst, scratch);
    if (rc == 0 && !slot->part)
        part_keep(slot);
    return rc;
}

/* Compares the pages that were read. */
static errint_t slot_check(struct efs_slot *slot)
{
    slot->step = slot->part ? EFS_SLOT_DECODE : EFS_SLOT_PAGE;
    if (!slot->is_bounce)
        return small_check(slot) ? 0 : -EUCLEAN;
    slot->whole = !part_check(slot); /* then it reads all, and reports what is wrong */
    if (slot->whole)
        slot->step = EFS_SLOT_PAGE;
    return 0;
}

/* ---- reply ---- */

static void slot_begin(struct efs_slot *slot, struct efs_uncached *read)
{
    slot->read = read;
    slot->step = EFS_SLOT_PIECE;
    slot->done = 0;
    slot->error = 0;
    slot->io_count = 0;
    slot->from_disk = false;
    slot->piece = (struct efs_piece){.object = read->object, .at = read->begin};
}

/* Passes the slot to the next read that waits, or frees it. */
static void slot_put(struct efs_slot *slot)
{
    struct efs_slots *slots = slot->fs->slots;
    struct efs_slot_pool *pool = &slots->pools[slot->is_bounce];
    pthread_mutex_lock(&slots->lock);
    struct efs_uncached *next = pool->waiting.head;
    if (next && !(pool->waiting.head = next->next))
        EFS_QUEUE_INIT(&pool->waiting);
    if (!next) {
        slot->next = pool->free;
        pool->free = slot;
    }
    pthread_mutex_unlock(&slots->lock);
    if (!next)
        return;
    next->may_block = false;
    slot_begin(slot, next);
    if (slot->is_bounce)
        slot_run(&slot->job, NULL); /* only submits reads */
    else
        efs_workers_push(slot->fs->workers, &slot->job, EFS_JOB_NORMAL);
}

static void slot_reply(struct efs_slot *slot, errint_t rc)
{
    struct efs *fs = slot->fs;
    struct efs_uncached *read = slot->read;
    const bool small = !slot->is_bounce;
    if (small) {
        efs_count(fs->stats, reads_m, rc < 0 || slot->from_disk);
        efs_count(fs->stats, reads_c, rc == 0 && !slot->from_disk);
        efs_count(fs->stats, reads_small, rc == 0);
    } else if (slot->error < 0) {
        efs_log(fs, EFS_LOG_ERROR, "%s: read at offset %llu failed: %s", fs->store->path,
                (unsigned long long)slot->io[0].offset, strerror(-rc));
    }
    slot_put(slot); /* before done(), after which the store may be closed */
    if (small && rc < 0) {
        read->small = false;
        efs_uncached_read(fs, read);
    } else {
        read->done(fs, read, rc);
    }
}

/* Continues with the read until it waits for the I/O thread or ends. scratch: of a worker, or NULL. */
static void slot_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_slot *slot = EFS_CONTAINER(job, struct efs_slot, job);
    const struct efs_uncached *read = slot->read;
    errint_t rc = slot->error;
    for (bool ended = false; rc == 0 && !ended;)
        switch (slot->step) {
        case EFS_SLOT_PIECE:
            slot->piece = efs_piece_at(slot->fs, slot->piece.object, slot->piece.at + slot->piece.bytes,
                                       read->bytes - slot->done);
            slot->shard = &slot->fs->store->shards[slot->piece.shard];
            slot->part = slot->whole = false;
            slot->step = EFS_SLOT_PAGE;
            if (!slot->is_bounce && !small_begin(slot))
                rc = -EUCLEAN;
            break;
        case EFS_SLOT_PAGE:
            if (slot_pages(slot, &rc))
                return;
            break;
        case EFS_SLOT_CHECK:
            rc = slot_check(slot);
            break;
        case EFS_SLOT_DECODE:
            rc = slot_decode(slot, scratch);
            slot->done += slot->piece.bytes;
            slot->step = EFS_SLOT_PIECE;
            ended = slot->done == read->bytes;
            break;
        }
    slot_reply(slot, rc);
}

void efs_uncached_read(struct efs *fs, struct efs_uncached *read)
{
    struct efs_slots *slots = fs->slots;
    struct efs_slot_pool *pool = &slots->pools[!read->small];
    pthread_mutex_lock(&slots->lock);
    struct efs_slot *slot = pool->free;
    if (slot)
        pool->free = slot->next;
    else
        EFS_QUEUE_PUSH(&pool->waiting, read);
    pthread_mutex_unlock(&slots->lock);
    if (!slot)
        return;
    slot_begin(slot, read);
    slot_run(&slot->job, NULL);
}

/* ---- slots ---- */

static unsigned small_slots(const struct efs *fs)
{
    return efs_fragments_bytes(fs) ? SMALL_SLOTS : 0;
}

static unsigned bounce_slots(const struct efs *fs)
{
    return fs->options.workers + 1 < BOUNCE_SLOTS_MAX ? fs->options.workers + 1 : BOUNCE_SLOTS_MAX;
}

static size_t memory_bytes(const struct efs *fs)
{
    return small_slots(fs) * SMALL_SLOT_BYTES + bounce_slots(fs) * (fs->shard_bytes_max + EFS_ALIGN);
}

static size_t table_bytes(const struct efs *fs)
{
    return sizeof(struct efs_slots) + (small_slots(fs) + bounce_slots(fs)) * sizeof(struct efs_slot);
}

uint64_t efs_slots_bytes(const struct efs *fs)
{
    return table_bytes(fs) + memory_bytes(fs);
}

errint_t efs_slots_build(struct efs *fs)
{
    struct efs_slots *slots = efs_sys_calloc(1, table_bytes(fs));
    if (!slots)
        return -ENOMEM;
    fs->slots = slots;
    slots->count = small_slots(fs) + bounce_slots(fs);
    pthread_mutex_init(&slots->lock, NULL);
    EFS_QUEUE_INIT(&slots->pools[false].waiting);
    EFS_QUEUE_INIT(&slots->pools[true].waiting);
    uint8_t *memory = slots->memory =
        efs_sys_mmap(NULL, memory_bytes(fs), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; memory && i < slots->count; i++) {
        struct efs_slot *slot = &slots->slots[i];
        slot->is_bounce = i >= small_slots(fs);
        struct efs_slot_pool *pool = &slots->pools[slot->is_bounce];
        slot->fs = fs;
        slot->job.run = slot_run;
        slot->memory = memory;
        memory += slot->is_bounce ? fs->shard_bytes_max : SMALL_SLOT_BYTES;
        if (slot->is_bounce) {
            slot->checks = memory;
            memory += EFS_ALIGN;
        }
        slot->next = pool->free;
        pool->free = slot;
    }
    return slots->memory ? 0 : -ENOMEM;
}

void efs_slots_destroy(struct efs *fs)
{
    struct efs_slots *slots = fs->slots;
    if (!slots)
        return;
    for (unsigned i = 0; i < slots->count; i++)
        efs_direct_close(&slots->slots[i].direct);
    if (slots->memory)
        efs_sys_munmap(slots->memory, memory_bytes(fs));
    pthread_mutex_destroy(&slots->lock);
    free(slots);
    fs->slots = NULL;
}
