/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim.c - efs_reclaim(), efs_reclaim_resume(), efs_reclaim_undo(): the sequence of steps, and cleanup after
 * failures. */
#include "reclaim.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "expertfs-clock-private.h"
#include "source.h"
#include "store.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

/* ---- paths --------------------------------------------------------------------------------------------------- */

static errint_t reclaim_begin(struct efs_reclaim *r, const char *out, const struct efs_pack_options *options,
                              struct efs_error *err)
{
    *r = (struct efs_reclaim){.options = *options, .parent = -1, .dir = -1, .root_dir = -1, .journal = -1};
    r->writer = (struct efs_store_writer){.dir = -1, .file = {.fd = -1}};
    r->step_bytes = options->reclaim_step_bytes ? options->reclaim_step_bytes : EFS_RECLAIM_STEP_BYTES;
    r->out = strdup(out);
    if (!r->out || asprintf(&r->folder, "%s" EFS_RECLAIM_SUFFIX, out) < 0) {
        r->folder = NULL;
        return efs_fail(err, -ENOMEM, "%s: no memory", out);
    }
    char *slash = strrchr(r->out, '/');
    r->name = slash ? slash + 1 : r->out;
    if (r->name[0] == '\0' || strcmp(r->name, ".") == 0 || strcmp(r->name, "..") == 0)
        return efs_fail(err, -EISDIR, "%s: is a directory; name the store's file", out);
    char *parent = slash ? strndup(r->out, slash == r->out ? 1 : (size_t)(slash - r->out)) : strdup(".");
    r->parent = parent ? efs_sys_open(parent, O_RDONLY | O_DIRECTORY, 0) : -ENOMEM;
    errint_t rc =
        r->parent < 0 ? efs_fail(err, r->parent, "%s: cannot open its directory: %s", out, strerror(-r->parent)) : 0;
    free(parent);
    return rc;
}

static void reclaim_end(struct efs_reclaim *r)
{
    efs_store_writer_close(&r->writer);
    efs_pack_source_close(r->source);
    if (r->has_state)
        efs_pack_state_free(&r->plan, &r->state);
    efs_index_free(&r->plan);
    efs_catalog_free(&r->catalog);
    const int fds[] = {r->journal, r->dir, r->root_dir, r->parent};
    for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            efs_sys_close(fds[i]);
    free(r->entropy_bits);
    free(r->stored);
    free(r->freed);
    free(r->files);
    free(r->steps);
    free(r->root);
    free(r->folder);
    free(r->out);
}

static const char *folder_name(const struct efs_reclaim *r)
{
    const char *slash = strrchr(r->folder, '/');
    return slash ? slash + 1 : r->folder;
}

