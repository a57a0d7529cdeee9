/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_rows.c - rows of a table of a plain store, by pages: fragments (cache/fragment.h) are the cache of rows. A batch
 * takes the lock once for each EFS_LOCKED_COPY_MAX bytes of its rows, and of the pages that it reads, and wakes the I/O
 * thread once. One read for each row (slot.c) would add some ten microseconds of wake-ups.
 */
#include "fetch.h"
#include "fragment.h"
#include "stats.h"

#include "container.h"
#include "expertfs-private.h"
#include "sys.h"

#include <errno.h>
#include <semaphore.h>
#include <string.h>

struct row {
    struct efs_io io; /* of all its pages; bytes 0: all are here, and the row was copied */
    struct batch *batch;
    uint8_t *pages, *dst;
    uint64_t first; /* number of the first page in the store */
    uint32_t count, skip, shard, extent;
};

struct batch {
    _Atomic uint32_t pending;
    _Atomic errint_t error;
    sem_t done;
};

static uint32_t pages_max(size_t bytes)
{
    return (uint32_t)((bytes + EFS_ALIGN - 2) / EFS_ALIGN + 1);
}

size_t efs_rows_scratch_bytes(uint32_t count, size_t bytes)
{
    const size_t one = (size_t)pages_max(bytes) * EFS_ALIGN + sizeof(struct row);
    return bytes > EFS_ROW_BYTES_MAX || count > EFS_ROWS_MAX ? 0 : EFS_ALIGN + count * one;
}

static struct efs_fragment_key key_of(const struct row *row, uint32_t page)
{
    return (struct efs_fragment_key){row->first + page, 2 * row->shard + 1};
}

/* -EINVAL: the bytes are not within one tensor outside experts. */
static errint_t row_locate(const struct efs *fs, uint32_t file, uint64_t offset, size_t bytes, struct row *row)
{
    if (offset >= efs_view_bytes(&fs->view, file))
        return -EINVAL;
    const struct efs_file_span span = efs_file_span(fs, file, offset);
    const struct efs_view_location at = span.at;
    if (at.object == EFS_NONE || bytes > at.bytes || fs->store->objects[at.object].group < fs->store->expert_count)
        return -EINVAL;
    const uint64_t shard_bytes = fs->store->sb.shard_elements; /* elements of a plain store are bytes */
    row->shard = fs->store->objects[at.object].shard_first + (uint32_t)(at.object_offset / shard_bytes);
    row->extent = span.extent;
    const uint64_t address = fs->store->shards[row->shard].sm_offset + at.object_offset % shard_bytes;
    row->first = address / EFS_ALIGN;
    row->skip = (uint32_t)(address % EFS_ALIGN);
    row->count = (uint32_t)((row->skip + bytes + EFS_ALIGN - 1) / EFS_ALIGN);
    return 0;
}

static void row_read(struct efs_io *io, errint_t error)
{
    struct batch *batch = EFS_CONTAINER(io, struct row, io)->batch;
    if (error < 0)
        atomic_store(&batch->error, error);
    if (atomic_fetch_sub(&batch->pending, 1) == 1)
        sem_post(&batch->done);
}

/* Copies a row from fragments. false: some are not here. Lock held, also released and taken again. */
static bool row_copy(struct efs *fs, const struct row *row, size_t bytes)
{
    size_t done = 0, skip = row->skip;
    for (uint32_t page = 0; page < row->count; page++, skip = 0) {
        const size_t n = EFS_ALIGN - skip < bytes - done ? EFS_ALIGN - skip : bytes - done;
        efs_copy_begin(fs, n);
        if (!efs_fragment_get(fs, key_of(row, page), skip, n, row->dst + done))
            return false;
        done += n;
    }
    return true;
}

/* Copies the rows that are in fragments. Returns a list of the reads of the missing rows. */
static struct efs_io *look_up(struct efs *fs, struct row *rows, uint32_t count, size_t bytes, struct batch *batch)
{
    struct efs_io *first = NULL;
    efs_lock(fs);
    for (struct row *row = rows + count; row-- > rows;) {
        row->io = (struct efs_io){.offset = row->first * EFS_ALIGN,
                                  .bytes = row_copy(fs, row, bytes) ? 0 : (size_t)row->count * EFS_ALIGN,
                                  .data = row->pages,
                                  .segment = EFS_NONE,
                                  .class = EFS_IO_DEMAND,
                                  .complete = row_read,
                                  .next = first};
        row->batch = batch;
        if (row->io.bytes == 0)
            continue;
        first = &row->io;
        batch->pending++;
    }
    efs_unlock(fs);
    return first;
}

/* Keeps the pages that were read, and copies the rows from them. */
static void keep(struct efs *fs, const struct row *rows, uint32_t count, size_t bytes)
{
    efs_lock(fs);
    for (const struct row *row = rows; row < rows + count; row++)
        for (uint32_t page = 0; row->io.bytes > 0 && page < row->count; page++) {
            efs_copy_begin(fs, EFS_ALIGN);
            efs_fragment_put(fs, key_of(row, page), row->extent, row->pages + (size_t)page * EFS_ALIGN);
        }
    efs_unlock(fs);
    for (const struct row *row = rows; row < rows + count; row++)
        if (row->io.bytes > 0)
            memcpy(row->dst, row->pages + row->skip, bytes);
}

static errint_t read_all(struct efs *fs, struct row *rows, uint32_t count, size_t bytes)
{
    struct batch batch = {.pending = 0};
    if (sem_init(&batch.done, 0, 0) < 0)
        return -errno;
    struct efs_io *reads = look_up(fs, rows, count, bytes, &batch);
    const uint32_t missing = batch.pending;
    if (reads) {
        efs_io_submit(fs->io, reads);
        while (sem_wait(&batch.done) < 0)
            ;
    }
    sem_destroy(&batch.done);
    efs_count(fs->stats, reads_m, missing);
    efs_count(fs->stats, reads_c, count - missing);
    efs_count(fs->stats, reads_small, count);
    if (batch.error == 0 && missing > 0)
        keep(fs, rows, count, bytes);
    return batch.error;
}

errint_t efs_read_rows(struct efs *fs, uint32_t file, const struct efs_row *rows, uint32_t count, size_t bytes,
                       void *scratch)
{
    if (!efs_is_this_process(fs))
        return -ECHILD;
    if (!fs->store->plain || efs_rows_scratch_bytes(count, bytes) == 0)
        return -EOPNOTSUPP;
    uint8_t *pages = (uint8_t *)(((uintptr_t)scratch + EFS_ALIGN - 1) / EFS_ALIGN * EFS_ALIGN); // NOLINT
    struct row *own = (struct row *)(void *)(pages + (size_t)count * pages_max(bytes) * EFS_ALIGN);
    errint_t rc = file < fs->view.file_count ? 0 : -EBADF;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        own[i] = (struct row){.pages = pages + (size_t)i * pages_max(bytes) * EFS_ALIGN, .dst = rows[i].dst};
        rc = row_locate(fs, file, rows[i].offset, bytes, &own[i]);
    }
    if (rc < 0)
        return rc;
    efs_in_flight_begin(fs);
    efs_count(fs->stats, reads, count);
    rc = read_all(fs, own, count, bytes);
    efs_count(fs->stats, read_errors, rc < 0 ? count : 0);
    efs_count(fs->stats, read_bytes, rc < 0 ? 0 : count * bytes);
    efs_in_flight_end(fs);
    return rc;
}
