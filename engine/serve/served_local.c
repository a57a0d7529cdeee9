/* SPDX-License-Identifier: Apache-2.0 */
/*
 * served_local.c - the local copy of a served store (local/local.h): which files of its source are copied, by what they
 * are identified, and what is kept. Without it the store is served all the same: a folder that cannot be used is one
 * warning.
 */
#include "served_local.h"

#include "cache.h"
#include "container.h"
#include "hash.h"
#include "local.h"
#include "plain.h"
#include "queue.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_BYTES (1u << 20) /* smaller files of a checkpoint in place have no copy */

static void set_source(struct efs_local_file *f, int fd, const struct stat *st)
{
    f->device = fd >= 0 ? st->st_dev : 0;
    f->inode = fd >= 0 ? st->st_ino : 0;
}

/* A packed store is identified by its content. */
static void describe_store(const struct efs_store *store, struct efs_local_file *f)
{
    const unsigned long long hash = store->sb.content_hash;
    *f = (struct efs_local_file){.bytes = store->sb.store_bytes};
    set_source(f, store->fd, &store->opened_stat);
    snprintf(f->name, sizeof(f->name), "%016llx", hash);
    snprintf(f->identity, sizeof(f->identity), "store %016llx", hash);
}

/* A file in place: by path, inode, size and times; any write changes the change time (changes_are_seen()). Not by
 * device: NFS has another number after each mount. On a server the inode is a hash of the ETag (remote_plain.c),
 * without times. */
