/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_shards.c - the shards of a step, by several threads: each takes the next, reads its chunks from the disk,
 * decodes and checks them, and compares them with the source or writes them back to it. */
#include "hash.h"
#include "reclaim.h"
#include "sweep.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 64u
#define MEMORY_BYTES (192u << 20)

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

/* Where its raw bytes begin in its object. */
static uint64_t shards_offset(const struct efs_pack_plan *plan, uint32_t object, uint32_t shard)
{
    const struct efs_disk_object *o = &plan->objects[object];
    return (uint64_t)(shard - o->shard_first) * plan->shard_elements * efs_format_bytes((enum efs_format)o->format);
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

struct item {
    uint32_t object, shard;
};

struct work {
    struct efs_reclaim *r;
    enum efs_reclaim_check check;
    struct item *items;
    size_t count, capacity;
    uint64_t store_end;
    size_t raw_room, chunk_room; /* of the largest shard */
    int store;                   /* past the page cache where that can be */
    bool direct;
    int *files;           /* for writing; -1: not open */
    pthread_mutex_t lock; /* guards what follows */
    size_t next;
    errint_t rc;
    struct efs_error err;
};

struct hand {
    struct work *work;
    unsigned long id;
    bool started;
    uint8_t *e, *sm, *decoded, *raw;
    struct efs_codec_scratch *scratch;
};

static uint64_t page_down(uint64_t at)
{
    return at & ~(uint64_t)(EFS_ALIGN - 1);
}

/* From the disk, not from memory: what the page cache holds says nothing of what a crash would leave. */
static errint_t read_chunk(struct work *w, uint64_t offset, uint32_t bytes, uint8_t *buffer, const uint8_t **chunk,
                           struct efs_error *err)
{
    uint64_t begin = page_down(offset), end = page_down(offset + bytes + EFS_ALIGN - 1);
    *chunk = buffer + (offset - begin);
    if (bytes == 0)
        return 0;
    if (end - begin > w->chunk_room || offset < EFS_ALIGN || offset > w->store_end || bytes > w->store_end - offset)
        return efs_fail(err, -EUCLEAN, "%s/" EFS_RECLAIM_STORE ": a chunk at offset %llu is not in what was written",
                        w->r->folder, (unsigned long long)offset);
    if (!w->direct)
        efs_sys_drop_cache(w->store, begin, end - begin);
    int rc = 0;
    size_t need = (size_t)(offset + bytes - begin);
    for (size_t done = 0; rc == 0 && done < need;) { /* the last page may be cut short by the end of the file */
        ssize_t n = efs_sys_pread(w->store, buffer + done, (size_t)(end - begin) - done, begin + done);
        if (efs_sys_no_direct(n) && w->direct && done % EFS_ALIGN == 0)
            n = efs_sys_pread(w->r->writer.file.fd, buffer + done, (size_t)(end - begin) - done, begin + done);
        rc = n < 0 ? (int)n : n == 0 ? -EIO : 0;
        done += n > 0 ? (size_t)n : 0;
    }
    return rc < 0 ? efs_fail(err, rc, "%s/" EFS_RECLAIM_STORE ": cannot read back %u bytes at offset %llu: %s",
                             w->r->folder, bytes, (unsigned long long)offset, strerror(-rc))
                  : 0;
}

static errint_t shards_differs(const struct work *w, const struct item *item, const char *what, struct efs_error *err)
{
    const struct efs_pack_place *place = &w->r->plan.places[item->object];
    return efs_fail(err, -EUCLEAN, "%s/%s: offset %llu: %s", w->r->root, w->r->catalog.files[place->file].path,
                    (unsigned long long)(place->offset + shards_offset(&w->r->plan, item->object, item->shard)), what);
}

static errint_t shards_decode(struct hand *h, const struct item *item, size_t bytes, struct efs_error *err)
{
    struct work *w = h->work;
    const struct efs_pack_plan *plan = &w->r->plan;
    const struct efs_disk_shard *s = &plan->shards[item->shard];
    struct efs_shard_view view = {.format = (enum efs_format)plan->objects[item->object].format,
                                  .codec = s->codec,
                                  .elements = efs_pack_shard_elements(plan, item->object, item->shard),
                                  .e_bytes = s->e_bytes,
                                  .sm_bytes = s->sm_bytes};
    errint_t rc = read_chunk(w, s->e_offset, s->e_bytes, h->e, &view.e, err);
    if (rc == 0)
        rc = read_chunk(w, s->sm_offset, s->sm_bytes, h->sm, &view.sm, err);
    if (rc < 0)
        return rc;
    if ((s->e_bytes && efs_hash(view.e, s->e_bytes) != s->e_hash) ||
        (s->sm_bytes && efs_hash(view.sm, s->sm_bytes) != s->sm_hash))
        return shards_differs(w, item, "its chunks in the store differ from what was written when read back", err);
    if (efs_shard_decode(&view, 0, view.elements, h->decoded, false, h->scratch) < 0)
        return shards_differs(w, item, "its chunks in the store do not decode", err);
    if (efs_hash(h->decoded, bytes) != s->raw_hash)
        return shards_differs(w, item, "its chunks in the store decode to other bytes", err);
    return 0;
}

static errint_t work_on(struct hand *h, const struct item *item, struct efs_error *err)
{
    struct work *w = h->work;
    struct efs_reclaim *r = w->r;
    const struct efs_pack_place *place = &r->plan.places[item->object];
    size_t bytes = efs_reclaim_shard_bytes(&r->plan, item->object, item->shard);
    uint64_t offset = place->offset + shards_offset(&r->plan, item->object, item->shard);
    const uint8_t *data = NULL;
    errint_t rc = w->check == EFS_RECLAIM_REFILLED ? 0 : shards_decode(h, item, bytes, err);
    if (rc == 0 && (w->check == EFS_RECLAIM_COMPARE || w->check == EFS_RECLAIM_REFILLED))
        rc = efs_pack_source_read(r->source, place->file, offset, bytes, 0, h->raw, &data, err);
    if (rc < 0)
        return rc;
    if (w->check == EFS_RECLAIM_COMPARE && memcmp(h->decoded, data, bytes) != 0)
        return shards_differs(
            w, item, "differs from what was stored of it: the file changed, or the memory or the disk is bad", err);
    if (w->check == EFS_RECLAIM_REFILLED && efs_hash(data, bytes) != r->plan.shards[item->shard].raw_hash)
        return shards_differs(w, item, "differs from what was written when read back", err);
    if (w->check == EFS_RECLAIM_REFILL) {
        rc = efs_sys_pwrite_all(w->files[place->file], h->decoded, bytes, offset);
        if (rc < 0)
            return efs_fail(err, rc, "%s/%s: cannot write at offset %llu: %s", r->root,
                            r->catalog.files[place->file].path, (unsigned long long)offset, strerror(-rc));
    }
    return 0;
}

static bool shards_take(struct work *w, const struct item **item)
{
    pthread_mutex_lock(&w->lock);
    bool taken = w->rc == 0 && w->next < w->count;
    *item = taken ? &w->items[w->next++] : NULL;
    pthread_mutex_unlock(&w->lock);
    return taken;
}

static void *run_hand(void *arg)
{
    struct hand *h = arg;
    const struct item *item;
    struct efs_error err = {""};
    while (shards_take(h->work, &item)) {
        errint_t rc = work_on(h, item, &err);
        pthread_mutex_lock(&h->work->lock);
        if (rc < 0 && h->work->rc == 0) {
            h->work->rc = rc;
            h->work->err = err;
        }
        pthread_mutex_unlock(&h->work->lock);
    }
    return NULL;
}

static void list_shard(void *arg, uint32_t object, uint32_t shard, bool last_of_object)
{
    struct work *w = arg;
    const struct efs_disk_shard *s = &w->r->plan.shards[shard];
    (void)last_of_object;
    if (w->rc < 0)
        return;
    if (w->count == w->capacity) {
        size_t capacity = 2 * w->capacity + 64;
        struct item *grown = efs_sys_realloc(w->items, capacity * sizeof(*grown));
        if (!grown) {
            w->rc = -ENOMEM;
            return;
        }
        w->items = grown;
        w->capacity = capacity;
    }
    w->items[w->count++] = (struct item){object, shard};
    size_t raw = efs_reclaim_shard_bytes(&w->r->plan, object, shard);
    size_t chunk = s->e_bytes > s->sm_bytes ? s->e_bytes : s->sm_bytes;
    w->raw_room = raw > w->raw_room ? raw : w->raw_room;
    w->chunk_room = chunk > w->chunk_room ? chunk : w->chunk_room;
}

static bool get_hand_ready(struct hand *h, struct work *w)
{
    h->work = w;
    h->e = efs_sys_aligned_alloc(EFS_ALIGN, w->chunk_room);
    h->sm = efs_sys_aligned_alloc(EFS_ALIGN, w->chunk_room);
    h->decoded = efs_sys_aligned_alloc(EFS_ALIGN, w->raw_room);
    h->raw = efs_sys_aligned_alloc(EFS_ALIGN, w->raw_room);
    return h->e && h->sm && h->decoded && h->raw && efs_codec_scratch_new(w->r->plan.shard_elements, &h->scratch) == 0;
}

static void free_hand(struct hand *h)
{
    efs_codec_scratch_free(h->scratch);
    free(h->e);
    free(h->sm);
    free(h->decoded);
    free(h->raw);
}

static errint_t run_all(struct work *w)
{
    unsigned count = w->r->options.threads ? w->r->options.threads : efs_cores() + 1;
    size_t each = 2 * (w->chunk_room + w->raw_room) + efs_codec_scratch_bytes(w->r->plan.shard_elements);
    if (count > THREADS_MAX)
        count = THREADS_MAX;
    if (count > MEMORY_BYTES / each)
        count = MEMORY_BYTES / each > 1 ? (unsigned)(MEMORY_BYTES / each) : 1;
    struct hand *hands = efs_sys_calloc(count, sizeof(*hands));
    bool ready = hands != NULL;
    for (unsigned i = 0; ready && i < count; i++)
        ready = get_hand_ready(&hands[i], w);
    for (unsigned i = 1; ready && i < count; i++) /* fewer will do */
        hands[i].started = efs_thread_start(run_hand, &hands[i], "efs-reclaim", &hands[i].id) == 0;
    if (ready)
        run_hand(&hands[0]);
    for (unsigned i = 0; hands && i < count; i++) {
        if (hands[i].started)
            pthread_join(hands[i].id, NULL);
        free_hand(&hands[i]);
    }
    free(hands);
    return ready ? w->rc : efs_fail(&w->err, -ENOMEM, "%s: no memory to check what was written", w->r->folder);
}

static errint_t open_store(struct work *w, struct efs_error *err)
{
    w->store = efs_sys_openat(w->r->dir, EFS_RECLAIM_STORE, O_RDONLY | O_DIRECT | O_NOFOLLOW, 0);
    w->direct = w->store >= 0;
    if (!w->direct)
        w->store = efs_sys_openat(w->r->dir, EFS_RECLAIM_STORE, O_RDONLY | O_NOFOLLOW, 0);
    return w->store < 0 ? efs_reclaim_fail(w->r, w->store, EFS_RECLAIM_STORE, "open", err) : 0;
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
    struct work w = {.r = r, .check = check, .store = -1, .store_end = step->store_end};
    pthread_mutex_init(&w.lock, NULL);
    efs_reclaim_touch(r, step);
    efs_reclaim_walk(&r->plan, step, list_shard, &w);
    w.chunk_room = page_down(w.chunk_room + 2 * (size_t)EFS_ALIGN);
    w.raw_room = efs_pack_source_room(w.raw_room);
    errint_t rc = w.rc < 0 ? efs_fail(err, w.rc, "%s: no memory", r->folder) : open_store(&w, err);
    if (rc == 0)
        rc = open_files(&w, err);
    if (rc == 0 && (rc = run_all(&w)) < 0)
        efs_fail(err, rc, "%s", w.err.text);
    rc = close_files(&w, rc, err);
    if (w.store >= 0)
        efs_sys_close(w.store);
    free(w.items);
    pthread_mutex_destroy(&w.lock);
    return rc;
}
