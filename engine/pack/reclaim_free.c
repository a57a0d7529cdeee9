/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim_free.c - which ranges of a source file can go, and their going: holes are punched, whole blocks only.
 *
 * A block goes when all of its bytes are stored. The first block of a file goes first: a reader that comes upon a file
 * which is partly gone then finds no header in it, and not weights that are zero.
 */
#include "reclaim.h"
#include "sys.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>

#define BLOCK_MIN 4096u
#define BLOCK_MAX (1u << 20)

/* A stretch of a file that is stored, and the part of it that was not freed yet. */
struct stretch {
    uint64_t begin, end;
    uint64_t new_begin, new_end; /* equal: nothing is new */
    uint32_t first, last;        /* its extents, last not included */
};

static uint64_t free_up(uint64_t at, uint32_t block)
{
    return (at + block - 1) / block * block;
}

static uint64_t free_down(uint64_t at, uint32_t block)
{
    return at / block * block;
}

static uint32_t sane_block(uint32_t block)
{
    return block >= BLOCK_MIN && block <= BLOCK_MAX && (block & (block - 1)) == 0 ? block : BLOCK_MIN;
}

/* The next stretch of the file at or after extent `at`; false: there is none. */
static bool next_stretch(const struct efs_reclaim *r, uint32_t file, uint32_t at, struct stretch *s)
{
    const struct efs_pack_plan *plan = &r->plan;
    uint32_t end = plan->files[file].extent_first + plan->files[file].extent_count;
    while (at < end && r->stored[plan->extents[at].object] == 0)
        at++;
    if (at >= end)
        return false;
    *s = (struct stretch){.begin = plan->extents[at].file_offset, .first = at};
    for (bool whole = true; whole && at < end; at++) {
        const struct efs_disk_extent *x = &plan->extents[at];
        uint64_t stored = r->stored[x->object], freed = r->freed[x->object];
        if (stored == 0)
            break;
        s->end = x->file_offset + stored;
        if (stored > freed) {
            if (s->new_begin == s->new_end)
                s->new_begin = x->file_offset + freed;
            s->new_end = s->end;
        }
        whole = stored == x->bytes;
    }
    s->last = at;
    return true;
}

/* What of the stretch goes: whole blocks that have something new. */
static uint64_t range_of(const struct efs_reclaim *r, uint32_t file, const struct stretch *s, uint32_t block,
                         uint64_t *begin)
{
    uint64_t end = s->end == r->plan.files[file].bytes ? free_up(s->end, block) : free_down(s->end, block);
    *begin = free_up(s->begin, block);
    if (s->new_begin == s->new_end)
        return 0;
    if (*begin < free_down(s->new_begin, block))
        *begin = free_down(s->new_begin, block);
    if (end > free_up(s->new_end, block))
        end = free_up(s->new_end, block);
    return end > *begin ? end - *begin : 0;
}

static bool first_block_is_stored(const struct efs_reclaim *r, uint32_t file, uint32_t block)
{
    struct stretch s;
    uint64_t bytes = r->plan.files[file].bytes;
    return next_stretch(r, file, r->plan.files[file].extent_first, &s) && s.begin == 0 &&
           s.end >= (bytes < block ? bytes : block);
}

static void mark_freed(struct efs_reclaim *r, const struct stretch *s)
{
    for (uint32_t i = s->first; i < s->last; i++)
        r->freed[r->plan.extents[i].object] = r->stored[r->plan.extents[i].object];
}

static errint_t free_in(struct efs_reclaim *r, uint32_t file, int fd, uint32_t block, struct efs_error *err)
{
    struct stretch s;
    for (uint32_t at = r->plan.files[file].extent_first; next_stretch(r, file, at, &s); at = s.last) {
        uint64_t begin, bytes = range_of(r, file, &s, block, &begin);
        int rc = bytes ? efs_sys_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, bytes) : 0;
        if (rc < 0)
            return efs_fail(err, rc, "%s/%s: cannot free %llu bytes at offset %llu: %s", r->root,
                            r->catalog.files[file].path, (unsigned long long)bytes, (unsigned long long)begin,
                            strerror(-rc));
        mark_freed(r, &s);
    }
    return 0;
}

errint_t efs_reclaim_free(struct efs_reclaim *r, bool again, struct efs_error *err)
{
    uint64_t unused;
    uint32_t block = BLOCK_MIN;
    efs_sys_free_bytes(r->root_dir, &unused, &block);
    block = sane_block(block);
    for (uint32_t f = 0; f < r->plan.file_count; f++) {
        bool goes = r->files[f].touched && first_block_is_stored(r, f, block);
        if (!goes && !(again && r->files[f].touched))
            continue;
        int fd = efs_reclaim_open(r, f, O_WRONLY, true, err);
        if (fd < 0)
            return fd;
        errint_t rc = goes ? free_in(r, f, fd, block, err) : 0;
        if (rc < 0) {
            efs_sys_close(fd);
            return rc;
        }
        rc = efs_reclaim_settle(r, f, fd, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

uint64_t efs_reclaim_would_free(struct efs_reclaim *r, uint32_t block)
{
    uint64_t all = 0;
    block = sane_block(block);
    for (uint32_t f = 0; f < r->plan.file_count; f++) {
        struct stretch s;
        if (!r->files[f].touched || !first_block_is_stored(r, f, block))
            continue;
        for (uint32_t at = r->plan.files[f].extent_first; next_stretch(r, f, at, &s); at = s.last) {
            uint64_t begin;
            all += range_of(r, f, &s, block, &begin);
            mark_freed(r, &s);
        }
    }
    return all;
}
