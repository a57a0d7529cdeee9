/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prealloc.c - allocates all memory of the pools when the store is opened, so that no reader waits for the kernel to
 * find and clear pages: in a virtual machine whose host reclaims free memory, that can be slower than the disk.
 *
 * Allocates the segments of the chunk pool and the memory files of the first plan, within the budget, on as many
 * threads as decode. When the system has no more memory, the rest is allocated on demand, as without this option.
 */
#include "budget.h"
#include "thread.h"

#include "cache.h"
#include "workers.h"

#include <errno.h>
#include <pthread.h>

/* Limit of memory files if the store has fewer experts: each has a descriptor, and small experts would use up the
 * descriptors of the process. */
#define FILES_LEAST 256u

struct prealloc {
    struct efs *fs;
    /* guarded by efs.lock */
    uint64_t full_bytes; /* still to be allocated for full experts */
    uint32_t files;      /* memory files allocated; the next has the size of expert files % expert_count */
    bool over;
};

/* Lock held on entry and return, released in between. false: all segments are allocated. */
static bool prealloc_segment(struct prealloc *p)
{
    struct efs *fs = p->fs;
    uint32_t count = fs->arena.segment_count;
    if (p->over || count >= fs->account.planned_segments ||
        efs_budget_used_with(fs, count + 1) > fs->account.budget_bytes)
        return false;
    errint_t rc = efs_grow_add_segment(fs);
    if (rc < 0) {
        efs_unlock(fs);
        if (rc == -EAGAIN) /* without waiting for its job */
            efs_grow(fs, false);
        efs_lock(fs);
        return rc == -EAGAIN;
    }
    uint32_t segment = fs->arena.newest;
    efs_arena_set_populating(&fs->arena, segment, true);
    efs_unlock(fs);
    bool whole = efs_arena_populate(&fs->arena, segment) == 0;
    efs_lock(fs);
    efs_arena_set_populating(&fs->arena, segment, false);
    p->over = p->over || !whole;
    return true;
}

/* The same for a full expert. */
static bool prealloc_memfile(struct prealloc *p)
{
    struct efs *fs = p->fs;
    uint32_t experts = fs->store->expert_count;
    if (p->over || !fs->options.full_pool || experts == 0 ||
        p->files >= (experts > FILES_LEAST ? experts : FILES_LEAST))
        return false;
    size_t bytes = efs_memfile_bytes(fs, p->files % experts);
    if (bytes > p->full_bytes ||
        efs_budget_used_with(fs, fs->account.planned_segments) + bytes > fs->account.budget_bytes)
        return false;
    p->full_bytes -= bytes;
    p->files++;
    efs_account_charge(&fs->account, EFS_ACCOUNT_FULL, bytes);
    efs_account_charge(&fs->account, EFS_ACCOUNT_FULL_PINNED, bytes);
    efs_account_charge(&fs->account, EFS_ACCOUNT_UNTOUCHED, bytes);
    efs_unlock(fs);
    struct efs_memfile *memfile = efs_memfile_new(efs_full_memfiles(fs), bytes);
    bool whole = memfile && efs_memfile_populate(memfile) == 0;
    efs_lock(fs);
    efs_account_release(&fs->account, EFS_ACCOUNT_UNTOUCHED, bytes);
    efs_account_release(&fs->account, EFS_ACCOUNT_FULL_PINNED, bytes);
    efs_account_add_allocated(&fs->account, memfile ? bytes : 0);
    if (memfile)
        efs_full_put_memfile(fs, memfile);
    else
        efs_account_release(&fs->account, EFS_ACCOUNT_FULL, bytes);
    p->over = p->over || !whole;
    return true;
}

static void *prealloc_run(void *arg)
{
    struct prealloc *p = arg;
    efs_lock(p->fs);
    while (prealloc_segment(p))
        ;
    while (prealloc_memfile(p))
        ;
    efs_unlock(p->fs);
    return NULL;
}

void efs_prealloc(struct efs *fs)
{
    struct prealloc p = {.fs = fs};
    unsigned long threads[EFS_WORKERS_MAX];
    unsigned count = 0;
    efs_lock(fs);
    p.full_bytes = (uint64_t)(efs_cache_tuning(fs)->ratio[EFS_POOL_F] * (double)efs_cache(fs)->pools_bytes);
    efs_unlock(fs);
    while (count + 1 < fs->options.workers && efs_thread_start(prealloc_run, &p, "efs-prealloc", &threads[count]) == 0)
        count++;
    prealloc_run(&p);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    if (p.over)
        efs_log(fs, EFS_LOG_WARNING, "the system has no memory for all of the budget now: prealloc took part of it");
}
