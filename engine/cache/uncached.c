/* SPDX-License-Identifier: Apache-2.0 */
/* uncached.c - see uncached.h. */
#include "uncached.h"

#include "container.h"
#include "extent_internal.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_MAX 4u /* one more than workers, so that a read is in flight while all workers decode; but at most 4 */

struct slot {
    struct efs_slot slot; /* its memory: the pages of the shard's E chunk, followed by those of its SM chunk */
    struct efs_io e, sm;
    struct efs_job job;
    struct efs *fs;
    struct efs_uncached *read;
    size_t done; /* bytes of the read that are decoded */
    struct efs_piece piece;
    _Atomic int pending;
    _Atomic errint_t error;
};

struct efs_uncached_slots {
    struct efs_slots slots;
    struct slot slot[SLOTS_MAX];
};

static void slot_io_done(struct efs_io *io, errint_t error)
{
    struct slot *slot = io->owner;
    if (error < 0)
        slot->error = error;
    if (atomic_fetch_sub(&slot->pending, 1) == 1)
        efs_workers_push(slot->fs->workers, &slot->job);
}

/* Prepares the read of the pages of a chunk; returns its bytes in memory. */
static size_t slot_io(struct slot *slot, struct efs_io *io, uint64_t offset, uint32_t bytes, uint8_t *memory)
{
    *io = (struct efs_io){.offset = efs_page_down(offset),
                          .bytes = bytes ? efs_page_span(offset, offset + bytes) : 0,
                          .data = memory,
                          .segment = EFS_NONE,
                          .class = EFS_IO_DEMAND,
                          .complete = slot_io_done,
                          .owner = slot};
    return io->bytes;
}

/* Reads the shard that has the next bytes of the slot's read. */
static void slot_read_next(struct slot *slot)
{
    struct efs *fs = slot->fs;
    const struct efs_uncached *read = slot->read;
    slot->piece = efs_piece_at(fs, slot->piece.object, slot->piece.at + slot->piece.bytes, read->bytes - slot->done);
    const struct efs_disk_shard *s = &fs->store->shards[slot->piece.shard];
    size_t e = slot_io(slot, &slot->e, s->e_offset, s->e_bytes, slot->slot.memory);
    size_t sm = slot_io(slot, &slot->sm, s->sm_offset, s->sm_bytes, slot->slot.memory + e);
    slot->pending = (e != 0) + (sm != 0);
    slot->e.next = sm ? &slot->sm : NULL;
    efs_io_submit(fs->io, e ? &slot->e : &slot->sm);
}

static void slot_begin(struct slot *slot, struct efs_uncached *read)
{
    slot->read = read;
    slot->done = 0;
    slot->error = 0;
    slot->piece = (struct efs_piece){.object = read->object, .at = read->begin};
    slot_read_next(slot);
}

static errint_t slot_decode(struct slot *slot, struct efs_codec_scratch *scratch)
{
    struct efs *fs = slot->fs;
    const struct efs_disk_shard *s = &fs->store->shards[slot->piece.shard];
    if (slot->error < 0) {
        efs_log(fs, EFS_LOG_ERROR, "%s: read at offset %llu failed: %s", fs->store->path,
                (unsigned long long)(slot->e.bytes ? slot->e.offset : slot->sm.offset), strerror(-slot->error));
        return slot->error;
    }
    return efs_shard_decode_from(fs, &slot->piece, s->e_bytes ? slot->e.data + s->e_offset % EFS_ALIGN : NULL,
                                 s->sm_bytes ? slot->sm.data + s->sm_offset % EFS_ALIGN : NULL,
                                 slot->read->dst + slot->done, scratch);
}

static void slot_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct slot *slot = EFS_CONTAINER(job, struct slot, job);
    struct efs *fs = slot->fs;
    struct efs_uncached *read = slot->read;
    errint_t rc = slot_decode(slot, scratch);
    slot->done += slot->piece.bytes;
    if (rc == 0 && slot->done < read->bytes) {
        slot_read_next(slot);
        return;
    }
    /* before done(), after which the store may be closed */
    struct efs_slot_waiter *next = efs_slots_put(&fs->uncached->slots, &slot->slot);
    if (next)
        slot_begin(slot, EFS_CONTAINER(next, struct efs_uncached, waiter));
    read->done(fs, read, rc);
}

void efs_uncached_read(struct efs *fs, struct efs_uncached *read)
{
    struct efs_slot *slot = efs_slots_get(&fs->uncached->slots, &read->waiter);
    if (slot)
        slot_begin(EFS_CONTAINER(slot, struct slot, slot), read);
}

static unsigned slot_count(const struct efs *fs)
{
    return fs->options.workers + 1 < SLOTS_MAX ? fs->options.workers + 1 : SLOTS_MAX;
}

uint64_t efs_uncached_bytes(const struct efs *fs)
{
    return slot_count(fs) * fs->shard_bytes_max;
}

errint_t efs_uncached_build(struct efs *fs)
{
    struct efs_uncached_slots *slots = efs_sys_calloc(1, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    fs->uncached = slots;
    for (unsigned i = 0; i < SLOTS_MAX; i++) {
        slots->slot[i].fs = fs;
        slots->slot[i].job.run = slot_run;
    }
    return efs_slots_build(&slots->slots, slots->slot, sizeof(slots->slot[0]), slot_count(fs), fs->shard_bytes_max);
}

void efs_uncached_destroy(struct efs *fs)
{
    struct efs_uncached_slots *slots = fs->uncached;
    if (!slots)
        return;
    efs_slots_destroy(&slots->slots);
    free(slots);
    fs->uncached = NULL;
}
