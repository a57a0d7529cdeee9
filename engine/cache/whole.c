/* SPDX-License-Identifier: Apache-2.0 */
/* whole.c - see whole.h. */
#include "whole.h"

#include "cache.h"
#include "full.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define RESERVE_SHARE 8u        /* 1/8 of the budget that is not fixed stays for other work, ... */
#define RESERVE_EXPERTS 16u     /* ... but room for this number of the largest experts, in full */
#define LEAST_BYTES (1u << 20)  /* smaller files are not worth a memory file */
#define CHARGE_BYTES (2u << 20) /* a huge page */

static size_t file_bytes(const struct efs *fs, uint32_t file)
{
    return (size_t)efs_page_up(efs_view_bytes(&fs->view, file));
}

static bool file_is_pinned(const struct efs_whole_file *f)
{
    return f->state != EFS_WHOLE_READY || f->opens || f->mapped || f->readers;
}

/* Adds a file to the bytes that are pinned, and open or mapped, or takes it off: around each change. */
static void file_count(struct efs *fs, const struct efs_whole_file *f, bool add)
{
    if (file_is_pinned(f))
        (add ? efs_account_charge : efs_account_release)(&fs->account, EFS_ACCOUNT_FULL_PINNED, f->charged_bytes);
    if (f->opens || f->mapped)
        fs->whole->opened_bytes += add ? f->charged_bytes : -f->charged_bytes;
}

/* Retries what waits for the memory of a file that is not pinned any more. */
static void file_released(struct efs *fs, const struct efs_whole_file *f)
{
    if (!file_is_pinned(f)) {
        efs_retry(fs, EFS_RETRY_BUDGET); /* the budget may have been reduced meanwhile */
        efs_retry(fs, EFS_RETRY_ADMIT);
    }
    if (f->state == EFS_WHOLE_DROPPED)
        efs_retry(fs, EFS_RETRY_IDLE);
}

void efs_whole_note(struct efs *fs, uint32_t file, uint64_t bytes)
{
    struct efs_whole_files *files = fs->whole;
    if (!files->ready || file >= files->count)
        return;
    struct efs_whole_file *f = &files->at[file];
    uint64_t size = efs_view_bytes(&fs->view, file), before = f->read_bytes;
    if (before == 0 || f->requests != files->requests) {
        f->requests = files->requests;
        before = 0;
    }
    f->read_bytes = before + bytes;
    if (before < size && before + bytes >= size) {
        files->wanted = true;
        efs_retry(fs, EFS_RETRY_IDLE);
    }
}

/* Memory that stays for readers and requests. */
static uint64_t files_reserve(const struct efs *fs)
{
    uint64_t fixed = efs_account_fixed(&fs->account), budget = fs->account.budget_bytes;
    uint64_t share = budget > fixed ? (budget - fixed) / RESERVE_SHARE : 0;
    uint64_t least =
        fs->whole->largest_bytes * RESERVE_EXPERTS + (fs->account.floor_segments + 1) * fs->arena.segment_bytes;
    return share > least ? share : least;
}

uint32_t efs_whole_next(struct efs *fs)
{
    struct efs_whole_files *files = fs->whole;
    uint64_t other = efs_account_fixed(&fs->account) + fs->account.bytes[EFS_ACCOUNT_CODED_PINNED] +
                     fs->full->leased_bytes + files_reserve(fs);
    if (!files->wanted || files->filling != EFS_NONE || other + files->all_bytes > fs->account.budget_bytes)
        return EFS_NONE;
    for (uint32_t i = 0; i < files->count; i++) {
        const struct efs_whole_file *f = &files->at[i];
        uint64_t size = efs_view_bytes(&fs->view, i);
        if (f->state == EFS_WHOLE_NONE && !f->failed && size >= LEAST_BYTES && f->read_bytes >= size &&
            f->requests == files->requests)
            return i;
    }
    files->wanted = false;
    return EFS_NONE;
}

void efs_whole_begin(struct efs *fs, uint32_t file)
{
    struct efs_whole_file *f = &fs->whole->at[file];
    assert(f->state == EFS_WHOLE_NONE && fs->whole->filling == EFS_NONE);
    fs->whole->filling = file;
    f->state = EFS_WHOLE_FILLING;
    fs->whole->bytes += file_bytes(fs, file);
}

uint64_t efs_whole_step(const struct efs *fs, uint32_t file, uint64_t end)
{
    uint64_t most = file_bytes(fs, file), to = (end + CHARGE_BYTES - 1) / CHARGE_BYTES * CHARGE_BYTES;
    to = to < most ? to : most;
    uint64_t charged = fs->whole->at[file].charged_bytes;
    return to > charged ? to - charged : 0;
}

