/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_windows.c - experts of a request for other processes: the window of a full expert; the windows, offsets and
 * layout of a coded one's extents. Without lock: held experts do not move.
 */
#include "fetch.h"

#include "extent_internal.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool efs_exports_coded(const struct efs *fs)
{
    return fs->arena.memfiles != NULL;
}

enum efs_form efs_request_form(const struct efs_client_request *request, uint32_t index)
{
    return efs_request_of(request)->items[index].form;
}

errint_t efs_request_window(const struct efs_client_request *request, uint32_t index, struct efs_window *window)
{
    return efs_lease_window(efs_request_of(request)->items[index].lease, window);
}

/* ---- locations ---- */

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
    if (item->lease)
        return efs_lease_open_window(item->lease, window);
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
