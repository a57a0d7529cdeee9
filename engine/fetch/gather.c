/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.c - gathers checkpoint files in memory files, for stores whose files fit into the budget: the kernel then
 * reads and maps them without the daemon, as it does with files in its page cache.
 *
 * A file is gathered after its readers have read it once, so that most of its extents are in memory. A job of low
 * priority decodes one extent, which checks it as for any reader, and drops the extent: the file and the extents that
 * are left take no more than the file and one extent. It pauses while a reader waits for the disk. When other work
 * waits for memory, or the budget is reduced, the memory file is freed.
 */
#include "fetch.h"

#include "budget.h"
#include "container.h"
#include "whole.h"

#include <errno.h>
#include <string.h>

struct efs_file_span efs_file_span(const struct efs *fs, uint32_t file, uint64_t offset)
{
    struct efs_file_span span = {.extent = EFS_NONE};
    efs_view_locate(&fs->view, file, offset, &span.at);
    span.bytes = span.at.bytes;
    if (span.at.object != EFS_NONE) {
        uint64_t end;
        span.extent = efs_extent_at(fs, span.at.object, span.at.object_offset, &end);
        span.bytes = end - span.at.object_offset < span.bytes ? end - span.at.object_offset : span.bytes;
    }
    return span;
}

/* The end of the bytes of the file from offset `at` on that are in this extent: it may have several objects. */
static uint64_t extent_end(const struct efs *fs, uint32_t file, uint64_t at, uint32_t extent)
{
    const uint64_t size = efs_view_bytes(&fs->view, file);
    for (struct efs_file_span span; at < size && (span = efs_file_span(fs, file, at)).extent == extent;)
        at += span.bytes;
    return at;
}

static bool others_wait(const struct efs *fs)
{
    return fs->items_waiting > 0 || efs_extents_wait(fs);
}

/* Whether a reader waits for the disk. */
static bool disk_is_needed(const struct efs *fs)
{
    const struct efs_extents *extents = efs_extents(fs);
    return efs_extents_wait(fs) || extents->loads[EFS_LOAD_DEMAND] + extents->loads[EFS_LOAD_READAHEAD] > 0;
}

/* With lock held: the next job, or the end of this one. */
static void gather_unlock(struct efs *fs, bool again)
{
    fs->whole->busy = again && !fs->closing;
    if (fs->whole->busy)
        efs_defer_job(fs, &fs->whole->job, EFS_JOB_LOW);
    bool ended = !fs->whole->busy;
    efs_unlock(fs);
    if (ended)
        efs_in_flight_end(fs);
}

/* Frees the memory file of a DROPPED file, which no reader uses. */
static void gather_end(struct efs *fs, struct efs_whole_file *f)
{
    uint32_t file = (uint32_t)(f - fs->whole->at);
    if (f->memfile)
        efs_memfile_free(f->memfile);
    efs_lock(fs);
    efs_whole_ended(fs, file);
    gather_unlock(fs, false);
}

/* The extent is referenced: decodes all bytes of the file in it that follow, then drops it. */
static void gather_decode(struct efs *fs, uint32_t file, struct efs_codec_scratch *scratch)
{
    struct efs_whole_file *f = &fs->whole->at[file];
    const uint32_t extent = fs->whole->waiter.extent;
    uint64_t at = f->filled_bytes, end = extent_end(fs, file, at, extent);
    errint_t rc = 0;
    while (rc == 0 && at < end) {
        const struct efs_file_span span = efs_file_span(fs, file, at);
        rc = efs_extent_decode(fs, extent, span.at.object, span.at.object_offset, (size_t)span.bytes,
                               f->memfile->data + at, false, scratch);
        at += span.bytes;
    }
    efs_lock(fs);
    if (rc == 0)
        efs_extent_discard(fs, extent);
    efs_extent_unref(fs, &fs->whole->waiter, false);
    if (rc == 0)
        efs_whole_filled(fs, file, at);
    else
        efs_whole_abandon(fs, true);
    if (f->state != EFS_WHOLE_READY) {
        gather_unlock(fs, f->state == EFS_WHOLE_DROPPED || !disk_is_needed(fs));
        return;
    }
    efs_unlock(fs);
    fs->whole->ready(fs->whole->ready_arg, file);
    efs_lock(fs);
    efs_retry(fs, EFS_RETRY_IDLE); /* the next file */
    gather_unlock(fs, false);
}

static void gather_loaded(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_whole_files *files = EFS_CONTAINER(job, struct efs_whole_files, waiter.job);
    struct efs *fs = files->fs;
    errint_t error = files->waiter.error;
    if (error == 0) {
        gather_decode(fs, files->filling, scratch);
        return;
    }
    efs_lock(fs);
    efs_whole_abandon(fs, error != -ENOMEM && error != -ECANCELED);
    gather_unlock(fs, true);
}

