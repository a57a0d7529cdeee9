/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_step.c - a step forward: pack, sync, read back and compare, journal, free; and a step back, which writes
 * the bytes to the source files again. The order matters: each operation is safe only after the previous ones are on
 * disk. */
#include "reclaim.h"

#include "checks.h"
#include "hash.h"
#include "source.h"
#include "store.h"
#include "sweep.h"
#include "sys.h"
#include "expertfs-packing-private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>

/* ---- a sweep over the shards of a step ---- */

struct work {
    struct efs_reclaim *r;
    enum efs_reclaim_check check;
    const struct efs_store *store; /* the written part */
    const struct efs_reclaim_step *step;
    int *files; /* source files open for writing; -1: not open */
};

static errint_t shards_differs(const struct work *w, const struct efs_sweep_shard *shard, const char *what,
                               struct efs_error *err)
{
    const struct efs_index_origin *place = &w->r->plan.origins[shard->object];
    return efs_fail(err, -EUCLEAN, "%s/%s: offset %llu: %s", w->r->root, w->r->catalog.files[place->file].path,
                    (unsigned long long)(place->offset + shard->object_offset), what);
}

static errint_t shards_decode(const struct work *w, const struct efs_sweep_shard *shard,
                              struct efs_codec_scratch *scratch, uint8_t *decoded, struct efs_error *err)
{
    const struct efs_disk_shard *s = &w->store->shards[shard->shard];
    const struct efs_shard_view *v = &shard->view;
    errint_t rc = shard->e_error ? shard->e_error : shard->sm_error;
    if (rc < 0)
        return efs_reclaim_fail(w->r, rc, EFS_RECLAIM_STORE, "read back", err);
    if ((v->e_bytes && efs_hash(v->e, v->e_bytes) != s->e_hash) ||
        (v->sm_bytes && efs_hash(v->sm, v->sm_bytes) != s->sm_hash))
        return shards_differs(w, shard, "its chunks in the store differ from what was written when read back", err);
    if (efs_shard_decode(v, 0, v->elements, decoded, false, scratch) < 0)
        return shards_differs(w, shard, "its chunks in the store do not decode", err);
    if (efs_hash(decoded, shard->raw_bytes) != s->raw_hash)
        return shards_differs(w, shard, "its chunks in the store decode to other bytes", err);
    return 0;
}

static errint_t shards_check(void *arg, const struct efs_sweep_shard *shard, struct efs_codec_scratch *scratch,
                             uint8_t *raw, uint8_t *decoded, struct efs_error *err)
{
    const struct work *w = arg;
    const struct efs_reclaim *r = w->r;
    const struct efs_index_origin *place = &r->plan.origins[shard->object];
    size_t bytes = shard->raw_bytes;
    uint64_t offset = place->offset + shard->object_offset;
    const uint8_t *data = NULL;
    errint_t rc = w->check == EFS_RECLAIM_REFILLED ? 0 : shards_decode(w, shard, scratch, decoded, err);
    if (rc == 0 && (w->check == EFS_RECLAIM_COMPARE || w->check == EFS_RECLAIM_REFILLED))
        rc = efs_pack_source_read(r->source, place->file, offset, bytes, 0, raw, &data, err);
    if (rc < 0)
        return rc;
    if (w->check == EFS_RECLAIM_COMPARE && memcmp(decoded, data, bytes) != 0)
        return shards_differs(
            w, shard, "differs from what was stored of it: the file changed, or the memory or the disk is bad", err);
    if (w->check == EFS_RECLAIM_REFILLED && efs_hash(data, bytes) != w->store->shards[shard->shard].raw_hash)
        return shards_differs(w, shard, "differs from what was written when read back", err);
    if (w->check == EFS_RECLAIM_REFILL) {
        rc = efs_sys_pwrite_all(w->files[place->file], decoded, bytes, offset);
        if (rc < 0)
            return efs_fail(err, rc, "%s/%s: cannot write at offset %llu: %s", r->root,
                            r->catalog.files[place->file].path, (unsigned long long)offset, strerror(-rc));
    }
    return 0;
}

static bool is_written(const struct work *w, uint64_t offset, uint32_t bytes)
{
    return bytes == 0 || (offset >= EFS_ALIGN && offset <= w->step->store_end && bytes <= w->step->store_end - offset);
}

