/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_memory.c - where the experts of a request are in memory. For this process: tensors. For other processes: the
 * window of a full expert; the windows, offsets and layout of a coded one's extents. Without lock: held experts do not
 * move.
 */
#include "fetch.h"

#include "extent.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

/* Bytes of the expert's tensors, of its shards if it is coded, and of all names, in one allocation. NULL: no memory. */
static struct efs_tensor *tensors_new(const struct efs_request_item *item, const struct efs_expert_part *parts,
                                      uint32_t n, struct efs_coded_shard **shards, char **names)
{
    const struct efs_store *store = item->request->fs->store;
    size_t name_bytes = 0, shard_count = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct efs_disk_object *object = &store->objects[parts[i].object];
        name_bytes += store->tensors[object->tensor].name_bytes + 1u;
        shard_count += item->form == EFS_FORM_CODED ? object->shard_count : 0;
    }
    struct efs_tensor *all = efs_sys_calloc(1, (n + 1u) * sizeof(*all) + shard_count * sizeof(**shards) + name_bytes);
    if (all) {
        *shards = (struct efs_coded_shard *)(void *)&all[n + 1u];
        *names = (char *)(*shards + shard_count);
    }
    return all;
}

static void describe_shards(const struct efs_request_item *item, struct efs_coded_shard *out)
{
    const struct efs *fs = item->request->fs;
    for (uint32_t i = 0; i < item->part_count; i++) {
        const struct efs_extent *x = efs_extent(fs, item->parts[i].waiter.extent);
        const struct efs_disk_object *object = &fs->store->objects[x->object];
        const struct efs_disk_shard *s = efs_extent_first_shard(fs, x);
        for (uint32_t n = 0; n < x->shard_count; n++, s++)
            *out++ =
                (struct efs_coded_shard){.e = efs_extent_e(fs, x, s),
                                         .sm = efs_extent_sm(fs, x, s),
                                         .e_bytes = s->e_bytes,
                                         .sm_bytes = s->sm_bytes,
                                         .elements = efs_store_shard_elements(fs->store, object, x->shard_first + n),
                                         .codec = s->codec};
    }
}

errint_t efs_item_tensors(struct efs_request_item *item)
{
    const struct efs *fs = item->request->fs;
    const struct efs_store *store = fs->store;
    uint32_t n;
    const struct efs_expert_part *parts = efs_view_expert_parts(&fs->view, item->expert, &n);
    struct efs_coded_shard *shards;
    char *name;
    const bool coded = item->form == EFS_FORM_CODED;
    const uint8_t *full = coded ? NULL : efs_full_of(fs, item->expert)->memfile->data;
    item->tensors = tensors_new(item, parts, n, &shards, &name);
    if (!item->tensors)
        return -ENOMEM;
    if (coded)
        describe_shards(item, shards);
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
                                   .shards = coded ? shards : NULL,
                                   .shard_count = coded ? object->shard_count : 0,
                                   .shard_elements = store->sb.shard_elements};
        for (uint32_t d = 0; d < out->dims; d++)
            out->shape[d] = t->shape[d + t->expert_dim];
        name += t->name_bytes + 1u;
        shards += out->shard_count;
    }
    item->tensor_count = n;
    return 0;
}

/* ---- windows ---- */

errint_t efs_lease_window(const struct efs_lease *lease, bool open, struct efs_window *window)
{
    struct efs_memfile *memfile = efs_lease_memfile(lease);
    errint_t rc = efs_memfile_make_window(efs_full_memfiles(lease->fs), memfile);
    const bool exported = memfile->kind == EFS_MEMFILE_EXPORTED;
    *window = (struct efs_window){.number = memfile->file.number,
                                  .once = exported,
                                  .fd = rc == 0 && open ? efs_memfile_open_window(memfile) : -1,
                                  .bytes = exported ? memfile->file_bytes : memfile->bytes,
                                  .file_bytes = efs_view_expert_bytes(&lease->fs->view, lease->expert)};
    return rc == 0 && open && window->fd < 0 ? window->fd : rc;
}

enum efs_form efs_request_form(const struct efs_client_request *request, uint32_t index)
{
    return efs_request_of(request)->items[index].form;
}

static const struct efs_lease *item_lease(const struct efs_client_request *request, uint32_t index)
{
    const struct efs_request *r = efs_request_of(request);
    return &r->fs->leases->at[r->items[index].expert];
}

errint_t efs_request_window(const struct efs_client_request *request, uint32_t index, struct efs_window *window)
{
    return efs_lease_window(item_lease(request, index), false, window);
}

/* Sets the window of a block and the offset in it; leaves those of an empty block. false: the block's segment has no
 * window. */
static bool block_place(const struct efs *fs, const struct efs_block *block, uint32_t *window, uint64_t *offset)
{
    if (!block->data)
        return true;
    const struct efs_segment *segment = &fs->arena.segments[block->segment];
    *window = segment->file.number;
    *offset = (uint64_t)(block->data - segment->base);
    return segment->file.number != 0;
}

