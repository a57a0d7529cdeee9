/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.c - every shard decoded, checked, and written to wherever files show it. */
#include "hash.h"
#include "store.h"
#include "sweep.h"
#include "sys.h"
#include "unpack_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct unpack {
    const struct efs_store *store;
    struct efs_unpack_files *files;
    uint32_t *extent_file;              /* the file of each extent */
    uint32_t *object_first, *by_object; /* extents of object o: by_object[object_first[o] .. object_first[o + 1]) */
};

static errint_t index_extents(struct unpack *u)
{
    const struct efs_store *s = u->store;
    u->extent_file = efs_sys_calloc((size_t)s->extent_count + 1, sizeof(uint32_t));
    u->by_object = efs_sys_calloc((size_t)s->extent_count + 1, sizeof(uint32_t));
    u->object_first = efs_sys_calloc((size_t)s->object_count + 2, sizeof(uint32_t));
    if (!u->extent_file || !u->by_object || !u->object_first)
        return -ENOMEM;
    for (uint32_t f = 0; f < s->file_count; f++)
        for (uint32_t i = 0; i < s->files[f].extent_count; i++)
            u->extent_file[s->files[f].extent_first + i] = f;
    /* Counting sort; counts stand two places up, so that filling leaves the first of each object one place up. */
    for (uint32_t i = 0; i < s->extent_count; i++)
        if (s->extents[i].object + 2 <= s->object_count)
            u->object_first[s->extents[i].object + 2]++;
    for (uint32_t o = 2; o <= s->object_count; o++)
        u->object_first[o] += u->object_first[o - 1];
    for (uint32_t i = 0; i < s->extent_count; i++)
        u->by_object[u->object_first[s->extents[i].object + 1]++] = i;
    return 0;
}

static void free_index(struct unpack *u)
{
    free(u->extent_file);
    free(u->by_object);
    free(u->object_first);
}

static errint_t fail_damaged(const struct efs_store *store, const struct efs_sweep_shard *shard, struct efs_error *err)
{
    const struct efs_shard_view *v = &shard->view;
    bool sm = v->e_bytes == 0 || (shard->sm_error && !shard->e_error) ||
              (v->sm_bytes && !shard->e_error && efs_hash(v->sm, v->sm_bytes) != store->shards[shard->shard].sm_hash);
    char place[800];
    errint_t rc = shard->e_error ? shard->e_error : shard->sm_error ? shard->sm_error : -EUCLEAN;
    efs_store_name_chunk(store, shard->object, shard->shard, sm, place, sizeof(place));
    return efs_fail(err, rc, "%s: %s", place, rc == -EUCLEAN ? "damaged" : strerror(-rc));
}

static errint_t unpack_shard(void *arg, const struct efs_sweep_shard *shard, struct efs_codec_scratch *scratch,
                             uint8_t *raw, uint8_t *other, struct efs_error *err)
{
    const struct unpack *u = arg;
    const struct efs_store *store = u->store;
    (void)other;
    uint32_t first = u->object_first[shard->object];
    uint64_t begin = shard->object_offset, end = begin + shard->raw_bytes;
    if (first < u->object_first[shard->object + 1]) { /* aligned as in the file, so that it is written from here */
        const struct efs_disk_extent *x = &store->extents[u->by_object[first]];
        raw += (x->file_offset + begin - x->object_offset) % EFS_ALIGN;
    }
    if (shard->e_error || shard->sm_error ||
        efs_shard_decode(&shard->view, 0, shard->view.elements, raw, false, scratch) < 0 ||
        efs_hash(raw, shard->raw_bytes) != store->shards[shard->shard].raw_hash)
        return fail_damaged(store, shard, err);
    for (uint32_t i = first; i < u->object_first[shard->object + 1]; i++) {
        const struct efs_disk_extent *x = &store->extents[u->by_object[i]];
        uint64_t from = x->object_offset > begin ? x->object_offset : begin;
        uint64_t to = x->object_offset + x->bytes < end ? x->object_offset + x->bytes : end;
        if (from >= to)
            continue;
        errint_t rc = efs_unpack_files_write(u->files, u->extent_file[u->by_object[i]], raw + (from - begin),
                                             (size_t)(to - from), x->file_offset + (from - x->object_offset), err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

errint_t efs_store_unpack(struct efs_store *store, const char *directory, bool force, unsigned threads,
                          efs_progress_fn *progress, void *arg, struct efs_error *err)
{
    struct unpack u = {.store = store};
    errint_t rc = index_extents(&u);
    if (rc < 0)
        efs_fail(err, rc, "%s: no memory", directory);
    else
        rc = efs_unpack_files_begin(store, directory, force, &u.files, err);
    const struct efs_sweep sweep = {.store = store,
                                    .each = unpack_shard,
                                    .arg = &u,
                                    .threads = threads,
                                    .progress = progress,
                                    .progress_arg = arg,
                                    .phase = "unpacking"};
    if (rc == 0)
        rc = efs_unpack_files_empty(u.files, err);
    if (rc == 0)
        rc = efs_sweep_run(&sweep, err);
    efs_unpack_files_end(u.files, rc == 0);
    free_index(&u);
    return rc;
}