void efs_whole_charge(struct efs *fs, uint32_t file, uint64_t bytes)
{
    efs_account_charge(&fs->account, EFS_ACCOUNT_FULL, bytes);
    efs_account_charge(&fs->account, EFS_ACCOUNT_FULL_PINNED, bytes);
    efs_account_add_allocated(&fs->account, bytes);
    fs->whole->at[file].charged_bytes += bytes;
}

void efs_whole_filled(struct efs *fs, uint32_t file, uint64_t end)
{
    struct efs_whole_files *files = fs->whole;
    struct efs_whole_file *f = &files->at[file];
    if (f->state != EFS_WHOLE_FILLING)
        return;
    f->filled_bytes = end;
    if (end < efs_view_bytes(&fs->view, file))
        return;
    assert(f->charged_bytes == f->memfile->bytes);
    file_count(fs, f, false);
    f->state = EFS_WHOLE_READY;
    file_count(fs, f, true);
    f->used = ++files->clock;
    files->filling = EFS_NONE;
    f->memfile->populated = true;
    efs_memfile_resize(f->memfile, end);
    efs_count(&fs->stats, gathered_files, 1);
    file_released(fs, f);
}

void efs_whole_abandon(struct efs *fs, bool failed)
{
    struct efs_whole_files *files = fs->whole;
    if (files->filling == EFS_NONE || files->at[files->filling].state != EFS_WHOLE_FILLING)
        return;
    struct efs_whole_file *f = &files->at[files->filling];
    f->state = EFS_WHOLE_DROPPED;
    f->failed = failed;
    efs_retry(fs, EFS_RETRY_IDLE);
}

void efs_whole_ended(struct efs *fs, uint32_t file)
{
    struct efs_whole_file *f = &fs->whole->at[file];
    assert(f->state == EFS_WHOLE_DROPPED && !f->readers && !f->opens);
    file_count(fs, f, false);
    efs_account_return(&fs->account, EFS_ACCOUNT_FULL, f->charged_bytes);
    *f = (struct efs_whole_file){.failed = f->failed};
    fs->whole->filling = EFS_NONE;
    fs->whole->bytes -= file_bytes(fs, file);
    efs_retry(fs, EFS_RETRY_IDLE);
    efs_retry(fs, EFS_RETRY_BUDGET);
    efs_retry(fs, EFS_RETRY_EXTENTS);
    efs_retry(fs, EFS_RETRY_ADMIT);
}

bool efs_whole_evict_oldest(struct efs *fs)
{
    struct efs_whole_files *files = fs->whole;
    struct efs_whole_file *oldest = NULL;
    for (uint32_t i = 0; files->bytes && i < files->count; i++)
        if (!file_is_pinned(&files->at[i]) && (!oldest || files->at[i].used < oldest->used))
            oldest = &files->at[i];
    if (!oldest)
        return false;
    files->bytes -= oldest->charged_bytes;
    efs_retry(fs, EFS_RETRY_IDLE);
    efs_defer_free(fs, oldest->memfile);
    *oldest = (struct efs_whole_file){0};
    efs_count(&fs->stats, evictions_files, 1);
    return true;
}

void efs_whole_yield(struct efs *fs)
{
    struct efs_whole_files *files = fs->whole;
    files->requests++;
    if (!files->bytes || efs_account_available(&fs->account) >= fs->extents->all_bytes)
        return;
    efs_whole_abandon(fs, false);
    while (efs_whole_evict_oldest(fs)) {
    }
}

bool efs_whole_will_free(const struct efs *fs)
{
    const struct efs_whole_files *files = fs->whole;
    bool will = files->filling != EFS_NONE;
    for (uint32_t i = 0; files->bytes && i < files->count && !will; i++)
        will = files->at[i].readers && !files->at[i].opens;
    return will;
}

const uint8_t *efs_whole_pin(struct efs *fs, uint32_t file, uint64_t end)
{
    struct efs_whole_files *files = fs->whole;
    const uint8_t *data = NULL;
    if (file >= files->count || !atomic_load_explicit(&files->bytes, memory_order_relaxed))
        return NULL;
    efs_lock(fs);
    struct efs_whole_file *f = &files->at[file];
    if ((f->state == EFS_WHOLE_READY || f->state == EFS_WHOLE_FILLING) && f->filled_bytes >= end) {
        file_count(fs, f, false);
        f->readers++;
        file_count(fs, f, true);
        f->used = ++files->clock;
        data = f->memfile->data;
    }
    efs_unlock(fs);
    return data;
}

void efs_whole_unpin(struct efs *fs, uint32_t file)
{
    struct efs_whole_file *f = &fs->whole->at[file];
    efs_lock(fs);
    assert(f->readers > 0);
    file_count(fs, f, false);
    f->readers--;
    file_count(fs, f, true);
    file_released(fs, f);
    efs_unlock(fs);
}

