/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small.c - small reads: a read of at most EFS_SMALL_BYTES of an object with page checksums (store/checks.h) takes only
 * the pages that it needs, from fragments (cache/fragment.h) or from the store. So does a read of a plain store, of
 * objects outside experts from EFS_SMALL_READS_BYTES on: their pages have no checksums, and are not compared.
 *
 * The pages are gathered in a *slot*. The slots are allocated when the store is opened; a slot is held for at most two
 * reads of the disk and a decode of each shard in turn, so a wait for one depends on the disk and the workers only.
 *
 * A read that does not get good pages this way is made by efs_uncached_read(), which reports why, or succeeds.
 */
#include "fetch.h"
#include "stats.h"

#include "checks.h"
#include "container.h"
#include "direct.h"
#include "fragment.h"
#include "kernels.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 16u
#define SLOT_PAGES 20u
#define SLOT_BYTES                                                                                                     \
    ((SLOT_PAGES + 1) * (size_t)EFS_ALIGN) /* decoding reads up to EFS_CASCADE_SLACK bytes past the code */

struct slot_page {
    struct efs_fragment_key key;
    bool missing; /* to be read from the store */
};

struct slot {
    struct efs_slot slot; /* first */
    struct efs *fs;
    struct efs_uncached *read;
    struct efs_job job;
    struct efs_direct direct;
    size_t done; /* bytes of the read that are decoded */
    /* The shard that has the next bytes, and what is needed of it. */
    uint32_t shard;
    size_t elements, first, count; /* of the shard; those that the bytes touch */
    size_t skip, bytes;            /* bytes of the first element before the read's; bytes of the read in this shard */
    struct efs_cascade_range range;
    uint32_t head, code, sm; /* the first page of each in the slot */
    bool located;            /* range has the code, whose pages are in the slot */
    bool from_disk;          /* of the read: some page was read from the store */
    uint32_t page_count, looked_up;
    struct slot_page pages[SLOT_PAGES];
    struct slot_io {
        struct efs_io io;
        struct slot *slot;
    } io[SLOT_PAGES];
    _Atomic uint32_t pending;
    _Atomic errint_t error;
};

struct efs_small_slots {
    struct efs_slots slots;
    struct slot slot[SLOTS];
};

static const struct efs_disk_shard *shard_of(const struct slot *slot)
{
    return &slot->fs->store->shards[slot->shard];
}

static enum efs_format format_of(const struct slot *slot)
{
    return (enum efs_format)slot->fs->store->objects[slot->read->object].format;
}

static uint8_t *page_memory(const struct slot *slot, uint32_t i)
{
    return slot->slot.memory + (size_t)i * EFS_ALIGN;
}

/* ---- pages ---- */

static uint32_t find_page(const struct slot *slot, struct efs_fragment_key key, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && (slot->pages[i].key.page != key.page || slot->pages[i].key.chunk != key.chunk))
        i++;
    return i;
}

/* Adds the pages of the store with bytes [begin, end) of a chunk; *at: the first of them. false: the slot is full. */
static bool add_pages(struct slot *slot, bool sm, uint64_t begin, uint64_t end, uint32_t *at)
{
    const struct efs_disk_shard *s = shard_of(slot);
    uint64_t offset = sm ? s->sm_offset : s->e_offset, page = efs_page_down(offset + begin) / EFS_ALIGN;
    uint64_t pages = efs_page_span(offset + begin, offset + end) / EFS_ALIGN;
    if (pages > SLOT_PAGES - slot->page_count)
        return false;
    *at = slot->page_count;
    for (uint64_t i = 0; i < pages; i++)
        slot->pages[slot->page_count++] = (struct slot_page){.key = {page + i, 2 * slot->shard + sm}};
    return true;
}

static struct efs_check_place check_of(const struct slot *slot, const struct slot_page *page)
{
    return efs_check_at(shard_of(slot), page->key.chunk & 1, page->key.page * EFS_ALIGN);
}

static struct efs_fragment_key checks_key(const struct efs_check_place *place)
{
    return (struct efs_fragment_key){place->block / EFS_ALIGN, EFS_NONE};
}

/* Copies fragments to the pages that were added, and adds the pages of the checksums of those that are missing. Lock
 * held, also released and taken again. false: the slot is full. */