static void describe_file(const struct efs_store *store, const struct efs_plain_file *plain, struct efs_local_file *f)
{
    const struct stat *st = &plain->opened_stat;
    const uint64_t names[2] = {efs_hash(store->path, strlen(store->path)), efs_hash(plain->path, strlen(plain->path))};
    *f = (struct efs_local_file){.address = plain->address, .bytes = plain->bytes};
    set_source(f, plain->fd, st);
    int n = snprintf(f->identity, sizeof(f->identity), "file %016llx, inode %llu, %llu bytes, modified %lld.%09ld",
                     (unsigned long long)efs_hash(names, sizeof(names)), (unsigned long long)st->st_ino,
                     (unsigned long long)plain->bytes, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
    if (plain->fd >= 0)
        snprintf(f->identity + n, sizeof(f->identity) - (size_t)n, ", changed %lld.%09ld",
                 (long long)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
    snprintf(f->name, sizeof(f->name), "%016llx", (unsigned long long)efs_hash(f->identity, strlen(f->identity)));
}

/* Whether a file of a checkpoint in place that is written to gets another identity: else no copy of it may be kept. */
static bool changes_are_seen(const struct efs_plain *plain)
{
    bool seen = true;
    for (uint32_t i = 0; plain && i < plain->file_count; i++)
        seen &= plain->files[i].bytes < SMALL_BYTES || plain->files[i].fd < 0 ||
                efs_sys_has_change_time(plain->files[i].fd);
    return seen;
}

/* The files that are copied; the caller frees them. NULL: no memory. */
static struct efs_local_file *describe(const struct efs_store *store, unsigned *count)
{
    const struct efs_plain *plain = store->plain;
    struct efs_local_file *files = efs_sys_calloc(plain ? plain->file_count + 1 : 1, sizeof(*files));
    *count = 0;
    if (files && !plain)
        describe_store(store, &files[(*count)++]);
    for (uint32_t i = 0; files && plain && i < plain->file_count; i++)
        if (plain->files[i].bytes >= SMALL_BYTES)
            describe_file(store, &plain->files[i], &files[(*count)++]);
    return files;
}

/* With the tables of another policy (cache.h). */
uint64_t efs_served_local_bytes(const struct efs *fs)
{
    struct efs_local_options options = {.units = fs->store->expert_count};
    struct efs_local_file *files =
        fs->options.local && changes_are_seen(fs->store->plain) ? describe(fs->store, &options.file_count) : NULL;
    options.files = files;
    uint64_t bytes = files ? efs_local_memory_bytes(&options) + EFS_BACKING_LOCAL_THREADS * EFS_STACK_TOUCHED_BYTES +
                                 efs_cache_bytes(fs->store)
                           : 0;
    free(files);
    return bytes;
}

/* Experts are units; all else stays. A store without known experts is kept by last use, except its tables. */
static void mark(struct efs *fs)
{
    const struct efs_store *s = fs->store;
    efs_local_mark(fs->local, 0, s->plain ? 0 : sizeof(s->sb), EFS_LOCAL_TABLES);
    for (unsigned t = 0; !s->plain && t < EFS_TABLE_PLACES; t++)
        efs_local_mark(fs->local, s->sb.tables[t].offset, s->sb.tables[t].bytes, EFS_LOCAL_TABLES);
    for (uint32_t g = 0; s->expert_count > 0 && g < s->group_count; g++) {
        const uint32_t unit = g < s->expert_count ? g : EFS_LOCAL_STAYS;
        const struct efs_disk_object *first = &s->objects[s->groups[g].object_first];
        for (const struct efs_disk_object *o = first; o < first + s->groups[g].object_count; o++)
            for (const struct efs_disk_shard *d = &s->shards[o->shard_first];
                 d < &s->shards[o->shard_first + o->shard_count]; d++) {
                efs_local_mark(fs->local, d->e_offset, d->e_bytes, unit);
                efs_local_mark(fs->local, d->sm_offset, d->sm_bytes, unit);
            }
    }
}

static bool rank(void *arg, double *worth)
{
    struct efs *fs = arg;
    pthread_mutex_lock(&fs->lock); /* efs_unlock() would retry waiters, also after the I/O thread has ended */
    bool ranked = efs_cache_local_worth(fs, worth);
    pthread_mutex_unlock(&fs->lock);
    return ranked;
}

/* ---- filling ---- */

struct fill_read {
    struct efs_io io;
    struct efs_local *local;
};

static void fill_ended(struct efs_io *io, errint_t error)
{
    struct fill_read *r = EFS_CONTAINER(io, struct fill_read, io);
    efs_local_filled(r->local, error);
    free(r);
}

static errint_t fill_read(void *arg, uint64_t address, void *data, size_t bytes)
{
    struct efs *fs = arg;
    struct fill_read *r = efs_sys_calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->local = fs->local;
    r->io = (struct efs_io){.offset = address,
                            .bytes = bytes,
                            .data = data,
                            .segment = EFS_NONE,
                            .class = EFS_IO_IDLE,
                            .complete = fill_ended};
    efs_io_submit(fs->io, &r->io);
    return 0;
}

/* ---- opening ---- */

static void warn(void *arg, const char *line)
{
    efs_log(arg, EFS_LOG_WARNING, "%s", line);
}

void efs_served_local_open(struct efs *fs)
{
    struct efs_error *err = &fs->local_error;
    struct efs_local_options options = {.folder = fs->options.local,
                                        .size_bytes = fs->options.local_bytes,
                                        .stats = fs->stats,
                                        .warn = warn,
                                        .units = fs->store->expert_count,
                                        .rank = rank,
                                        .read = fill_read,
                                        .arg = fs};
    if (!fs->options.local)
        return;
    struct efs_local_file *files = describe(fs->store, &options.file_count);
    options.files = files;
    errint_t rc = files ? 0 : -ENOMEM;
    if (!changes_are_seen(fs->store->plain))
        rc = efs_fail(err, -EOPNOTSUPP,
                      "%s: its file system does not record each change, so that a local copy may be of older bytes\n"
                      "hint: pack it: mkexpertfs %s STORE",
                      fs->store->path, fs->store->path);
    rc = rc < 0 ? rc : efs_local_open(&options, &fs->local, err);
    free(files);
    if (rc == 0) {
        mark(fs);
        return;
    }
    if (!err->text[0])
        efs_fail(err, rc, "%s: cannot open the local copy: %s", fs->options.local, strerror(-rc));
    efs_log(fs, EFS_LOG_WARNING, "%s\nhint: the store is served without a local copy", err->text);
    fs->fill_local = false;
}

void efs_served_local_start(struct efs *fs)
{
    char line[500];
    if (!fs->local)
        return;
    const errint_t rc = efs_local_start(fs->local);
    efs_local_refused(fs->local, line, sizeof(line));
    if (*line)
        efs_log(fs, rc < 0 ? EFS_LOG_WARNING : EFS_LOG_INFO, "%s", line);
    if (rc == 0)
        efs_local_fill(fs->local, fs->fill_local ? EFS_LOCAL_FILL_ALL : EFS_LOCAL_FILL_TABLES);
}

/* ---- what is wrong ---- */

void efs_served_local_fault(struct efs *fs, char *line, size_t room)
{
    snprintf(line, room, "%s", fs->local_error.text);
    line[strcspn(line, "\n")] = '\0'; /* without its hint */
    if (fs->local)
        efs_local_fault(fs->local, line, room);
    efs_make_printable(line, false); /* DIR may have any bytes */
}

errint_t efs_served_local_describe(struct efs *fs, char **text, size_t *bytes)
{
    char line[500];
    efs_served_local_fault(fs, line, sizeof(line));
    int n = asprintf(text, "local_open: %s\nlocal_fault: %s\n", fs->local ? "yes" : "no", *line ? line : "-");
    *bytes = n < 0 ? 0 : (size_t)n;
    return n < 0 ? -ENOMEM : 0;
}
