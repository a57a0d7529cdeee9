/* SPDX-License-Identifier: Apache-2.0 */
/* pack_verify.c - the written store, still without its name, decoded and compared with the files it was made from. */
#include "hash.h"
#include "pack.h"
#include "sweep.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct compare {
    const struct efs_pack_plan *plan;
    struct efs_pack_source *source;
    const struct efs_store *store;
    const char *path;
};

/* Chunk checksums are those of the index that readers will use; decoded bytes are those of the source. */
static errint_t compare_shard(void *arg, const struct efs_sweep_shard *shard, struct efs_codec_scratch *scratch,
                              uint8_t *raw, uint8_t *decoded, struct efs_error *err)
{
    const struct compare *c = arg;
    const struct efs_disk_shard *s = &c->store->shards[shard->shard];
    const struct efs_pack_place *place = &c->plan->places[shard->object];
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

errint_t efs_pack_verify(const struct efs_pack_plan *plan, struct efs_pack_source *source,
                         const struct efs_store_writer *writer, const struct efs_pack_options *options,
                         struct efs_error *err)
{
    char self[40];
    struct efs_store *store;
    struct compare compare = {plan, source, NULL, writer->path};
    snprintf(self, sizeof(self), "/proc/self/fd/%d", writer->file.fd);
    errint_t rc = efs_store_open(self, &store, err);
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