static bool look_up(struct slot *slot)
{
    for (uint32_t i = slot->looked_up; i < slot->page_count; i++) {
        struct slot_page *page = &slot->pages[i];
        uint32_t same = find_page(slot, page->key, i);
        efs_copy_begin(slot->fs, EFS_ALIGN);
        if (same < i && !slot->pages[same].missing) {
            efs_copy_locked(slot->fs, page_memory(slot, i), page_memory(slot, same), EFS_ALIGN);
            continue;
        }
        page->missing = !efs_fragment_get(slot->fs, page->key, 0, EFS_ALIGN, page_memory(slot, i));
        if (!page->missing || page->key.chunk == EFS_NONE || slot->fs->store->plain)
            continue;
        struct efs_check_place place = check_of(slot, page);
        struct efs_fragment_key key = checks_key(&place);
        if (find_page(slot, key, slot->page_count) < slot->page_count)
            continue;
        if (slot->page_count == SLOT_PAGES)
            return false;
        slot->pages[slot->page_count++] = (struct slot_page){.key = key};
    }
    slot->looked_up = slot->page_count;
    return true;
}

/* Compares the pages that were read with their checksums, if there are any. */
static bool pages_are_good(const struct slot *slot)
{
    for (uint32_t i = 0; i < slot->page_count && !slot->fs->store->plain; i++) {
        const struct slot_page *page = &slot->pages[i];
        if (!page->missing || page->key.chunk == EFS_NONE)
            continue;
        struct efs_check_place place = check_of(slot, page);
        const uint8_t *block =
            page_memory(slot, find_page(slot, checks_key(&place), slot->page_count)) + place.block % EFS_ALIGN;
        if (!efs_check_block(block) || !efs_check_page(&place, block, page_memory(slot, i)))
            return false;
    }
    return true;
}

/* Makes the pages that were read fragments. Lock held, also released and taken again. */
static void put_pages(struct slot *slot)
{
    for (uint32_t i = 0; i < slot->page_count; i++) {
        struct slot_page *page = &slot->pages[i];
        if (!page->missing)
            continue;
        efs_copy_begin(slot->fs, EFS_ALIGN);
        efs_fragment_put(slot->fs, page->key, page->key.chunk == EFS_NONE ? EFS_NONE : slot->read->extent,
                         page_memory(slot, i));
        page->missing = false;
    }
}

/* ---- the disk ---- */

static void slot_run(struct efs_job *job, struct efs_codec_scratch *scratch);

static void slot_io_done(struct efs_io *io, errint_t error)
{
    struct slot *slot = EFS_CONTAINER(io, struct slot_io, io)->slot;
    if (error < 0)
        slot->error = error;
    if (atomic_fetch_sub(&slot->pending, 1) == 1)
        efs_workers_push(slot->fs->workers, &slot->job);
}

/* The reads of the missing pages, adjacent ones together, linked; their number. */
static uint32_t missing_reads(struct slot *slot)
{
    struct efs_io *last = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < slot->page_count; i++) {
        uint64_t offset = slot->pages[i].key.page * EFS_ALIGN;
        if (!slot->pages[i].missing)
            continue;
        if (last && last->data + last->bytes == page_memory(slot, i) && last->offset + last->bytes == offset) {
            last->bytes += EFS_ALIGN;
            continue;
        }
        struct efs_io *io = &slot->io[count++].io;
        *io = (struct efs_io){.offset = offset,
                              .bytes = EFS_ALIGN,
                              .data = page_memory(slot, i),
                              .segment = EFS_NONE,
                              .class = EFS_IO_DEMAND,
                              .complete = slot_io_done};
        if (last)
            last->next = io;
        last = io;
    }
    slot->from_disk = slot->from_disk || count > 0;
    return count;
}

