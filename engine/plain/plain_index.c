/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain_index.c - the index of a checkpoint that is served in place: the tables that packing without a codec would
 * write, with chunks at the places of their bytes in the files and without checksums. efs_store_check_chunk() sets a
 * chunk's checksum when it is read for the first time.
 */
#include "plain.h"

#include "index.h"
#include "sys.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS_WANTED (256u << 10)

static void place_chunks(const struct efs_plain *plain, struct efs_index *plan)
{
    for (uint32_t o = 0; o < plan->object_count; o++) {
        const struct efs_disk_object *object = &plan->objects[o];
        uint64_t at = plain->files[plan->origins[o].file].address + plan->origins[o].offset;
        for (uint32_t i = 0; i < object->shard_count; i++) {
            size_t bytes = efs_index_shard_elements(plan, o, object->shard_first + i);
            plan->shards[object->shard_first + i] =
                (struct efs_disk_shard){.codec = EFS_CODEC_NONE, .sm_offset = at, .sm_bytes = (uint32_t)bytes};
            at += bytes;
        }
    }
}

/* The report: no measurements, but the identity of each file, so that the store's content_hash, under which counts and
 * profiles are saved, differs for checkpoints of equal layout. The caller frees it. NULL: no memory. */
static char *report_json(const struct efs_plain *plain, const struct efs_catalog *catalog)
{
    json_t *files = json_array();
    for (uint32_t i = 0; i < plain->file_count; i++) {
        const struct stat *st = &plain->files[i].opened_stat;
        json_array_append_new(files, json_pack("[I, I, I]", (json_int_t)st->st_ino, (json_int_t)st->st_mtim.tv_sec,
                                               (json_int_t)st->st_mtim.tv_nsec));
    }
    json_t *root = json_pack("{s:s, s:s, s:o}", "served", "in place", "family", catalog->family ? catalog->family : "",
                             "files", files);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

static errint_t make_index(struct efs_plain *plain, const struct efs_index *plan, const char *report,
                           struct efs_error *err)
{
    struct efs_index_tables tables;
    efs_index_tables(plan, report, plain->index_address, &tables);
    plain->sb = tables.sb;
    plain->index = efs_sys_calloc(1, plain->sb.store_bytes - plain->index_address);
    if (!plain->index)
        return efs_fail(err, -ENOMEM, "%s: no memory for the index", plain->root);
    for (int t = 0; t < EFS_TABLE_COUNT; t++)
        if (tables.sb.tables[t].bytes)
            memcpy(plain->index + (tables.sb.tables[t].offset - plain->index_address), tables.data[t],
                   tables.sb.tables[t].bytes);
    return 0;
}

/* Elements (bytes) of a shard: the default up to 128 GiB, so that the index of a larger checkpoint stays small. */
static uint32_t shard_elements(const struct efs_plain *plain)
{
    uint32_t elements = EFS_SHARD_ELEMENTS_DEFAULT;
    while (elements < EFS_SHARD_ELEMENTS_MAX && plain->index_address / elements > SHARDS_WANTED)
        elements *= 2;
    return elements;
}

errint_t efs_plain_index(struct efs_plain *plain, const struct efs_catalog *catalog, struct efs_error *err)
{
    struct efs_index plan;
    char *report = report_json(plain, catalog);
    errint_t rc = efs_index_plan(&plan, catalog, EFS_CHOOSE_RAW, shard_elements(plain), err);
    if (rc == 0 && !report)
        rc = efs_fail(err, -ENOMEM, "%s: no memory for the index", plain->root);
    if (rc == 0) {
        place_chunks(plain, &plan);
        rc = make_index(plain, &plan, report, err);
    }
    efs_index_free(&plan);
    free(report);
    return rc;
}