errint_t efs_request_places(const struct efs_client_request *request, uint32_t index, struct efs_export_place **places,
                            uint32_t *count)
{
    const struct efs *fs = efs_request_of(request)->fs;
    const struct efs_request_item *item = &efs_request_of(request)->items[index];
    struct efs_export_place *all = efs_sys_calloc(item->part_count + 1u, sizeof(*all));
    bool good = all != NULL;
    for (uint32_t i = 0; good && i < item->part_count; i++) {
        const struct efs_extent *x = efs_extent(fs, item->parts[i].waiter.extent);
        good = block_place(fs, &x->e, &all[i].e_window, &all[i].e_offset) &&
               block_place(fs, &x->sm, &all[i].sm_window, &all[i].sm_offset);
    }
    if (!good) {
        errint_t rc = all ? -EOPNOTSUPP : -ENOMEM;
        free(all);
        return rc;
    }
    *places = all;
    *count = item->part_count;
    return 0;
}

static bool block_is_in(const struct efs *fs, const struct efs_block *block, uint32_t number)
{
    return block->data && fs->arena.segments[block->segment].file.number == number;
}

errint_t efs_request_open_window(const struct efs_client_request *request, uint32_t index, uint32_t number,
                                 struct efs_window *window)
{
    const struct efs *fs = efs_request_of(request)->fs;
    const struct efs_request_item *item = &efs_request_of(request)->items[index];
    if (item->form == EFS_FORM_FULL)
        return efs_lease_window(item_lease(request, index), true, window);
    for (uint32_t i = 0; i < item->part_count; i++) {
        const struct efs_extent *x = efs_extent(fs, item->parts[i].waiter.extent);
        bool e = block_is_in(fs, &x->e, number);
        if (!e && !block_is_in(fs, &x->sm, number))
            continue;
        const struct efs_segment *segment = &fs->arena.segments[e ? x->e.segment : x->sm.segment];
        int fd = efs_window_file_open(fs->arena.memfiles, &segment->file);
        *window = (struct efs_window){.number = number, .fd = fd, .bytes = fs->arena.segment_bytes};
        return fd < 0 ? fd : 0;
    }
    return -EINVAL;
}

/* ---- layout ---- */

/* Describes a shard of x, which is extent `nth` of the expert. */
static struct efs_export_layout_shard layout_shard(const struct efs *fs, const struct efs_extent *x, uint32_t nth,
                                                   uint32_t shard)
{
    const struct efs_disk_shard *first = efs_extent_first_shard(fs, x), *s = first + shard;
    return (struct efs_export_layout_shard){
        .elements = efs_store_shard_elements(fs->store, &fs->store->objects[x->object], x->shard_first + shard),
        .extent = nth,
        .codec = s->codec,
        .e_at = s->e_bytes ? (uint32_t)(s->e_offset - efs_page_down(first->e_offset)) : 0,
        .e_bytes = s->e_bytes,
        .sm_at = s->sm_bytes ? (uint32_t)(s->sm_offset - efs_page_down(first->sm_offset)) : 0,
        .sm_bytes = s->sm_bytes};
}

errint_t efs_request_layout(const struct efs_client_request *request, uint32_t index, struct efs_export_layout **out,
                            size_t *bytes)
{
    const struct efs *fs = efs_request_of(request)->fs;
    const struct efs_request_item *item = &efs_request_of(request)->items[index];
    uint32_t expert = item->expert, shards = 0;
    uint32_t tensors, header = efs_view_expert_header_bytes(&fs->view, expert);
    const struct efs_expert_part *parts = efs_view_expert_parts(&fs->view, expert, &tensors);
    for (uint32_t i = 0; i < item->part_count; i++)
        shards += item->parts[i].shards;
    size_t padded = ((size_t)header + 7) / 8 * 8;
    *bytes = sizeof(struct efs_export_layout) + padded + tensors * sizeof(struct efs_export_layout_tensor) +
             shards * sizeof(struct efs_export_layout_shard);
    struct efs_export_layout *layout = efs_sys_calloc(1, *bytes);
    if (!layout)
        return -ENOMEM;
    *layout = (struct efs_export_layout){.file_bytes = efs_view_expert_bytes(&fs->view, expert),
                                         .header_bytes = header,
                                         .tensors = tensors,
                                         .extents = item->part_count,
                                         .shards = shards,
                                         .shard_elements = fs->store->sb.shard_elements};
    efs_view_expert_header(&fs->view, expert, (char *)(layout + 1));
    struct efs_export_layout_tensor *tensor =
        (struct efs_export_layout_tensor *)(void *)((uint8_t *)(layout + 1) + padded);
    struct efs_export_layout_shard *shard = (struct efs_export_layout_shard *)(void *)(tensor + tensors);
    for (uint32_t i = 0; i < tensors; i++)
        tensor[i] = (struct efs_export_layout_tensor){.file_offset = parts[i].file_offset,
                                                      .shards = fs->store->objects[parts[i].object].shard_count};
    for (uint32_t i = 0; i < item->part_count; i++) {
        const struct efs_extent *x = efs_extent(fs, item->parts[i].waiter.extent);
        for (uint32_t s = 0; s < x->shard_count; s++)
            *shard++ = layout_shard(fs, x, i, s);
    }
    *out = layout;
    return 0;
}