/* Reads on this thread, if the read may block. false: not read. */
static bool read_direct(struct slot *slot, uint32_t count)
{
    struct efs *fs = slot->fs;
    int fd = slot->read->may_block ? efs_io_direct_fd(fs->io) : -1;
    uint64_t bytes = 0;
    if (fd < 0 || efs_direct_read(&slot->direct, fd, &slot->io[0].io) < 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        bytes += slot->io[i].io.bytes;
    efs_count(fs->stats, disk_reads, count);
    efs_count(fs->stats, disk_bytes, bytes);
    return true;
}

/* Reads by the I/O thread; slot_run() goes on, on a worker, which must not wait for the disk. */
static void read_queued(struct slot *slot, uint32_t count)
{
    slot->read->may_block = false;
    slot->pending = count;
    slot->job.run = slot_run;
    efs_io_submit(slot->fs->io, &slot->io[0].io);
}

/* ---- a shard's part of the read ---- */

static size_t head_bytes(const struct slot *slot)
{
    size_t most = efs_cascade_head_bytes(slot->elements), all = shard_of(slot)->e_bytes;
    return most < all ? most : all;
}

/* Begins the shard that has the next bytes, with the pages of its head and of its signs and mantissas. */
static bool piece_begin(struct slot *slot)
{
    const struct efs_store *store = slot->fs->store;
    const struct efs_uncached *read = slot->read;
    const struct efs_disk_object *o = &store->objects[read->object];
    const size_t width = efs_format_bytes(format_of(slot));
    const uint64_t at = read->begin + slot->done, shard_bytes = (uint64_t)store->sb.shard_elements * width;
    const uint64_t in = at % shard_bytes, left = shard_bytes - in;
    slot->shard = o->shard_first + (uint32_t)(at / shard_bytes);
    slot->elements = efs_store_shard_elements(store, o, slot->shard);
    slot->bytes = left < read->bytes - slot->done ? (size_t)left : read->bytes - slot->done;
    slot->first = (size_t)(in / width);
    slot->skip = (size_t)(in % width);
    slot->count = (slot->skip + slot->bytes + width - 1) / width;
    slot->page_count = slot->looked_up = 0;
    slot->located = shard_of(slot)->codec == EFS_CODEC_NONE;
    if (slot->located)
        return add_pages(slot, true, in, in + slot->bytes, &slot->sm);
    efs_cascade_locate_sm(format_of(slot), slot->elements, slot->first, slot->count, &slot->range);
    return add_pages(slot, false, 0, head_bytes(slot), &slot->head) &&
           add_pages(slot, true, slot->range.sm_begin, slot->range.sm_end, &slot->sm);
}

static const uint8_t *head_of(const struct slot *slot)
{
    return page_memory(slot, slot->head) + shard_of(slot)->e_offset % EFS_ALIGN;
}

static bool locate(const struct slot *slot, size_t first, size_t count, struct efs_cascade_range *range)
{
    return efs_cascade_locate(format_of(slot), head_of(slot), head_bytes(slot), shard_of(slot)->e_bytes, slot->elements,
                              first, count, range) == 0;
}

static bool head_is_here(const struct slot *slot)
{
    size_t pages = efs_page_span(shard_of(slot)->e_offset, shard_of(slot)->e_offset + head_bytes(slot)) / EFS_ALIGN;
    for (uint32_t i = slot->head; i < slot->head + pages; i++)
        if (slot->pages[i].missing)
            return false;
    return true;
}

/* Adds all pages that can be named now, and copies fragments to them. */
static bool gather(struct slot *slot)
{
    bool good = look_up(slot);
    if (!good || slot->located || !head_is_here(slot))
        return good;
    slot->located = true;
    return locate(slot, slot->first, slot->count, &slot->range) &&
           add_pages(slot, false, slot->range.code_begin, slot->range.code_end, &slot->code) && look_up(slot);
}

static bool decode_elements(const struct slot *slot, size_t first, size_t count, uint8_t *dst,
                            struct efs_codec_scratch *scratch)
{
    const struct efs_disk_shard *s = shard_of(slot);
    const struct efs_cascade_range *all = &slot->range;
    struct efs_cascade_range range;
    void *memory = efs_codec_memory(scratch);
    if (!memory || !locate(slot, first, count, &range))
        return false;
    const uint8_t *code = page_memory(slot, slot->code) + (s->e_offset + all->code_begin) % EFS_ALIGN;
    const uint8_t *sm = page_memory(slot, slot->sm) + (s->sm_offset + all->sm_begin) % EFS_ALIGN;
    return efs_cascade_merge_range(format_of(slot), head_of(slot), head_bytes(slot), s->e_bytes,
                                   code + (range.code_begin - all->code_begin), sm + (range.sm_begin - all->sm_begin),
                                   first, count, dst, memory) == 0;
}

/* Decodes the shard's part of the read; all pages are here. The part may begin and end inside an element. */
static bool decode(struct slot *slot, struct efs_codec_scratch *scratch)
{
    const size_t width = efs_format_bytes(format_of(slot));
    uint8_t *dst = slot->read->dst + slot->done, one[8];
    size_t at = slot->first, skip = slot->skip;
    if (shard_of(slot)->codec == EFS_CODEC_NONE) {
        memcpy(dst, page_memory(slot, slot->sm) + (shard_of(slot)->sm_offset + at) % EFS_ALIGN, slot->bytes);
        return true;
    }
    for (size_t left = slot->bytes, n; left > 0; left -= n, dst += n, skip = 0) {
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

/* ---- slots ---- */

static void slot_start(struct efs_job *job, struct efs_codec_scratch *scratch);

/* Passes the slot to the next read in the queue, or frees it. */
static void slot_put(struct slot *slot)
{
    struct efs_slot_waiter *next = efs_slots_put(&slot->fs->small->slots, &slot->slot);
    if (!next)
        return;
    slot->read = EFS_CONTAINER(next, struct efs_uncached, waiter);
    slot->job.run = slot_start;
    efs_workers_push(slot->fs->workers, &slot->job);
}

static void slot_end(struct slot *slot, bool good)
{
    struct efs *fs = slot->fs;
    struct efs_uncached *read = slot->read;
    if (!good || slot->from_disk)
        efs_count(fs->stats, reads_m, 1);
    else
        efs_count(fs->stats, reads_c, 1);
    efs_count(fs->stats, reads_small, good);
    slot_put(slot); /* before done(), after which the store may be closed */
    if (good)
        read->done(fs, read, 0);
    else
        efs_uncached_read(fs, read);
}

static bool put_and_gather(struct slot *slot)
{
    efs_lock(slot->fs);
    put_pages(slot);
    bool good = gather(slot);
    efs_unlock(slot->fs);
    return good;
}

/* Goes on with the read, whose pages are good, until it waits for the I/O thread or ends. scratch: of a worker. */
static void slot_continue(struct slot *slot, struct efs_codec_scratch *scratch)
{
    uint32_t count;
    bool good;
    do {
        good = put_and_gather(slot);
        while (good && (count = missing_reads(slot)) > 0) {
            if (!read_direct(slot, count)) {
                read_queued(slot, count);
                return;
            }
            good = pages_are_good(slot) && put_and_gather(slot);
        }
        good = good && decode(slot, scratch);
        slot->done += slot->bytes;
    } while (good && slot->done < slot->read->bytes && (good = piece_begin(slot)));
    slot_end(slot, good);
}

static void slot_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct slot *slot = EFS_CONTAINER(job, struct slot, job);
    if (slot->error < 0 || !pages_are_good(slot))
        slot_end(slot, false);
    else
        slot_continue(slot, scratch);
}

static void slot_begin(struct slot *slot, struct efs_codec_scratch *scratch)
{
    slot->done = 0;
    slot->error = 0;
    slot->from_disk = false;
    if (piece_begin(slot))
        slot_continue(slot, scratch);
    else
        slot_end(slot, false);
}

static void slot_start(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct slot *slot = EFS_CONTAINER(job, struct slot, job);
    slot->read->may_block = false; /* a worker does not wait for the disk */
    slot_begin(slot, scratch);
}

void efs_small_read(struct efs *fs, struct efs_uncached *read)
{
    struct efs_slot *free_slot = efs_slots_get(&fs->small->slots, &read->waiter);
    if (!free_slot)
        return;
    struct slot *slot = EFS_CONTAINER(free_slot, struct slot, slot);
    slot->read = read;
    slot_begin(slot, NULL);
}

bool efs_small_serves(const struct efs *fs, uint32_t extent, uint32_t object, uint64_t begin, size_t bytes)
{
    const struct efs_store *store = fs->store;
    const struct efs_disk_object *o = &store->objects[object];
    if (!fs->small || bytes > EFS_SMALL_BYTES || begin > o->bytes || bytes > o->bytes - begin ||
        !efs_fragments_serve(fs, extent))
        return false;
    if (store->plain)
        return o->group >= store->expert_count && o->bytes >= EFS_SMALL_READS_BYTES;
    uint64_t shard_bytes = (uint64_t)store->sb.shard_elements * efs_format_bytes((enum efs_format)o->format);
    for (uint64_t s = begin / shard_bytes; s <= (begin + bytes - 1) / shard_bytes; s++)
        if (store->shards[o->shard_first + s].checks == 0)
            return false;
    return true;
}

uint64_t efs_small_slots_bytes(const struct efs *fs)
{
    const bool small = fs->store->plain || (fs->store->sb.incompat & EFS_INCOMPAT_CHECKS);
    return small ? SLOTS * SLOT_BYTES + sizeof(struct efs_small_slots) : 0;
}

errint_t efs_small_build(struct efs *fs)
{
    if (efs_small_slots_bytes(fs) == 0)
        return 0;
    struct efs_small_slots *slots = efs_sys_calloc(1, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    fs->small = slots;
    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *slot = &slots->slot[i];
        slot->fs = fs;
        for (unsigned k = 0; k < SLOT_PAGES; k++)
            slot->io[k].slot = slot;
    }
    return efs_slots_build(&slots->slots, slots->slot, sizeof(slots->slot[0]), SLOTS, SLOT_BYTES);
}

void efs_small_destroy(struct efs *fs)
{
    struct efs_small_slots *slots = fs->small;
    if (!slots)
        return;
    for (unsigned i = 0; i < SLOTS; i++)
        efs_direct_close(&slots->slot[i].direct);
    efs_slots_destroy(&slots->slots);
    free(slots);
    fs->small = NULL;
}
