/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_shards.c - a sweep over the shards of a step: their chunks are read from the disk, decoded and checked, and
 * compared with the source or written back to it. */
#include "hash.h"
#include "reclaim.h"
#include "store.h"
#include "sweep.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

void efs_reclaim_walk(const struct efs_pack_plan *plan, const struct efs_reclaim_step *step, efs_reclaim_shard_fn *each,
                      void *arg)
{
    struct efs_pack_cursor at = step->begin;
    while (!efs_pack_cursor_at_end(plan, &at) &&
           (at.order != step->end.order || at.shard != step->end.shard || at.object != step->end.object)) {
        const struct efs_disk_object *o = &plan->objects[at.object];
        each(arg, at.object, at.shard, at.shard + 1 == o->shard_first + o->shard_count);
        efs_pack_cursor_step(plan, &at);
    }
}

uint64_t efs_reclaim_run_most(const struct efs_pack_plan *plan, struct efs_pack_cursor *at, uint64_t *raw_bytes,
                              efs_reclaim_shard_fn *each, void *arg)
{
    uint64_t raw = 0, shards = 0;
    for (uint32_t order = at->order; !efs_pack_cursor_at_end(plan, at) && at->order == order; shards++) {
        size_t bytes = efs_reclaim_shard_bytes(plan, at->object, at->shard);
        if (shards > 0 && raw + bytes > EFS_RUN_BYTES)
            break;
        raw += bytes;
        if (each)
            each(arg, at->object, at->shard, false);
        efs_pack_cursor_step(plan, at);
    }
    *raw_bytes += raw;
    return efs_reclaim_coded_most(raw, shards);
}

size_t efs_reclaim_shard_bytes(const struct efs_pack_plan *plan, uint32_t object, uint32_t shard)
{
    return efs_pack_shard_elements(plan, object, shard) *
           efs_format_bytes((enum efs_format)plan->objects[object].format);
}

static void shards_touch(void *arg, uint32_t object, uint32_t shard, bool last_of_object)
{
    struct efs_reclaim *r = arg;
    (void)shard, (void)last_of_object;
    r->files[r->plan.places[object].file].touched = true;
}

void efs_reclaim_touch(struct efs_reclaim *r, const struct efs_reclaim_step *step)
{
    for (size_t f = 0; f < r->catalog.file_count; f++)
        r->files[f].touched = false;
    efs_reclaim_walk(&r->plan, step, shards_touch, r);
}

struct work {
    struct efs_reclaim *r;
    enum efs_reclaim_check check;
    const struct efs_store *store; /* what is written of it */
    const struct efs_reclaim_step *step;
    int *files; /* for writing; -1: not open */
    bool out_of_place;
};

static errint_t shards_differs(const struct work *w, const struct efs_sweep_shard *shard, const char *what,
                               struct efs_error *err)
{
    const struct efs_pack_place *place = &w->r->plan.places[shard->object];
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
    const struct efs_pack_place *place = &r->plan.places[shard->object];
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

/* What the journal says may be damaged. */
static void check_place(void *arg, uint32_t object, uint32_t shard, bool last_of_object)
{
    struct work *w = arg;
    const struct efs_disk_shard *s = &w->r->plan.shards[shard];
    (void)object, (void)last_of_object;
    w->out_of_place |= !is_written(w, s->e_offset, s->e_bytes) || !is_written(w, s->sm_offset, s->sm_bytes);
}

/* The store as far as it is written: whole pages, read from the disk and not from memory, as what the page cache holds
 * says nothing of what a crash would leave. */
static errint_t open_store(const struct work *w, struct efs_store *store, struct efs_error *err)
{
    const struct efs_reclaim *r = w->r;
    const struct efs_pack_plan *plan = &r->plan;
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

/* What was written back is on disk before anyone counts on it. */
static errint_t close_files(struct work *w, errint_t rc, struct efs_error *err)
{
    for (uint32_t f = 0; w->files && f < w->r->catalog.file_count; f++)
        if (w->files[f] >= 0 && rc == 0)
            rc = efs_reclaim_settle(w->r, f, w->files[f], err);
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
    efs_reclaim_touch(r, step);
    efs_reclaim_walk(&r->plan, step, check_place, &w);
    errint_t rc = open_store(&w, &store, err);
    if (rc == 0 && w.out_of_place)
        rc = efs_fail(err, -EUCLEAN, "%s/" EFS_RECLAIM_STORE ": a chunk is not in what was written", r->folder);
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
