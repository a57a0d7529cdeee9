/* SPDX-License-Identifier: Apache-2.0 */
/* pack_verify.c - decodes the written store, before it has its name, and compares it with the source files. */
#include "hash.h"
#include "pack.h"
#include "sweep.h"
#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct compare {
    const struct efs_index *plan;
    struct efs_pack_source *source;
    const struct efs_store *store;
    const char *path;
};

/* Checks a shard: its chunks match the checksums in the index, and its decoded bytes match the source. */
static errint_t compare_shard(void *arg, const struct efs_sweep_shard *shard, struct efs_codec_scratch *scratch,
                              uint8_t *raw, uint8_t *decoded, struct efs_error *err)
{
    const struct compare *c = arg;
    const struct efs_disk_shard *s = &c->store->shards[shard->shard];
    const struct efs_index_origin *place = &c->plan->origins[shard->object];
    const struct efs_shard_view *v = &shard->view;
    uint64_t offset = place->offset + shard->object_offset;
    const char *file = c->plan->catalog->files[place->file].path;
    if (shard->e_error || shard->sm_error) {
        errint_t rc = shard->e_error ? shard->e_error : shard->sm_error;
        return efs_fail(err, rc, "%s: cannot read back: %s", c->path, strerror(-rc));
    }
    if ((v->e_bytes && efs_hash(v->e, v->e_bytes) != s->e_hash) ||
        (v->sm_bytes && efs_hash(v->sm, v->sm_bytes) != s->sm_hash))
        return efs_fail(err, -EUCLEAN, "%s: what was written for %s at offset %llu differs when read back", c->path,
                        file, (unsigned long long)offset);
    const uint8_t *data;
    errint_t rc = efs_shard_decode(v, 0, v->elements, decoded, false, scratch);
    if (rc < 0)
        efs_fail(err, rc, "%s: what was coded of %s at offset %llu does not decode", c->path, file,
                 (unsigned long long)offset);
    else
        rc = efs_pack_source_read(c->source, place->file, offset, shard->raw_bytes, shard->raw_bytes, raw, &data, err);
    if (rc == 0 && (memcmp(decoded, data, shard->raw_bytes) != 0 || efs_hash(data, shard->raw_bytes) != s->raw_hash))
        rc = efs_fail(err, -EUCLEAN,
                      "%s: decoded bytes differ from %s at offset %llu: the file changed, or the memory "
                      "or the disk is bad",
                      c->path, file, (unsigned long long)offset);
    return rc;
}

errint_t efs_pack_verify(const struct efs_index *plan, struct efs_pack_source *source,
                         const struct efs_store_writer *writer, const struct efs_pack_options *options,
                         struct efs_error *err)
{
    char self[40];
    struct efs_store *store;
    struct compare compare = {plan, source, NULL, writer->path};
    snprintf(self, sizeof(self), "/proc/self/fd/%d", writer->file.fd);
    errint_t rc = efs_store_open_file(self, &store, err);
    if (rc < 0)
        return rc;
    compare.store = store;
    efs_pack_source_rewind(source);
    const struct efs_sweep sweep = {.store = store,
                                    .each = compare_shard,
                                    .arg = &compare,
                                    .threads = options->threads,
                                    .progress = options->progress,
                                    .progress_arg = options->progress_arg,
                                    .phase = "verifying"};
    rc = efs_sweep_run(&sweep, err);
    efs_store_close(store);
    return rc;
}

/* ---- files whose inode number changed ---- */

#define SAMPLE_OBJECTS 16u /* objects sampled per file, one shard each */

static errint_t compare_source(const struct efs_index *plan, struct efs_pack_source *source, uint32_t object,
                               struct efs_error *err)
{
    const struct efs_disk_object *o = &plan->objects[object];
    const struct efs_index_origin *place = &plan->origins[object];
    size_t unit = efs_format_bytes((enum efs_format)o->format);
    uint32_t nth = object * 2654435761u % o->shard_count, shard = o->shard_first + nth;
    size_t bytes = efs_index_shard_elements(plan, object, shard) * unit;
    uint64_t offset = place->offset + (uint64_t)nth * plan->shard_elements * unit;
    const uint8_t *data;
    uint8_t *buffer = efs_sys_aligned_alloc(EFS_ALIGN, efs_pack_source_room(bytes));
    if (!buffer)
        return efs_fail(err, -ENOMEM, "no memory");
    errint_t rc = efs_pack_source_read(source, place->file, offset, bytes, 0, buffer, &data, err);
    if (rc == 0 && efs_hash(data, bytes) != plan->shards[shard].raw_hash)
        rc = efs_pack_source_changed(source, place->file, err);
    free(buffer);
    return rc;
}

errint_t efs_pack_verify_renumbered(const struct efs_index *plan, struct efs_pack_source *source, struct efs_error *err)
{
    uint32_t *objects = efs_sys_calloc(2 * ((size_t)plan->file_count + 1), sizeof(*objects));
    if (!objects)
        return efs_fail(err, -ENOMEM, "no memory");
    uint32_t *seen = objects + plan->file_count;
    errint_t rc = 0;
    for (uint32_t o = 0; o < plan->object_count; o++)
        objects[plan->origins[o].file]++;
    for (uint32_t o = 0; rc == 0 && o < plan->object_count; o++) {
        uint32_t file = plan->origins[o].file;
        if (plan->objects[o].shard_count && efs_pack_source_renumbered(source, file) &&
            seen[file]++ % (objects[file] / SAMPLE_OBJECTS + 1) == 0)
            rc = compare_source(plan, source, o, err);
    }
    free(objects);
    return rc;
}
