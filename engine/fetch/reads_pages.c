/* SPDX-License-Identifier: Apache-2.0 */
/* reads_pages.c - whether a part of a file can be read by pages. */
#include "expertfs-private.h"
#include "extent.h"
#include "small.h"

bool efs_file_reads_pages(struct efs *fs, uint32_t file, uint64_t offset)
{
    struct efs_view_location at;
    uint64_t end;
    if (!fs->small || offset >= efs_view_bytes(&fs->view, file))
        return false;
    efs_view_locate(&fs->view, file, offset, &at);
    if (at.object == EFS_NONE)
        return false;
    uint32_t extent = efs_extent_at(fs, at.object, at.object_offset, &end);
    efs_lock(fs);
    bool serves = efs_small_serves(fs, extent, at.object, at.object_offset, 1);
    efs_unlock(fs);
    return serves;
}