/* Opens and locks the directory OUT.reclaim and opens its journal, if it exists. -ENOENT: no such directory. */
static errint_t open_folder(struct efs_reclaim *r, struct efs_error *err)
{
    r->dir = efs_sys_openat(r->parent, folder_name(r), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (r->dir < 0)
        return efs_fail(err, r->dir, "%s: %s", r->folder,
                        r->dir == -ENOENT ? "no interrupted --reclaim found" : strerror(-r->dir));
    int rc = efs_sys_flock(r->dir, LOCK_EX | LOCK_NB);
    if (rc < 0)
        return efs_fail(err, rc, "%s: %s", r->folder,
                        rc == -EWOULDBLOCK ? "in use by another mkexpertfs" : strerror(-rc));
    r->journal = efs_sys_openat(r->dir, EFS_RECLAIM_JOURNAL, O_RDWR | O_NOFOLLOW, 0);
    if (r->journal < 0 && r->journal != -ENOENT)
        return efs_reclaim_fail(r, r->journal, EFS_RECLAIM_JOURNAL, "open", err);
    return 0;
}

static bool store_stat(const struct efs_reclaim *r, int dir, const char *name, struct stat *st)
{
    int fd = efs_sys_openat(dir, name, O_PATH | O_NOFOLLOW, 0);
    bool there = fd >= 0 && efs_sys_fstat(fd, st) == 0;
    (void)r;
    if (fd >= 0)
        efs_sys_close(fd);
    return there;
}

/* Whether the store has its name, so that only removals are left. */
static bool is_named(const struct efs_reclaim *r)
{
    struct stat store, out;
    if (!store_stat(r, r->parent, r->name, &out))
        return false;
    return !store_stat(r, r->dir, EFS_RECLAIM_STORE, &store) ||
           (store.st_ino == out.st_ino && store.st_dev == out.st_dev);
}

/* Removes a directory whose journal has no records: nothing was freed, or everything is done. -EUCLEAN: it has a
 * store with content that has no other name. */
static errint_t clear_folder(struct efs_reclaim *r, struct efs_error *err)
{
    struct stat store = {0};
    bool there = store_stat(r, r->dir, EFS_RECLAIM_STORE, &store);
    if (there && store.st_size > 0 && store.st_nlink < 2)
        return efs_fail(err, -EUCLEAN, "%s: has a store and no journal that tells what it is", r->folder);
    return efs_reclaim_remove_folder(r, err);
}

/* ---- start --------------------------------------------------------------------------------------------------- */

/* Checks for an earlier run: removes its directory if it did nothing, else -EEXIST. */
static errint_t check_earlier(struct efs_reclaim *r, struct efs_error *err)
{
    struct stat st;
    if (store_stat(r, r->parent, r->name, &st))
        return efs_fail(err, -EEXIST, "%s: exists already; --reclaim does not replace files", r->out);
    if (!store_stat(r, r->parent, folder_name(r), &st))
        return 0;
    struct efs_reclaim earlier;
    errint_t rc = reclaim_begin(&earlier, r->out, &r->options, err);
    if (rc == 0)
        rc = open_folder(&earlier, err);
    if (rc == 0) {
        rc = earlier.journal < 0 ? -ENODATA : efs_reclaim_load(&earlier, err);
        if (rc == -ENODATA)
            rc = clear_folder(&earlier, err);
        else if (rc == 0)
            rc = efs_fail(err, -EEXIST,
                          "%s: an earlier run is not finished: --resume goes on with it, --undo goes back", r->folder);
    }
    reclaim_end(&earlier);
    return rc;
}

static errint_t make_folder(struct efs_reclaim *r, struct efs_error *err)
{
    int rc = efs_sys_mkdirat(r->parent, folder_name(r), 0777);
    if (rc == 0) {
        r->dir = efs_sys_openat(r->parent, folder_name(r), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        rc = r->dir < 0 ? r->dir : efs_sys_flock(r->dir, LOCK_EX | LOCK_NB);
    }
    if (rc < 0)
        return efs_fail(err, rc, "%s: cannot make: %s", r->folder, strerror(-rc));
    int store = efs_sys_openat(r->dir, EFS_RECLAIM_STORE, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (store < 0)
        return efs_reclaim_fail(r, store, EFS_RECLAIM_STORE, "make", err);
    efs_sys_close(store);
    r->journal = efs_sys_openat(r->dir, EFS_RECLAIM_JOURNAL, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (r->journal < 0)
        return efs_reclaim_fail(r, r->journal, EFS_RECLAIM_JOURNAL, "make", err);
    return 0;
}

/* Writes the catalogue to the journal and syncs it and both directories before any other change. */
static errint_t begin_journal(struct efs_reclaim *r, struct efs_error *err)
{
    struct efs_bytes record = {0};
    efs_reclaim_put_begin(r, &record);
    /* reserve disk space for the records of all steps, so that a full disk cannot prevent writing one; not all file
     * systems support it */
    uint64_t shards = r->plan.shard_count * (sizeof(*r->plan.shards) + sizeof(double));
    int rc = efs_sys_fallocate(r->journal, FALLOC_FL_KEEP_SIZE, 0, record.count + shards + 4 * EFS_ALIGN);
    if (rc == -ENOSPC) {
        free(record.data);
        return efs_reclaim_fail(r, rc, EFS_RECLAIM_JOURNAL, "make room for", err);
    }
    errint_t rc_journal = efs_reclaim_journal_add(r, EFS_RECLAIM_BEGIN, &record, err);
    free(record.data);
    if (rc_journal < 0)
        return rc_journal;
    rc = efs_sys_sync_directory(r->dir);
    if (rc == 0)
        rc = efs_sys_sync_directory(r->parent);
    return rc < 0 ? efs_fail(err, rc, "%s: cannot sync: %s", r->folder, strerror(-rc)) : 0;
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

static uint64_t written_end(const struct efs_reclaim *r)
{
    return r->step_count ? r->steps[r->step_count - 1].store_end : EFS_ALIGN;
}

static errint_t run_steps(struct efs_reclaim *r, struct efs_pack_report *report, struct efs_error *err)
{
    errint_t rc = 0;
    while (rc == 0 && !efs_pack_cursor_at_end(&r->plan, &r->state.cursor))
        rc = efs_reclaim_step_forward(r, err);
    /* Drop the part of the store that no step covers; but keep it if a record that covers it may be on disk. */
    if (rc < 0 && !r->journal_unsure)
        efs_sys_ftruncate(r->writer.file.fd, written_end(r));
    if (rc == 0)
        rc = efs_reclaim_name_store(r, report, err);
    if (rc == 0)
        rc = efs_reclaim_remove_sources(r, err);
    return rc == 0 ? efs_reclaim_remove_folder(r, err) : rc;
}

static errint_t open_writer(struct efs_reclaim *r, struct efs_error *err)
{
    char path[4200];
    snprintf(path, sizeof(path), "%.4000s/" EFS_RECLAIM_STORE, r->folder);
    return efs_store_writer_resume(&r->writer, r->dir, EFS_RECLAIM_STORE, path, written_end(r), err);
}

static errint_t begin_new(struct efs_reclaim *r, const char *src, const char *out,
                          const struct efs_pack_options *options, struct efs_reclaim_need *need, struct efs_error *err)
{
    errint_t rc = reclaim_begin(r, out, options, err);
    *need = (struct efs_reclaim_need){0};
    if (rc == 0)
        rc = efs_pack_check_options(options, err);
    if (rc == 0)
        rc = check_earlier(r, err);
    if (rc == 0)
        rc = efs_reclaim_prepare(r, src, need, err);
    return rc == 0 && options->weights ? efs_catalog_check(src, &r->catalog, err) : rc;
}

errint_t efs_reclaim_check_start(const char *src, const char *out, const struct efs_pack_options *options,
                                 struct efs_reclaim_need *need, struct efs_error *err)
{
    struct efs_reclaim r;
    errint_t rc = begin_new(&r, src, out, options, need, err);
    reclaim_end(&r);
    return rc;
}

errint_t efs_reclaim(const char *src, const char *out, const struct efs_pack_options *options,
                     struct efs_pack_report *report, struct efs_error *err)
{
    struct efs_reclaim r;
    struct efs_reclaim_need need;
    uint64_t began = efs_now_ns();
    *report = (struct efs_pack_report){0};
    errint_t rc = begin_new(&r, src, out, options, &need, err);
    if (rc == 0 && need.need_bytes > need.free_bytes)
        rc = efs_fail(err, -ENOSPC, "%s: may need %llu MiB of disk at a time, %llu MiB are free", out,
                      (unsigned long long)(need.need_bytes >> 20) + 1, (unsigned long long)(need.free_bytes >> 20));
    if (rc == 0) {
        rc = make_folder(&r, err);
        if (rc == 0)
            rc = begin_journal(&r, err);
        if (rc == 0)
            rc = open_writer(&r, err);
        if (rc == 0)
            rc = run_steps(&r, report, err);
        if (rc < 0 && r.dir >= 0 && r.step_count == 0 && !r.journal_unsure)
            efs_reclaim_remove_folder(&r, NULL); /* no source byte was freed */
    }
    report->seconds = 1e-9 * (double)(efs_now_ns() - began);
    reclaim_end(&r);
    return rc;
}

/* ---- resume -------------------------------------------------------------------------------------------------- */

/* Loads an interrupted run and opens its sources. src: their current path; NULL: the path in the journal. */
static errint_t open_interrupted(struct efs_reclaim *r, const char *src, const char *out,
                                 const struct efs_pack_options *options, struct efs_error *err)
{
    errint_t rc = reclaim_begin(r, out, options, err);
    if (rc == 0)
        rc = open_folder(r, err);
    if (rc < 0)
        return rc;
    if (r->journal < 0) {
        rc = clear_folder(r, err);
        return rc < 0 ? rc : efs_fail(err, -ENODATA, "%s: nothing is left to be done", out);
    }
    if (src) {
        struct efs_catalog found = {0};
        if (efs_source_walk(src, &found, NULL) == 0) /* else it may be removed: use the journal's path */
            rc = efs_absolute_path(found.root, &r->root, err);
        efs_catalog_free(&found);
    }
    if (rc == 0)
        rc = efs_reclaim_load(r, err);
    if (rc == -ENODATA && clear_folder(r, err) == 0)
        return efs_fail(err, rc, "%s: was interrupted before anything was done; begin anew with --reclaim", out);
    if (rc < 0)
        return rc;
    r->root_dir = efs_sys_open(r->root, O_RDONLY | O_DIRECTORY, 0);
    if (r->root_dir < 0 && !is_named(r))
        return efs_fail(err, r->root_dir, "%s: cannot open the source: %s", r->root, strerror(-r->root_dir));
    return 0;
}

/* An interrupted last step may have left files with a wrong modification time. Restores it before the files are
 * opened for reading, because the reader rejects a file whose time changes while it is open. */
static errint_t restore_times(struct efs_reclaim *r, struct efs_error *err)
{
    errint_t rc = 0;
    for (uint32_t f = 0; rc == 0 && f < r->catalog.file_count; f++) {
        if (!r->files[f].touched)
            continue;
        int fd = efs_reclaim_open(r, f, O_WRONLY, true, err);
        rc = fd < 0 ? fd : efs_reclaim_finish_file(r, f, fd, err);
    }
    return rc;
}

static errint_t check_interrupted(struct efs_reclaim *r, struct efs_error *err)
{
    for (size_t f = 0; f < r->catalog.file_count; f++)
        r->files[f].touched = false;
    if (r->step_count) /* the last step may have been interrupted in its files */
        efs_reclaim_mark_touched(r, &r->steps[r->step_count - 1]);
    errint_t rc = efs_reclaim_check_files(r, err);
    if (rc == 0)
        rc = efs_reclaim_check_unstored(r, err);
    if (rc == 0)
        rc = efs_reclaim_check_exclusive(r, err);
    if (rc == 0)
        rc = restore_times(r, err);
    if (rc == 0)
        rc = efs_pack_source_open(&r->catalog, &r->source, err);
    for (uint32_t o = 0; rc == 0 && o < r->plan.object_count; o++)
        efs_pack_source_skip(r->source, r->plan.origins[o].file, r->stored[o]);
    return rc == 0 ? open_writer(r, err) : rc;
}

/* Frees the ranges of the last step again, because an earlier run may have been interrupted. Earlier steps were
 * freed completely before the last one was recorded. */
static errint_t free_last_step(struct efs_reclaim *r, struct efs_error *err)
{
    if (r->step_count == 0)
        return 0;
    errint_t rc = efs_reclaim_shards(r, &r->steps[r->step_count - 1], EFS_RECLAIM_STORED, err);
    return rc == 0 ? efs_reclaim_free(r, true, err) : rc;
}

/* The store has its name: checks that it is the right one, then removes the sources. */
static errint_t finish_named(struct efs_reclaim *r, struct efs_pack_report *report, struct efs_error *err)
{
    struct efs_store *store;
    errint_t rc = efs_store_open_file(r->out, &store, err);
    if (rc < 0)
        return rc;
    efs_pack_report(&r->plan, r->entropy_bits, report);
    report->store_bytes = store->sb.store_bytes;
    if (store->sb.source_bytes != r->plan.source_bytes || store->shard_count != r->plan.shard_count)
        rc = efs_fail(err, -EEXIST, "%s: is another store; move it away", r->out);
    efs_store_close(store);
    int synced = efs_sys_sync_directory(r->parent);
    if (rc == 0 && synced < 0)
        rc = efs_fail(err, synced, "%s: cannot sync its directory: %s", r->out, strerror(-synced));
    if (rc == 0 && r->root_dir >= 0)
        rc = efs_reclaim_remove_sources(r, err);
    return rc == 0 ? efs_reclaim_remove_folder(r, err) : rc;
}

errint_t efs_reclaim_resume(const char *src, const char *out, const struct efs_pack_options *options,
                            struct efs_pack_report *report, struct efs_error *err)
{
    struct efs_reclaim r;
    uint64_t began = efs_now_ns();
    *report = (struct efs_pack_report){0};
    errint_t rc = open_interrupted(&r, src, out, options, err);
    if (rc == 0 && is_named(&r)) {
        rc = finish_named(&r, report, err);
    } else if (rc == 0) {
        rc = check_interrupted(&r, err);
        if (rc == 0)
            rc = free_last_step(&r, err);
        if (rc == 0)
            rc = run_steps(&r, report, err);
    }
    report->seconds = 1e-9 * (double)(efs_now_ns() - began);
    reclaim_end(&r);
    return rc;
}

errint_t efs_reclaim_undo(const char *src, const char *out, const struct efs_pack_options *options,
                          struct efs_error *err)
{
    struct efs_reclaim r;
    errint_t rc = open_interrupted(&r, src, out, options, err);
    if (rc == 0 && is_named(&r))
        rc = efs_fail(err, -EEXIST, "%s: is complete: --resume tidies up, `expertctl unpack` makes the files again",
                      out);
    if (rc == 0)
        rc = check_interrupted(&r, err);
    for (uint32_t o = 0; rc == 0 && o < r.plan.object_count; o++) /* so that no file stays open between reads */
        efs_pack_source_skip(r.source, r.plan.origins[o].file, r.plan.objects[o].bytes - r.stored[o]);
    while (rc == 0 && r.step_count > 0)
        if (options->progress && options->progress(options->progress_arg, r.plan.source_bytes - r.state.done_bytes,
                                                   r.plan.source_bytes, "restoring"))
            rc = efs_fail(err, -ECANCELED, "interrupted");
        else
            rc = efs_reclaim_step_back(&r, err);
    if (rc == 0)
        rc = efs_reclaim_remove_folder(&r, err);
    reclaim_end(&r);
    return rc;
}

bool efs_reclaim_unfinished(const char *out)
{
    struct efs_reclaim r;
    struct efs_pack_options options = {0};
    struct stat st;
    bool there = reclaim_begin(&r, out, &options, NULL) == 0 && store_stat(&r, r.parent, folder_name(&r), &st);
    reclaim_end(&r);
    return there;
}

/* Compares inode numbers: the file may have been moved. */
static bool is_file(const char *path, const struct efs_reclaim_file *file, dev_t device)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == file->inode && st.st_dev == device;
}

bool efs_reclaim_is_of(const char *out, const char *src)
{
    struct efs_reclaim r;
    struct efs_pack_options options = {0};
    struct stat st = {0};
    errint_t rc = reclaim_begin(&r, out, &options, NULL);
    if (rc == 0 && store_stat(&r, r.parent, folder_name(&r), &st)) /* not locked: may be in use */
        r.dir = efs_sys_openat(r.parent, folder_name(&r), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (r.dir >= 0)
        r.journal = efs_sys_openat(r.dir, EFS_RECLAIM_JOURNAL, O_RDONLY | O_NOFOLLOW, 0);
    bool is_of = false;
    if (r.journal >= 0 && efs_reclaim_load(&r, NULL) == 0)
        for (uint32_t f = 0; r.step_count && f < r.catalog.file_count && !is_of; f++) {
            char *path = NULL;
            is_of =
                is_file(src, &r.files[f], st.st_dev) ||
                (asprintf(&path, "%s/%s", src, r.catalog.files[f].path) >= 0 && is_file(path, &r.files[f], st.st_dev));
            free(path);
        }
    reclaim_end(&r);
    return is_of;
}