/* ---- calls of the daemon; without lock ---- */

/* Looks for mappings of an open file by other processes, without the lock. fd: its descriptor; < 0: none. */
static void file_look(struct efs *fs, struct efs_whole_file *f, int fd)
{
    efs_unlock(fs);
    bool mapped = efs_memfile_is_mapped_elsewhere(&fs->full->memfiles, f->memfile, fd);
    efs_lock(fs);
    f->mapped = mapped;
}

/* Ends an open, with the lock held; looks for mappings if it is the last. */
static void file_close(struct efs *fs, struct efs_whole_file *f)
{
    assert(f->state == EFS_WHOLE_READY && f->opens > 0);
    for (int fd; f->opens == 1 && (fd = efs_memfile_take_fd(f->memfile)) >= 0;)
        file_look(fs, f, fd); /* again, if it was opened and closed meanwhile */
    file_count(fs, f, false);
    f->opens--;
    file_count(fs, f, true);
    file_released(fs, f);
}

void efs_keep_files(struct efs *fs, efs_whole_fn *whole, void *arg)
{
    efs_lock(fs);
    fs->whole->ready = fs->full->memfiles.tmpfs >= 0 ? whole : NULL;
    fs->whole->ready_arg = arg;
    efs_unlock(fs);
}

int efs_file_open(struct efs *fs, uint32_t file)
{
    struct efs_whole_files *files = fs->whole;
    if (file >= files->count || !atomic_load_explicit(&files->bytes, memory_order_relaxed))
        return -EAGAIN;
    efs_lock(fs);
    struct efs_whole_file *f = &files->at[file];
    bool ready = f->state == EFS_WHOLE_READY && !fs->closing;
    if (ready) {
        file_count(fs, f, false);
        f->opens++;
        file_count(fs, f, true);
        f->used = ++files->clock;
    }
    efs_unlock(fs);
    if (!ready)
        return -EAGAIN;
    errint_t rc = efs_memfile_export(&fs->full->memfiles, f->memfile);
    if (rc < 0)
        efs_file_close(fs, file);
    return rc < 0 ? rc : f->memfile->fd;
}

void efs_file_close(struct efs *fs, uint32_t file)
{
    efs_lock(fs);
    file_close(fs, &fs->whole->at[file]);
    efs_unlock(fs);
}

void efs_whole_sample(struct efs *fs)
{
    struct efs_whole_files *files = fs->whole;
    for (uint32_t i = 0; atomic_load(&files->bytes) && i < files->count; i++) {
        struct efs_whole_file *f = &files->at[i];
        efs_lock(fs);
        if (f->mapped && !f->opens) {
            f->opens++;
            file_look(fs, f, -1);
            file_close(fs, f);
        }
        efs_unlock(fs);
    }
}

/* ---- */

void efs_whole_stats(const struct efs *fs, struct efs_stats *stats)
{
    const struct efs_whole_files *files = fs->whole;
    for (uint32_t i = 0; files->bytes && i < files->count; i++) {
        stats->whole_files += files->at[i].state == EFS_WHOLE_READY;
        stats->whole_bytes += files->at[i].charged_bytes;
    }
    stats->whole_open_bytes = files->opened_bytes;
}

errint_t efs_whole_build(struct efs *fs)
{
    struct efs_whole_files *files = fs->whole;
    files->fs = fs;
    files->count = fs->view.expert_first;
    files->filling = EFS_NONE;
    files->at = efs_sys_calloc(files->count + 1u, sizeof(*files->at));
    for (uint32_t i = 0; i < files->count; i++)
        files->all_bytes += efs_view_bytes(&fs->view, i) < LEAST_BYTES ? 0 : file_bytes(fs, i);
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        if (efs_memfile_bytes(fs, e) > files->largest_bytes)
            files->largest_bytes = efs_memfile_bytes(fs, e);
    return files->at ? 0 : -ENOMEM;
}

void efs_whole_destroy(struct efs *fs)
{
    struct efs_whole_files *files = fs->whole;
    if (!files->at)
        return;
    efs_lock(fs);
    for (uint32_t i = 0; i < files->count; i++) {
        const struct efs_whole_file *f = &files->at[i];
        if (file_is_pinned(f))
            efs_account_release(&fs->account, EFS_ACCOUNT_FULL_PINNED, f->charged_bytes);
        efs_account_return(&fs->account, EFS_ACCOUNT_FULL, f->charged_bytes);
        if (f->memfile)
            efs_memfile_free(f->memfile);
    }
    efs_unlock(fs);
    free(files->at);
    files->at = NULL;
}
