/* SPDX-License-Identifier: Apache-2.0 */
/* backing_store.c - the backing of an open store, by what the store is, and stores that are opened on a backing. */
#include "plain.h"
#include "queue.h"
#include "stats.h"
#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- stores on a backing: a queue reads them from the start ---- */

struct efs_store_backed {
    struct efs_stats_counters stats;
    struct efs_io_queue *queue; /* NULL: the backing was passed on */
    size_t align;
    char said[500]; /* by the I/O thread: the fault of the source that failed the last reads */
};

static void backed_said(void *arg, const char *line)
{
    struct efs_store_backed *backed = arg;
    snprintf(backed->said, sizeof(backed->said), "%s", line);
}

/* An efs_store_read_fn. The unaligned rest, such as the end of the index, is read to other memory. */
static errint_t backed_read(void *arg, uint64_t offset, void *data, size_t bytes)
{
    struct efs_store_backed *backed = arg;
    const size_t align = backed->align;
    const bool aligned = offset % align == 0 && (uintptr_t)data % align == 0;
    const size_t direct = aligned ? bytes - bytes % align : 0;
    errint_t rc = backed->queue ? efs_io_read_sync(backed->queue, offset, data, direct) : -EIO;
    if (rc < 0 || direct == bytes)
        return rc;
    const size_t skip = (size_t)((offset + direct) % align), left = bytes - direct;
    const size_t room = (skip + left + align - 1) / align * align;
    uint8_t *aside = efs_sys_aligned_alloc(align, room);
    rc = aside ? efs_io_read_sync(backed->queue, offset + direct - skip, aside, room) : -ENOMEM;
    if (rc == 0)
        memcpy((uint8_t *)data + direct, aside + skip, left);
    free(aside);
    return rc;
}

static void backed_close(struct efs_store_backed *backed)
{
    efs_io_queue_stop(backed->queue);
    efs_io_queue_free(backed->queue);
    free(backed);
}

static errint_t backed_new(const char *name, struct efs_backing *backing, struct efs_store_backed **out,
                           struct efs_error *err)
{
    struct efs_store_backed *backed = efs_sys_calloc(1, sizeof(*backed));
    if (!backed || !backing) {
        if (backing)
            backing->ops->close(backing, false);
        free(backed);
        return efs_fail(err, -ENOMEM, "%s: no memory", name);
    }
    backed->align = backing->info.align > 1 ? backing->info.align : 1;
    const struct efs_io_options options = {
        .backing = backing, .stats = &backed->stats, .say = backed_said, .arg = backed};
    errint_t rc = efs_io_queue_start(&options, &backed->queue);
    if (rc < 0) {
        free(backed);
        return efs_fail(err, rc, "%s: cannot start threads: %s", name, strerror(-rc));
    }
    *out = backed;
    return 0;
}

static void backed_attach(struct efs_store *store, struct efs_store_backed *backed)
{
    store->backed = backed;
    store->backed_close = backed_close;
    store->backed_said = backed->said;
}

errint_t efs_store_open_backing(const char *name, uint64_t bytes, const struct stat *st, struct efs_backing *backing,
                                struct efs_store **store, struct efs_error *err)
{
    struct efs_store_backed *backed = NULL;
    *store = NULL;
    errint_t rc = backed_new(name, backing, &backed, err);
    if (rc < 0)
        return rc;
    rc = efs_store_open_from(name, bytes, backed_read, backed, store, err);
    if (rc == -EIO && backed->said[0])
        efs_fail(err, rc, "%s", backed->said);
    if (rc < 0) {
        backed_close(backed);
        return rc;
    }
    backed_attach(*store, backed);
    (*store)->opened_stat = *st;
    return 0;
}

errint_t efs_store_back(struct efs_store *store, struct efs_backing *backing, struct efs_error *err)
{
    struct efs_store_backed *backed = NULL;
    errint_t rc = backed_new(store->path, backing, &backed, err);
    if (rc < 0)
        return rc;
    backed_attach(store, backed);
    efs_store_read_by(store, backed_read, backed);
    return 0;
}

/* ---- the backing of a store ---- */

static errint_t plain_check(void *arg, unsigned part)
{
    return efs_plain_check(arg, part);
}

static struct efs_backing *plain_backing(struct efs_plain *plain, bool direct, struct efs_backing_file_options *options)
{
    struct efs_backing_part *parts = efs_sys_calloc(plain->file_count, sizeof(*parts));
    if (!parts)
        return NULL;
    for (uint32_t i = 0; i < plain->file_count; i++) {
        const struct efs_plain_file *f = &plain->files[i];
        parts[i] = (struct efs_backing_part){.fd = direct && f->direct_fd >= 0 ? f->direct_fd : f->fd,
                                             .buffered_fd = f->fd,
                                             .address = f->address,
                                             .bytes = f->bytes};
    }
    options->parts = parts;
    options->part_count = plain->file_count;
    options->check = plain_check;
    options->check_arg = plain;
    struct efs_backing *backing = efs_backing_file_new(options);
    free(parts);
    return backing;
}

static struct efs_backing *backed_take(struct efs_store_backed *backed)
{
    struct efs_backing *backing = backed->queue ? efs_io_queue_end(backed->queue) : NULL;
    backed->queue = NULL;
    return backing;
}

struct efs_backing *efs_backing_of_store(const struct efs_store *store, bool direct,
                                         void (*fell_back)(void *arg, const char *what, errint_t why), void *arg)
{
    struct efs_backing_file_options options = {.fd = direct && store->direct_fd >= 0 ? store->direct_fd : store->fd,
                                               .buffered_fd = store->fd,
                                               .fell_back = fell_back,
                                               .arg = arg};
    if (store->backed)
        return backed_take(store->backed);
    return store->plain ? plain_backing(store->plain, direct, &options) : efs_backing_file_new(&options);
}