/* The journal may be damaged: checks that all chunks of the step are inside the written part of the store. */
static errint_t check_places(const struct work *w, struct efs_error *err)
{
    const struct efs_index *plan = &w->r->plan;
    for (struct efs_pack_cursor at = w->step->begin; efs_reclaim_in_step(plan, w->step, &at);
         efs_pack_cursor_step(plan, &at)) {
        const struct efs_disk_shard *s = &plan->shards[at.shard];
        if (!is_written(w, s->e_offset, s->e_bytes) || !is_written(w, s->sm_offset, s->sm_bytes) ||
            (s->checks && !is_written(w, efs_checks_offset(s), efs_checks_bytes(s))))
            return efs_fail(err, -EUCLEAN, "%s/" EFS_RECLAIM_STORE ": a chunk is not in what was written",
                            w->r->folder);
    }
    return 0;
}

/* Opens the written part of the store, in whole pages, to be read from disk: the page cache can hold data that a
 * crash would lose. */
static errint_t open_store(const struct work *w, struct efs_store *store, struct efs_error *err)
{
    const struct efs_reclaim *r = w->r;
    const struct efs_index *plan = &r->plan;
    *store = (struct efs_store){.sb.shard_elements = plan->shard_elements,
                                .groups = plan->groups,
                                .objects = plan->objects,
                                .shards = plan->shards,
                                .group_count = plan->group_count,
                                .object_count = plan->object_count,
                                .shard_count = plan->shard_count};
    struct stat st;
    store->fd = efs_sys_openat(r->dir, EFS_RECLAIM_STORE, O_RDONLY | O_NOFOLLOW, 0);
    store->direct_fd = efs_sys_openat(r->dir, EFS_RECLAIM_STORE, O_RDONLY | O_DIRECT | O_NOFOLLOW, 0);
    int rc = store->fd < 0 ? store->fd : efs_sys_fstat(store->fd, &st);
    if (rc == 0 && (uint64_t)st.st_size < efs_page_up(w->step->store_end) && (uint64_t)st.st_size >= w->step->store_end)
        rc = efs_sys_ftruncate(r->writer.file.fd, efs_page_up(w->step->store_end));
    if (rc == 0 && store->direct_fd < 0)
        efs_sys_drop_cache(store->fd, efs_page_down(w->step->store_begin),
                           w->step->store_end - w->step->store_begin + EFS_ALIGN);
    return rc < 0 ? efs_reclaim_fail(r, rc, EFS_RECLAIM_STORE, "open", err) : 0;
}

static errint_t open_files(struct work *w, struct efs_error *err)
{
    size_t count = w->r->catalog.file_count;
    w->files = efs_sys_malloc((count + 1) * sizeof(*w->files));
    if (!w->files)
        return efs_fail(err, -ENOMEM, "%s: no memory", w->r->folder);
    for (size_t f = 0; f < count; f++)
        w->files[f] = -1;
    for (uint32_t f = 0; w->check == EFS_RECLAIM_REFILL && f < count; f++) {
        if (!w->r->files[f].touched)
            continue;
        w->files[f] = efs_reclaim_open(w->r, f, O_RDWR, true, err);
        if (w->files[f] < 0)
            return w->files[f];
    }
    return 0;
}

/* Closes the files; after success, restores their times and syncs them first. */
static errint_t close_files(struct work *w, errint_t rc, struct efs_error *err)
{
    for (uint32_t f = 0; w->files && f < w->r->catalog.file_count; f++)
        if (w->files[f] >= 0 && rc == 0)
            rc = efs_reclaim_finish_file(w->r, f, w->files[f], err);
        else if (w->files[f] >= 0)
            efs_sys_close(w->files[f]);
    free(w->files);
    return rc;
}