/* With lock held: charges memory for the bytes in the next extent. *from, *bytes: it has no pages yet. -EAGAIN: later;
 * -ENOMEM. */
static errint_t gather_charge(struct efs *fs, uint32_t file, uint64_t *from, uint64_t *bytes)
{
    struct efs_whole_files *files = fs->whole;
    struct efs_whole_file *f = &files->at[file];
    const uint32_t extent = efs_file_span(fs, file, f->filled_bytes).extent;
    *from = f->charged_bytes;
    *bytes = efs_whole_step(fs, file, extent_end(fs, file, f->filled_bytes, extent));
    errint_t rc = *bytes ? efs_budget_reserve_file(fs, *bytes) : 0;
    if (rc < 0)
        return rc;
    efs_whole_charge(fs, file, *bytes);
    return 0;
}

static errint_t gather_open(struct efs *fs, uint32_t file)
{
    struct efs_whole_file *f = &fs->whole->at[file];
    if (!f->memfile)
        f->memfile = efs_memfile_new(efs_full_memfiles(fs), (size_t)efs_page_up(efs_view_bytes(&fs->view, file)));
    return f->memfile && f->memfile->name ? 0 : -ENOMEM;
}

static void gather_step(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_whole_files *files = EFS_CONTAINER(job, struct efs_whole_files, job);
    struct efs *fs = files->fs;
    const uint32_t file = files->filling; /* changes only at the end of this job */
    struct efs_whole_file *f = &files->at[file];
    uint64_t from = 0, bytes = 0;
    errint_t rc = gather_open(fs, file);
    efs_lock(fs);
    if (rc == 0 && others_wait(fs))
        rc = -ENOMEM;
    if (f->state == EFS_WHOLE_FILLING && rc == 0 && !fs->closing)
        rc = gather_charge(fs, file, &from, &bytes);
    if (rc == -ENOMEM)
        efs_whole_abandon(fs, false);
    if (fs->closing || rc == -EAGAIN || (f->state == EFS_WHOLE_DROPPED && f->readers)) {
        gather_unlock(fs, false);
        return;
    }
    bool dropped = f->state == EFS_WHOLE_DROPPED;
    efs_unlock(fs);
    if (dropped) {
        gather_end(fs, f);
        return;
    }
    rc = bytes ? efs_memfile_reserve_range(f->memfile, from, (size_t)bytes) : 0;
    efs_lock(fs);
    if (rc < 0 || f->state != EFS_WHOLE_FILLING) {
        efs_whole_abandon(fs, false);
        gather_unlock(fs, true);
        return;
    }
    const uint32_t extent = efs_file_span(fs, file, f->filled_bytes).extent;
    files->waiter.job.run = gather_loaded;
    bool loaded = efs_extent_request(fs, extent, EFS_PACE_SCAN, &files->waiter);
    efs_unlock(fs);
    if (loaded)
        gather_decode(fs, file, scratch);
}

void efs_gather_run(struct efs *fs)
{
    struct efs_whole_files *files = fs->whole;
    if (fs->account.files_bytes != fs->whole->bytes)
        efs_budget_cut(fs);
    if (files->busy || fs->closing || !(files->wanted || files->filling != EFS_NONE))
        return;
    if (files->filling == EFS_NONE) {
        uint32_t file = !disk_is_needed(fs) && !others_wait(fs) ? efs_whole_next(fs) : EFS_NONE;
        if (file == EFS_NONE)
            return;
        efs_whole_begin(fs, file);
        efs_budget_cut(fs);
    }
    if (others_wait(fs))
        efs_whole_abandon(fs, false);
    const struct efs_whole_file *f = &files->at[files->filling];
    if (f->state == EFS_WHOLE_DROPPED ? f->readers > 0 : disk_is_needed(fs))
        return;
    files->busy = true;
    files->job.run = gather_step;
    efs_in_flight_begin(fs);
    efs_defer_job(fs, &files->job, EFS_JOB_LOW);
}

bool efs_gather_read(struct efs *fs, uint32_t file, uint64_t offset, void *dst, size_t len, efs_done_fn *done,
                     void *arg)
{
    const uint8_t *data = efs_whole_pin(fs, file, offset + len);
    if (!data)
        return false;
    memcpy(dst, data + offset, len);
    efs_whole_unpin(fs, file);
    efs_count(&fs->stats, reads_f, 1);
    efs_count(&fs->stats, read_bytes, len);
    done(arg, 0, len);
    return true;
}
