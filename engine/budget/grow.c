/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grow.c - prepares segments of the chunk pool before critical sections add them, and reads the memory that is left:
 * both make system calls, which must not run with efs.lock held. A job on a worker does it when few segments are ready,
 * or when memory was freed since a reading that is too low; the plan thread does it for memory of other processes.
 */
#include "budget.h"

#include "container.h"
#include "expertfs-private.h"

#include <errno.h>

#define READY_LEAST 2u /* below, the job prepares EFS_READY_SEGMENTS */

/* Bytes of segments that were added and have no pages yet, which no count of the system includes: at most the ready
 * ones of one job. 0 where segments are not populated as a whole: without registered reads, before Linux 5.14. */
static uint64_t grow_unpopulated(const struct efs *fs)
{
    uint64_t segments = fs->account.bytes[EFS_ACCOUNT_SEGMENTS], most = EFS_READY_SEGMENTS * fs->arena.segment_bytes;
    uint64_t populated = atomic_load(&fs->arena.populated_bytes);
    uint64_t bytes = populated && segments > populated ? segments - populated : 0;
    return bytes < most ? bytes : most;
}

/* The memory that can be in use when `left` bytes are left. Memory without pages yet is in no count of the system:
 * memory files that are being filled, and a segment; see efs_grow_check_memory(). */
static uint64_t grow_available(const struct efs *fs, uint64_t used, uint64_t unpopulated, int64_t left)
{
    uint64_t promised = fs->account.bytes[EFS_ACCOUNT_UNTOUCHED] + fs->arena.segment_bytes + unpopulated;
    uint64_t have = used > promised ? used - promised : 0;
    if (left == INT64_MAX)
        return UINT64_MAX;
    if (left < 0)
        return have > (uint64_t)-left ? have - (uint64_t)-left : 0;
    return have + (uint64_t)left;
}

/* Memory of the pools that has pages, and so is not available any more: populated segments, and what is used of others,
 * of which a process without huge pages or with little RLIMIT_MEMLOCK has most. */
static uint64_t grow_pools_bytes(const struct efs *fs)
{
    const uint64_t *bytes = fs->account.bytes;
    uint64_t populated = atomic_load(&fs->arena.populated_bytes), segments = bytes[EFS_ACCOUNT_SEGMENTS];
    uint64_t used = fs->arena.used_bytes, chunks = populated > used ? populated : used;
    chunks = chunks < segments ? chunks : segments;
    return chunks + bytes[EFS_ACCOUNT_FULL] - bytes[EFS_ACCOUNT_UNTOUCHED];
}

/* Chooses segments to prepare if few are ready. Returns their number. */
static unsigned grow_begin(struct efs *fs, struct efs_pending_segment *pending)
{
    struct efs_grow *g = &fs->budget->grow;
    unsigned count = 0;
    pthread_mutex_lock(&fs->lock);
    unsigned wanted = g->count < READY_LEAST ? EFS_READY_SEGMENTS - g->count : 0;
    pthread_mutex_unlock(&fs->lock);
    uint64_t nodes = wanted ? efs_arena_nodes_with_memory(&fs->arena) : 0;
    pthread_mutex_lock(&fs->lock);
    while (count < wanted && efs_arena_choose(&fs->arena, nodes, &pending[count]))
        count++;
    g->before = (struct efs_grow_before){fs->account.allocated_bytes, fs->account.used_bytes,
                                         fs->account.returned_bytes, grow_unpopulated(fs)};
    pthread_mutex_unlock(&fs->lock);
    return count;
}