errint_t efs_reclaim_shards(struct efs_reclaim *r, const struct efs_reclaim_step *step, enum efs_reclaim_check check,
                            struct efs_error *err)
{
    struct efs_store store;
    struct work w = {.r = r, .check = check, .store = &store, .step = step};
    const struct efs_sweep_part part = {r->plan.order,     step->begin.order, step->begin.object,
                                        step->begin.shard, step->end.order,   step->end.shard};
    const struct efs_sweep sweep = {
        .store = &store, .part = &part, .each = shards_check, .arg = &w, .threads = r->options.threads};
    efs_reclaim_mark_touched(r, step);
    errint_t rc = open_store(&w, &store, err);
    if (rc == 0)
        rc = check_places(&w, err);
    if (rc == 0)
        rc = open_files(&w, err);
    if (rc == 0)
        rc = efs_sweep_run(&sweep, err);
    rc = close_files(&w, rc, err);
    if (store.fd >= 0)
        efs_sys_close(store.fd);
    if (store.direct_fd >= 0)
        efs_sys_close(store.direct_fd);
    return rc;
}

/* ---- ranges of the sources that can be freed ---- */

#define BLOCK_MIN 4096u
#define BLOCK_MAX (1u << 20)

/* A contiguous stored range of a file, and the part of it that is not freed yet. */
struct stretch {
    uint64_t begin, end;
    uint64_t new_begin, new_end; /* equal: all is freed */
    uint32_t first, last;        /* its extents, last excluded */
};

static uint64_t round_up(uint64_t at, uint32_t block)
{
    return (at + block - 1) / block * block;
}

static uint64_t round_down(uint64_t at, uint32_t block)
{
    return at / block * block;
}

static uint32_t sane_block(uint32_t block)
{
    return block >= BLOCK_MIN && block <= BLOCK_MAX && (block & (block - 1)) == 0 ? block : BLOCK_MIN;
}

/* The next stretch of the file at or after extent `at`; false: none. */
static bool next_stretch(const struct efs_reclaim *r, uint32_t file, uint32_t at, struct stretch *s)
{
    const struct efs_index *plan = &r->plan;
    uint32_t end = plan->files[file].extent_first + plan->files[file].extent_count;
    while (at < end && r->stored[plan->extents[at].object] == 0)
        at++;
    if (at >= end)
        return false;
    *s = (struct stretch){.begin = plan->extents[at].file_offset, .first = at};
    for (bool whole = true; whole && at < end; at++) {
        const struct efs_disk_extent *x = &plan->extents[at];
        uint64_t stored = r->stored[x->object], freed = r->freed[x->object];
        if (stored == 0)
            break;
        s->end = x->file_offset + stored;
        if (stored > freed) {
            if (s->new_begin == s->new_end)
                s->new_begin = x->file_offset + freed;
            s->new_end = s->end;
        }
        whole = stored == x->bytes;
    }
    s->last = at;
    return true;
}

/* The range of a stretch to free: the whole blocks in it that contain bytes not freed yet. Returns its size and sets
 * *begin. */
static uint64_t range_of(const struct efs_reclaim *r, uint32_t file, const struct stretch *s, uint32_t block,
                         uint64_t *begin)
{
    uint64_t end = s->end == r->plan.files[file].bytes ? round_up(s->end, block) : round_down(s->end, block);
    *begin = round_up(s->begin, block);
    if (s->new_begin == s->new_end)
        return 0;
    if (*begin < round_down(s->new_begin, block))
        *begin = round_down(s->new_begin, block);
    if (end > round_up(s->new_end, block))
        end = round_up(s->new_end, block);
    return end > *begin ? end - *begin : 0;
}

/* Whether the file's start can be freed. No range of a file is freed before it, so that no reader takes the rest for
 * weights. */
static bool first_block_is_stored(const struct efs_reclaim *r, uint32_t file, uint32_t block)
{
    struct stretch s;
    uint64_t bytes = r->plan.files[file].bytes;
    return next_stretch(r, file, r->plan.files[file].extent_first, &s) && s.begin == 0 &&
           s.end >= (bytes < block ? bytes : block);
}

static void mark_freed(struct efs_reclaim *r, const struct stretch *s)
{
    for (uint32_t i = s->first; i < s->last; i++)
        r->freed[r->plan.extents[i].object] = r->stored[r->plan.extents[i].object];
}

static errint_t free_in(struct efs_reclaim *r, uint32_t file, int fd, uint32_t block, struct efs_error *err)
{
    struct stretch s;
    for (uint32_t at = r->plan.files[file].extent_first; next_stretch(r, file, at, &s); at = s.last) {
        uint64_t begin, bytes = range_of(r, file, &s, block, &begin);
        int rc = bytes ? efs_sys_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, bytes) : 0;
        if (rc < 0)
            return efs_fail(err, rc, "%s/%s: cannot free %llu bytes at offset %llu: %s", r->root,
                            r->catalog.files[file].path, (unsigned long long)bytes, (unsigned long long)begin,
                            strerror(-rc));
        mark_freed(r, &s);
    }
    return 0;
}

