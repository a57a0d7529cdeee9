/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_holes.c - tensors to which not all bytes were written.
 *
 * Programs that allocate a file first and fill it in any order (aria2, axel, ollama, torrents) leave a valid header,
 * and ranges that read as zeros: holes, or allocated blocks that the file system has marked as unwritten
 * (fallocate(2)). lseek(2) reports such blocks as data once they were read and are in the page cache (ext4, xfs), so
 * FS_IOC_FIEMAP is used, too.
 */
#include "source.h"

#include "sys.h"

#include <errno.h>
#include <linux/fiemap.h>

#define EXTENTS 32u

struct range {
    uint64_t begin, end;
};

/* The first hole at or after offset. begin is UINT64_MAX if there is none, or the file system does not report them. */
static struct range next_hole(const struct efs_source_input *in, uint64_t offset)
{
    int64_t hole = efs_sys_seek_hole(in->fd, offset);
    if (hole < 0 || (uint64_t)hole >= in->bytes)
        return (struct range){.begin = UINT64_MAX};
    int64_t data = efs_sys_seek_data(in->fd, (uint64_t)hole);
    return (struct range){(uint64_t)hole, data < 0 ? in->bytes : (uint64_t)data};
}

/* The same for blocks that are allocated and unwritten, by FS_IOC_FIEMAP with these flags. */
static struct range next_extent(const struct efs_source_input *in, uint64_t offset, uint32_t flags)
{
    struct {
        struct fiemap map;
        struct fiemap_extent extents[EXTENTS];
    } query;

    for (uint64_t next = offset; next < in->bytes; offset = next) {
        query.map = (struct fiemap){
            .fm_start = offset, .fm_length = in->bytes - offset, .fm_flags = flags, .fm_extent_count = EXTENTS};
        if (efs_sys_fiemap(in->fd, &query.map) < 0 || query.map.fm_mapped_extents == 0)
            break;
        for (uint32_t i = 0; i < query.map.fm_mapped_extents && i < EXTENTS; i++) {
            const struct fiemap_extent *extent = &query.extents[i];
            next = extent->fe_logical + extent->fe_length;
            if (next > offset && (extent->fe_flags & FIEMAP_EXTENT_UNWRITTEN))
                return (struct range){extent->fe_logical > offset ? extent->fe_logical : offset, next};
        }
        if (next <= offset)
            break;
    }
    return (struct range){.begin = UINT64_MAX};
}

static struct range next_unwritten(const struct efs_source_input *in, uint64_t offset)
{
    return next_extent(in, offset, 0);
}

/* Writes dirty pages first, whose blocks are unwritten until then. */
static struct range next_unwritten_synced(const struct efs_source_input *in, uint64_t offset)
{
    return next_extent(in, offset, FIEMAP_FLAG_SYNC);
}

/* The first of the sorted tensors that ends after offset; list->count: none. */
static size_t tensor_after(const struct efs_source_list *list, uint64_t offset)
{
    size_t low = 0, high = list->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct efs_source_tensor *tensor = &list->entries[middle].tensor;
        if (tensor->offset + tensor->bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first byte of a tensor that lies in a range found by `next`: sets *tensor and *at. */
static bool find_unwritten(const struct efs_source_input *in, const struct efs_source_list *list,
                           struct range (*next)(const struct efs_source_input *, uint64_t),
                           const struct efs_source_tensor **tensor, uint64_t *at)
{
    /* Each turn passes at least one tensor: all ranges between two tensors are skipped at once. */
    for (size_t t = 0; t < list->count;) {
        const struct range range = next(in, list->entries[t].tensor.offset);
        if (range.begin == UINT64_MAX)
            return false;
        t = tensor_after(list, range.begin);
        *tensor = t < list->count ? &list->entries[t].tensor : NULL;
        if (*tensor && (*tensor)->bytes == 0) {
            t++;
        } else if (*tensor && (*tensor)->offset < range.end) {
            *at = range.begin > (*tensor)->offset ? range.begin : (*tensor)->offset;
            return true;
        }
    }
    return false;
}

errint_t efs_source_mark_holes(const struct efs_source_input *in, const struct efs_source_list *list,
                               struct efs_source_file *file)
{
    const struct efs_source_tensor *tensor;
    struct efs_error text = {""};
    uint64_t at;

    if (find_unwritten(in, list, next_hole, &tensor, &at))
        efs_fail(
            &text, 0,
            "has a hole at offset %llu, in %.200s, which reads as zeros: nothing was written there, or a copy left "
            "out zeros, which `cp --sparse=never` writes",
            (unsigned long long)at, tensor->name);
    else if (find_unwritten(in, list, next_unwritten, &tensor, &at) &&
             find_unwritten(in, list, next_unwritten_synced, &tensor, &at))
        efs_fail(&text, 0, "was not written at offset %llu, in %.200s, which reads as zeros", (unsigned long long)at,
                 tensor->name);
    return text.text[0] ? efs_source_mark_broken(file, "", text.text) : 0;
}
