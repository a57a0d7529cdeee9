/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_evict.c - drops blocks: those of the unit of least worth first, by last use where no worth is known. What stays
 * (dense tensors, pinned experts) is not dropped: when it fills the size, the rest is not stored. Only a copy that is
 * above its size, which is then smaller than at the mount before, drops it, after all else. A round drops 1/128 of the
 * size, so that one ranking and one sync serve many blocks.
 */
#include "local_internal.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>

#define ROUND_SHARE 128u

static int by_key(const void *a, const void *b)
{
    float x = ((const struct local_victim *)a)->key, y = ((const struct local_victim *)b)->key;
    return (x < y) - (x > y);
}

/* The blocks that may be dropped, the first ones first. */
static uint32_t find_victims(struct efs_local *l)
{
    bool ranked = l->o.rank && l->o.rank(l->o.arg, l->worth);
    const bool all = atomic_load(&l->page_count) > l->page_limit;
    uint32_t count = 0, now = atomic_load(&l->clock);
    for (uint32_t b = 0; b < l->block_count; b++) {
        uint32_t unit = l->unit[b];
        bool known = unit < l->o.units;
        bool stays =
            unit == EFS_LOCAL_STAYS || unit == EFS_LOCAL_TABLES || (known && l->worth[unit] == (double)INFINITY);
        if (!atomic_load_explicit(&l->there[b], memory_order_relaxed) || (stays && !all))
            continue;
        double key = (double)(now - atomic_load_explicit(&l->used[b], memory_order_relaxed));
        if (ranked && known)
            key = -l->worth[unit];
        key = stays ? -(double)INFINITY : key;
        l->victims[count++] = (struct local_victim){.key = (float)key, .block = b};
    }
    qsort(l->victims, count, sizeof(l->victims[0]), by_key);
    return count;
}

static errint_t sync_maps(const struct efs_local *l)
{
    errint_t rc = 0;
    for (unsigned i = 0; rc == 0 && i < l->file_count; i++)
        rc = efs_sys_fsync(l->files[i].map_fd);
    return rc;
}

static errint_t punch(struct efs_local *l, uint32_t block)
{
    const struct local_file *f = efs_local_file_of(l, block);
    return efs_sys_fallocate(f->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, local_offset(f, block),
                             EFS_LOCAL_BLOCK);
}

/* Drops the first victims, at least that many pages if there are. Entries are cleared and synced before the pages. */
static errint_t evict(struct efs_local *l, uint64_t pages)
{
    uint32_t count = find_victims(l), end = 0;
    uint64_t dropped = 0;
    errint_t rc = 0;
    for (; rc == 0 && end < count && dropped < pages; end++) {
        uint32_t block = l->victims[end].block;
        uint64_t had = atomic_exchange(&l->there[block], 0);
        dropped += (uint64_t)__builtin_popcountll(had);
        rc = efs_local_write_entries(efs_local_file_of(l, block), block, 0, LOCAL_BLOCK_PAGES, NULL);
    }
    rc = rc == 0 && end > 0 ? sync_maps(l) : rc;
    for (uint32_t i = 0; rc == 0 && i < end; i++)
        rc = punch(l, l->victims[i].block);
    atomic_fetch_sub(&l->page_count, dropped);
    efs_count(l->o.stats, local_evicted_bytes, dropped * EFS_ALIGN);
    return rc;
}

uint64_t efs_local_make_room(struct efs_local *l, uint64_t pages)
{
    uint64_t used = atomic_load(&l->page_count);
    if (used + pages > l->page_limit) {
        uint64_t round = l->page_limit / ROUND_SHARE;
        errint_t rc = evict(l, used + pages - l->page_limit + round);
        if (rc < 0) {
            efs_local_failed(l, l->files, false, rc);
            return 0;
        }
        used = atomic_load(&l->page_count);
    }
    return used < l->page_limit ? l->page_limit - used : 0;
}

void efs_local_trim(struct efs_local *l)
{
    for (unsigned i = 0; i < l->file_count; i++) {
        const struct local_file *f = &l->files[i];
        for (uint64_t at = 0; at < f->of.bytes;) {
            int64_t data = efs_sys_seek_data(f->fd, at);
            if (data < 0)
                break; /* none, or the file system cannot say */
            uint32_t block = f->block_first + (uint32_t)((uint64_t)data / EFS_LOCAL_BLOCK);
            if (block - f->block_first >= f->block_count)
                break;
            if (!l->there[block] && punch(l, block) < 0)
                return;
            at = local_offset(f, block) + EFS_LOCAL_BLOCK;
        }
    }
}