/* A hard link made since the start would lose the bytes, too. */
static errint_t check_and_free(struct efs_reclaim *r, uint32_t file, int fd, uint32_t block, struct efs_error *err)
{
    struct stat st;
    errint_t rc = efs_sys_fstat(fd, &st);
    if (rc < 0)
        return efs_fail(err, rc, "%s/%s: cannot stat: %s", r->root, r->catalog.files[file].path, strerror(-rc));
    rc = efs_reclaim_check_names(r, file, st.st_nlink, err);
    return rc < 0 ? rc : free_in(r, file, fd, block, err);
}

errint_t efs_reclaim_free(struct efs_reclaim *r, bool again, struct efs_error *err)
{
    uint64_t unused;
    uint32_t block = BLOCK_MIN;
    efs_sys_free_bytes(r->root_dir, &unused, &block);
    block = sane_block(block);
    for (uint32_t f = 0; f < r->plan.file_count; f++) {
        bool can_free = r->files[f].touched && first_block_is_stored(r, f, block);
        if (!can_free && !(again && r->files[f].touched))
            continue;
        int fd = efs_reclaim_open(r, f, O_WRONLY, true, err);
        if (fd < 0)
            return fd;
        errint_t rc = can_free ? check_and_free(r, f, fd, block, err) : 0;
        if (rc < 0) {
            efs_sys_close(fd);
            return rc;
        }
        rc = efs_reclaim_finish_file(r, f, fd, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

uint64_t efs_reclaim_would_free(struct efs_reclaim *r, uint32_t block)
{
    uint64_t all = 0;
    block = sane_block(block);
    for (uint32_t f = 0; f < r->plan.file_count; f++) {
        struct stretch s;
        if (!r->files[f].touched || !first_block_is_stored(r, f, block))
            continue;
        for (uint32_t at = r->plan.files[f].extent_first; next_stretch(r, f, at, &s); at = s.last) {
            uint64_t begin;
            all += range_of(r, f, &s, block, &begin);
            mark_freed(r, &s);
        }
    }
    return all;
}

/* ---- forward ---- */

#define REPORT_BYTES (256u << 10) /* upper bound of the report's size in the index */

/* Bytes of the index after the chunks, and of journal records not written yet. */
static uint64_t reserved_bytes(const struct efs_index *p)
{
    uint64_t index = p->string_bytes + p->file_count * sizeof(*p->files) + p->extent_count * sizeof(*p->extents) +
                     p->tensor_count * sizeof(*p->tensors) + p->group_count * sizeof(*p->groups) +
                     p->object_count * sizeof(*p->objects) + p->shard_count * sizeof(*p->shards);
    uint64_t journal = p->shard_count * (sizeof(*p->shards) + sizeof(double));
    return index + journal + REPORT_BYTES;
}

static bool efs_reclaim_cancelled(const struct efs_reclaim *r)
{
    return r->options.progress &&
           r->options.progress(r->options.progress_arg, r->state.done_bytes, r->plan.source_bytes, "packing");
}

errint_t efs_reclaim_free_space(const struct efs_reclaim *r, uint64_t *bytes, uint64_t *free_bytes, uint32_t *block,
                                struct efs_error *err)
{
    int rc = efs_sys_free_bytes(r->parent, free_bytes, block);
    if (rc < 0)
        return efs_fail(err, rc, "%s: cannot tell what is free on its disk: %s", r->out, strerror(-rc));
    uint64_t reserved = reserved_bytes(&r->plan);
    *bytes = *free_bytes > reserved ? *free_bytes - reserved : 0;
    return 0;
}

static errint_t step_limit(const struct efs_reclaim *r, uint64_t *limit, struct efs_error *err)
{
    struct efs_pack_cursor at = r->state.cursor;
    uint64_t room = 0, raw = 0, run = efs_reclaim_run_most(&r->plan, &at, &raw);
    uint64_t free_bytes;
    uint32_t block;
    errint_t rc = efs_reclaim_free_space(r, &room, &free_bytes, &block, err);
    if (rc == 0 && room < run + r->step_bytes) { /* some file systems release freed blocks only after a sync */
        efs_sys_syncfs(r->root_dir);
        rc = efs_reclaim_free_space(r, &room, &free_bytes, &block, err);
    }
    if (rc < 0)
        return rc;
    if (room < run)
        return efs_fail(err, -ENOSPC, "%s: the next step may need %llu MiB of disk, %llu MiB are available", r->folder,
                        (unsigned long long)(run >> 20) + 1, (unsigned long long)(room >> 20));
    uint64_t most = room - run;
    *limit = most < r->step_bytes ? most : r->step_bytes;
    *limit -= *limit / 32; /* margin for padding */
    if (*limit == 0)
        *limit = 1;
    return 0;
}

/* Checks that the step's files did not change since the start. */
static errint_t check_touched(struct efs_reclaim *r, struct efs_error *err)
{
    for (uint32_t f = 0; f < r->catalog.file_count; f++) {
        if (!r->files[f].touched)
            continue;
        int fd = efs_reclaim_open(r, f, O_RDONLY, false, err);
        if (fd < 0)
            return fd;
        efs_sys_close(fd);
    }
    return 0;
}

static errint_t journal_step(struct efs_reclaim *r, const struct efs_reclaim_step *step, struct efs_error *err)
{
    struct efs_bytes record = {0};
    errint_t rc = efs_source_grow((void **)&r->steps, r->step_count, &r->step_capacity, sizeof(*r->steps));
    if (rc < 0)
        return efs_reclaim_fail(r, rc, EFS_RECLAIM_JOURNAL, "write", err);
    efs_reclaim_put_step(r, step, &record);
    rc = efs_reclaim_journal_add(r, EFS_RECLAIM_STEP, &record, err);
    free(record.data);
    if (rc == 0) {
        r->steps[r->step_count++] = *step;
        efs_reclaim_add_stored(r, step);
    }
    return rc;
}

errint_t efs_reclaim_step_forward(struct efs_reclaim *r, struct efs_error *err)
{
    struct efs_reclaim_step step = {.begin = r->state.cursor, .store_begin = r->writer.offset};
    uint64_t limit = 0;
    errint_t rc = step_limit(r, &limit, err);
    if (rc == 0)
        rc = efs_pack_run(&r->plan, r->source, &r->writer, &r->options, &r->state, limit, err);
    if (rc == 0)
        rc = efs_store_writer_sync(&r->writer, err);
    step.end = r->state.cursor;
    step.store_end = r->writer.offset;
    if (rc == 0)
        rc = efs_reclaim_shards(r, &step, EFS_RECLAIM_COMPARE, err);
    if (rc == 0)
        rc = check_touched(r, err);
    if (rc == 0 && efs_reclaim_cancelled(r))
        rc = efs_fail(err, -ECANCELED, "interrupted");
    if (rc == 0)
        rc = journal_step(r, &step, err);
    if (rc == 0)
        rc = efs_reclaim_free(r, false, err);
    return rc;
}

/* ---- back: write to the source files, sync, read back and check; then record the undo in the journal and truncate
 * the store ---- */

errint_t efs_reclaim_step_back(struct efs_reclaim *r, struct efs_error *err)
{
    const struct efs_reclaim_step *step = &r->steps[r->step_count - 1];
    const struct efs_bytes nothing = {0};
    errint_t rc = efs_reclaim_shards(r, step, EFS_RECLAIM_REFILL, err);
    if (rc == 0)
        rc = efs_reclaim_shards(r, step, EFS_RECLAIM_REFILLED, err);
    if (rc == 0)
        rc = efs_reclaim_journal_add(r, EFS_RECLAIM_UNDONE, &nothing, err);
    if (rc < 0)
        return rc;
    for (struct efs_pack_cursor at = step->begin; efs_reclaim_in_step(&r->plan, step, &at);
         efs_pack_cursor_step(&r->plan, &at)) {
        size_t bytes = efs_reclaim_shard_bytes(&r->plan, at.object, at.shard);
        r->stored[at.object] -= bytes;
        r->state.done_bytes -= bytes;
    }
    r->step_count--;
    efs_sys_ftruncate(r->writer.file.fd, step->store_begin); /* on failure the directory's removal deletes it */
    return 0;
}
