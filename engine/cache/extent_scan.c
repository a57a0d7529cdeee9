/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_scan.c - extents loaded for scans are *scan extents*: they count in a quota, and are evicted for the streams'
 * next extents before all other memory, so that a scan takes no more than its read-ahead window. An extent is dropped
 * when all of its bytes were read, in any order and by any threads, or when the streams have advanced so far that the
 * rest is not expected to be read: see STALE_AHEAD and STALE_PART. An extent that another reader requests becomes an
 * ordinary one. There are no scan extents while the chunk pool has room for the whole store: it is then read from disk
 * once.
 */
#include "extent_internal.h"

bool efs_extents_scan_reserve(struct efs *fs, uint64_t bytes, bool wanted)
{
    uint64_t quota = efs_streams_quota(&fs->extents->streams);
    while (fs->extents->scan_bytes + bytes > quota)
        if (efs_extents_evict(fs, EFS_VICTIM(STALE) | (wanted ? EFS_VICTIM(SCAN_READ) : 0)) != EFS_EVICTED_ONE)
            return false;
    return true;
}

void efs_extent_accessed(struct efs *fs, uint32_t extent, enum efs_pace pace, size_t bytes)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (x->resident == 0 && x->state == EFS_EXTENT_IDLE) {
        x->sequential = pace != EFS_PACE_RANDOM;
        x->consumed_bytes = 0;
        if (pace == EFS_PACE_SCAN) {
            efs_extents_scan_reserve(fs, efs_extent_span(fs, x, x->required), true);
            efs_extent_set_scan(fs, x, true);
        }
    } else if (pace != EFS_PACE_SCAN) {
        x->sequential = x->sequential && pace == EFS_PACE_SEQUENTIAL;
        efs_extent_set_scan(fs, x, false);
    }
    x->consumed_bytes = x->consumed_bytes + bytes < UINT32_MAX ? x->consumed_bytes + (uint32_t)bytes : UINT32_MAX;
    x->scan_clock = fs->extents->streams.clock;
}

void efs_extent_mark_scan(struct efs *fs, uint32_t extent)
{
    struct efs_extent *x = &fs->extents->at[extent];
    if (!x->sequential || x->scan_bytes || (x->resident == 0 && x->state == EFS_EXTENT_IDLE))
        return;
    efs_extent_set_scan(fs, x, true);
    if (x->list != EFS_LIST_NONE)
        efs_extent_enlist(fs, extent);
}