void efs_grow(struct efs *fs, bool sampled)
{
    struct efs_grow *g = &fs->budget->grow;
    struct efs_pending_segment pending[EFS_READY_SEGMENTS];
    errint_t error[EFS_READY_SEGMENTS];
    pthread_mutex_lock(&g->lock);
    unsigned count = grow_begin(fs, pending);
    struct efs_memory memory;
    int64_t left = efs_memory_left_read(&fs->budget->memory_left, &memory);
    for (unsigned i = 0; i < count; i++)
        error[i] = efs_arena_prepare(&fs->arena, &pending[i]);

    pthread_mutex_lock(&fs->lock);
    bool failed = false;
    for (unsigned i = 0; i < count; i++) {
        if (error[i] == 0)
            g->ready[g->count++] = pending[i];
        else
            efs_arena_discard(&fs->arena, &pending[i]);
        failed = failed || error[i] < 0;
    }
    g->limit_bytes = g->before.allocated - g->before.unpopulated + (left > 0 ? (uint64_t)left : 0);
    g->returned_bytes = g->before.returned;
    /* `left` may include changes since the first reading of used_bytes: use the larger value */
    uint64_t used = fs->account.used_bytes > g->before.used ? fs->account.used_bytes : g->before.used;
    g->reading = (struct efs_reading){.provided_bytes = grow_available(fs, used, g->before.unpopulated, left),
                                      .available_bytes = memory.available_bytes,
                                      .free_bytes = memory.free_bytes,
                                      .pools_bytes = grow_pools_bytes(fs),
                                      .is_sample = sampled};
    g->has_reading = true;
    g->failed = failed && g->count == 0;
    fs->growing = false;
    efs_changed(fs, EFS_CHANGED_GROWN);
    pthread_mutex_unlock(&g->lock);
    efs_unlock(fs);
}

void efs_budget_leave_later(struct efs *fs, uint64_t disk_bytes)
{
    struct efs_controller *c = &fs->budget->controller;
    struct efs_store_info info;
    efs_store_info(fs->store, &info);
    const uint64_t dense = info.source_bytes - info.expert_raw_bytes;
    const bool special = disk_bytes == EFS_LEAVE_HALF || disk_bytes == EFS_LEAVE_MOST;
    efs_lock(fs);
    c->mapped_bytes = special ? disk_bytes : disk_bytes < dense ? dense - disk_bytes : 0;
    c->experts_bytes = info.experts && disk_bytes != EFS_LEAVE_HALF ? 2 * info.expert_raw_bytes / info.experts : 0;
    c->is_new = true;
    efs_unlock(fs);
}

uint64_t efs_budget_leave(struct efs *fs, uint64_t disk_bytes)
{
    efs_budget_leave_later(fs, disk_bytes);
    efs_grow(fs, false);
    efs_lock(fs);
    uint64_t bytes = fs->account.budget_bytes;
    efs_unlock(fs);
    return bytes;
}

static void grow_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs *fs = EFS_CONTAINER(job, struct efs_budget, grow.job)->fs;
    (void)scratch;
    efs_lock(fs);
    fs->budget->grow.busy = false; /* a later request needs another run */
    efs_unlock(fs);
    efs_grow(fs, false);
    efs_in_flight_end(fs);
}

/* With lock held: queues the job. */
static void grow_request(struct efs *fs)
{
    struct efs_grow *g = &fs->budget->grow;
    if (g->busy)
        return;
    g->busy = true;
    g->job.run = grow_run;
    efs_in_flight_begin(fs);
    efs_defer_job(fs, &g->job, EFS_JOB_FIRST);
}

errint_t efs_grow_add_segment(struct efs *fs)
{
    struct efs_grow *g = &fs->budget->grow;
    bool none = g->count == 0;
    if (none)
        fs->growing |= !g->failed;
    if (g->count <= READY_LEAST && !g->failed) /* else the plan thread's next sample tries again */
        grow_request(fs);
    if (none)
        return g->failed ? -ENOMEM : -EAGAIN;
    efs_arena_add(&fs->arena, &g->ready[0]);
    g->ready[0] = g->ready[--g->count];
    efs_account_charge(&fs->account, EFS_ACCOUNT_SEGMENTS, fs->arena.segment_bytes);
    efs_account_add_allocated(&fs->account, fs->arena.segment_bytes);
    return 0;
}

errint_t efs_grow_check_memory(struct efs *fs, uint64_t bytes)
{
    struct efs_grow *g = &fs->budget->grow;
    /* memory without pages yet is in no count of the system: memory files being filled, and about a segment */
    uint64_t need = bytes + fs->account.bytes[EFS_ACCOUNT_UNTOUCHED] + fs->arena.segment_bytes;
    if (g->limit_bytes >= need && g->limit_bytes - need >= fs->account.allocated_bytes)
        return 0;
    if (fs->account.returned_bytes == g->returned_bytes)
        return -ENOMEM;
    fs->growing = true;
    grow_request(fs);
    return -EAGAIN;
}
