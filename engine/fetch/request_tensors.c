/* SPDX-License-Identifier: Apache-2.0 */
/* request_tensors.c - the tensors of an expert in memory, with their names and addresses. */
#include "fetch.h"
#include "extent_internal.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Tables of one expert, sized by a first pass over its objects. */
static bool item_alloc(struct efs_request_item *item, const struct efs_expert_part *parts, uint32_t n)
{
    const struct efs *fs = item->request->fs;
    size_t names = 0, shards = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct efs_disk_object *object = &fs->store->objects[parts[i].object];
        names += fs->store->tensors[object->tensor].name_bytes + 1u;
        shards += object->shard_count;
    }
    item->tensors = efs_sys_calloc(n + 1u, sizeof(*item->tensors));
    item->names = efs_sys_calloc(1, names + 1);
    if (item->form == EFS_FORM_CODED)
        item->shards = efs_sys_calloc(shards + 1, sizeof(*item->shards));
    return item->tensors && item->names && (item->shards || item->form == EFS_FORM_FULL);
}

static void describe_shards(const struct efs *fs, uint32_t object, struct efs_coded_shard *out)
{
    const struct efs_disk_object *o = &fs->store->objects[object];
    const uint32_t *first_extent = &efs_extents(fs)->object_first[object];
    for (uint32_t x = first_extent[0]; x < first_extent[1]; x++) {
        const struct efs_extent *extent = efs_extent(fs, x);
        const struct efs_disk_shard *first = efs_extent_first_shard(fs, extent);
        for (uint32_t i = 0; i < extent->shard_count; i++) {
            const struct efs_disk_shard *s = first + i;
            *out++ =
                (struct efs_coded_shard){.e = efs_extent_e(fs, extent, s),
                                         .sm = efs_extent_sm(fs, extent, s),
                                         .e_bytes = s->e_bytes,
                                         .sm_bytes = s->sm_bytes,
                                         .elements = efs_store_shard_elements(fs->store, o, extent->shard_first + i),
                                         .codec = s->codec};
        }
    }
}

errint_t efs_item_tensors(struct efs_request_item *item)
{
    const struct efs *fs = item->request->fs;
    const struct efs_store *store = fs->store;
    uint32_t n;
    const struct efs_expert_part *parts = efs_view_expert_parts(&fs->view, item->expert, &n);
    if (!item_alloc(item, parts, n)) {
        efs_item_free_tensors(item);
        return -ENOMEM;
    }
    char *name = item->names;
    struct efs_coded_shard *shards = item->shards;
    const uint8_t *full = item->lease ? efs_lease_data(item->lease) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        const struct efs_disk_object *object = &store->objects[parts[i].object];
        const struct efs_disk_tensor *t = &store->tensors[object->tensor];
        struct efs_tensor *out = &item->tensors[i];
        size_t type_bytes;
        bool known = !efs_store_tensor_type(store, t, &type_bytes);
        memcpy(name, store->strings + t->name_offset, t->name_bytes);
        *out = (struct efs_tensor){.name = name,
                                   .dtype = known ? (enum efs_dtype)t->dtype : EFS_DTYPE_NONE,
                                   .dims = known ? (uint32_t)t->dims - t->expert_dim : 0,
                                   .bytes = object->bytes,
                                   .data = full ? full + parts[i].file_offset : NULL,
                                   .shards = shards,
                                   .shard_count = shards ? object->shard_count : 0,
                                   .shard_elements = store->sb.shard_elements};
        for (uint32_t d = 0; d < out->dims; d++)
            out->shape[d] = t->shape[d + t->expert_dim];
        name += t->name_bytes + 1u;
        if (shards) {
            describe_shards(fs, parts[i].object, shards);
            shards += object->shard_count;
        }
    }
    item->tensor_count = n;
    return 0;
}

void efs_item_free_tensors(struct efs_request_item *item)
{
    free(item->tensors);
    free(item->shards);
    free(item->names);
    item->tensors = NULL;
    item->shards = NULL;
    item->names = NULL;
}
