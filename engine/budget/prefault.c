/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefault.c - populates the pages of the chunk pool's next segments before they are needed. The kernel clears pages,
 * and in a virtual machine may first have to get them from the host: a read that waited for that would leave the disk
 * idle.
 *
 * One segment at a time, within budget and plan, by idle decode workers, a huge page per job; free memory of the pool
 * stays below 4 times the used memory, so that a store of which little is read stays small.
 */
#include "budget.h"

#include "container.h"
#include "extent_internal.h"
#include "workers.h"

#include <errno.h>

#define AHEAD 4u       /* segments: about what a layer reads when nothing of it is there */
#define AHEAD_TIMES 4u /* used memory */

static void prefault_populate(struct efs_job *job, struct efs_codec_scratch *scratch);

/* Lock held: begin with the next segment, if one is called for. */
static void prefault_next(struct efs *fs)
{
    struct efs_next_segment *n = &fs->budget->next_segment;
    uint64_t bytes = fs->arena.segment_bytes, used = fs->arena.used_bytes;
    uint64_t free_bytes = fs->arena.segment_count * bytes - used;
    if (n->busy || n->left == 0 || fs->closing || !fs->workers || free_bytes >= AHEAD * bytes ||
        free_bytes >= AHEAD_TIMES * used)
        return;
    efs_extents_put_used_up(fs);
    if (efs_extents_has_evict_first(fs))
        return; /* that goes before the pool grows */
    if (efs_budget_add_segment(fs, false) < 0)
        return;
    n->fs = fs;
    n->busy = true;
    n->left--;
    n->segment = fs->arena.newest;
    atomic_store(&fs->arena.segments[n->segment].populating, true);
    n->done = 0;
    n->job.run = prefault_populate;
    efs_in_flight_begin(fs);
    efs_defer_job(fs, &n->job, EFS_JOB_LOW);
}

void efs_prefault(struct efs *fs)
{
    fs->budget->next_segment.left = AHEAD;
    prefault_next(fs);
}

static void prefault_ended(struct efs *fs, struct efs_segment *s, bool whole)
{
    efs_arena_populate_done(&fs->arena, (uint32_t)(s - fs->arena.segments), whole);
    efs_lock(fs);
    fs->budget->next_segment.busy = false;
    if (whole)
        prefault_next(fs);
    efs_retry(fs, EFS_RETRY_SEGMENTS);
    efs_unlock(fs);
    efs_in_flight_end(fs);
}

static void prefault_populate(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_next_segment *n = EFS_CONTAINER(job, struct efs_next_segment, job);
    struct efs *fs = n->fs;
    struct efs_segment *s = &fs->arena.segments[n->segment];
    (void)scratch;
    efs_lock(fs);
    bool stop = s->retiring || fs->closing;
    efs_unlock(fs);
    errint_t rc = stop ? -ECANCELED : efs_arena_populate_part(&fs->arena, n->segment, n->done);
    n->done += EFS_ARENA_PART;
    if (rc < 0 || n->done >= fs->arena.segment_bytes)
        prefault_ended(fs, s, rc == 0);
    else
        efs_workers_push_low(fs->workers, &n->job);
}
