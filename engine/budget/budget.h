/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.h - admission to the budget, and eviction for it.
 *
 * budget/ enforces one budget for all memory of the engine: it admits memory and chooses the pool that must release
 * some. planner/, prefetch/, fetch/, control/ and serve/ call it. It never reads the store and never calls sched/.
 */
#ifndef EFS_BUDGET_H
#define EFS_BUDGET_H

#include "controller.h"
#include "efs.h"
#include "memfile.h"
#include "memory_left.h"

struct efs_retirement { /* the segment that is being released: unregistered by the I/O thread, then freed by a worker */
    struct efs_io request;
    struct efs_job job;
    bool busy;
};

#define EFS_READY_SEGMENTS 4u

struct efs_grow_before { /* numbers of the account before a reading */
    uint64_t allocated, used, returned, unpopulated;
};

struct efs_grow {                  /* prepares segments on a worker, and reads the memory that is left (grow.c) */
    pthread_mutex_t lock;          /* one reading at a time; taken before efs.lock */
    struct efs_grow_before before; /* the current reading */
    struct efs_job job;
    /* guarded by efs.lock */
    struct efs_pending_segment ready[EFS_READY_SEGMENTS]; /* mapped and bound, without pages */
    unsigned count;
    bool busy;               /* the job is queued or running */
    bool failed;             /* the last job could not prepare a segment, and none is ready */
    uint64_t limit_bytes;    /* memory left at the last reading, plus allocated_bytes then: limit of
                                efs_account.allocated_bytes */
    uint64_t returned_bytes; /* efs_account.returned_bytes before the last reading */
    bool has_reading;        /* `reading` is one that efs_budget_follow() has not used yet */
    struct efs_reading reading;
};

struct efs_budget {
    struct efs *fs;
    bool built;
    struct efs_controller controller;
    _Atomic uint64_t cached_bytes, direct_bytes; /* struct efs_reading */
    struct efs_grow grow;
    struct efs_memory_left memory_left;
    struct efs_retirement retirement;
    unsigned settling;      /* threads in efs_budget_wait() */
    pthread_cond_t settled; /* see efs_budget_wait() */
};

/* ---- budget.c ---- */
/* With lock held: */
/* Bytes in use, if the chunk pool had at least this number of segments. */
static inline uint64_t efs_budget_used_with(const struct efs *fs, uint64_t segments)
{
    uint64_t more = segments > fs->arena.segment_count ? segments - fs->arena.segment_count : 0;
    return fs->account.used_bytes + more * fs->arena.segment_bytes;
}
/* Adds a segment to the chunk pool. may_evict: evicts full experts if the pool is below its plan, or needs more for
 * coded experts, and the budget is used up; else only if efs_budget_has_segment(). 0; -EAGAIN: memory is being freed,
 * or segments are being prepared: waiters are retried then; -ENOMEM. */
errint_t efs_budget_add_segment(struct efs *fs, bool may_evict);
/* Whether the chunk pool can get a segment within plan, budget and free memory, without evictions. */
bool efs_budget_has_segment(struct efs *fs);
/* Limit of the chunks that clients hold: half of the planned chunk pool, but at least a quarter of the budget that is
 * not fixed; full experts are evicted for it. */
uint64_t efs_budget_coded(const struct efs *fs);
/* Reserves a memory file of this size: *memfile is a free one, PRIVATE or, if use is WINDOW, possibly a WINDOW, never
 * EXPORTED; NULL: the caller allocates one, which is already counted. Takes memory for it by efs_cache_reclaim().
 * -EAGAIN: memory is being freed, and what waits is retried afterwards; -ENOMEM: all memory is held. */
errint_t efs_budget_get_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use, struct efs_memfile **memfile);
/* Sets the requested budget, which is at least the minimum, and from it, within what the controller allows, the
 * effective budget (efs_account.budget_bytes) and the floor of the chunk pool. With budget=auto the requested budget is
 * the controller's. When the store is opened, all of it is planned for the chunk pool. */
void efs_budget_set(struct efs *fs, uint64_t bytes);
/* Sets the share of the chunk pool for prefetched experts; efs_budget_cut() applies it. */
static inline void efs_budget_set_prefetch(struct efs *fs, uint64_t bytes)
{
    efs_account_set_prefetch(&fs->account, bytes);
}
/* Cuts the budget into pools by the cache's tuning; evicts the victims. */
void efs_budget_cut(struct efs *fs);
/* Changes the budget: at least the minimum; 0: budget=auto, which the next reading sets. A smaller one evicts at once;
 * efs_budget_wait() waits until that memory is freed. */
void efs_budget_change(struct efs *fs, uint64_t bytes);
static inline bool efs_budget_is_auto(const struct efs *fs)
{
    return fs->budget->controller.automatic;
}
/* Shrinks to the budget and waits until it is settled: the used bytes are within it, or no operation in flight will
 * free memory. All such operations end without a client. Without lock. Returns the bytes still above the requested
 * budget: clients hold these. */
uint64_t efs_budget_wait(struct efs *fs);
/* Evicts what exceeds the budget or the plan and is not held; wakes efs_budget_wait(). */
void efs_budget_shrink(struct efs *fs);
/* Without lock, before threads are started and after they have ended. */
void efs_budget_begin(struct efs *fs); /* options.budget_bytes 0 becomes what budget=auto is now */
void efs_budget_build(struct efs *fs);
void efs_budget_destroy(struct efs *fs);
void efs_budget_close_in_child(struct efs *fs); /* efs_budget_destroy() in a forked process */
/* Starts to release a retiring segment that is empty. */
void efs_budget_retire(struct efs *fs);

/* Adjusts the effective budget to the last reading of the memory that is left (controller.h); then
 * efs_budget_shrink(). */
void efs_budget_follow(struct efs *fs);
/* Experts are requested or leased: takes memory back that was ceded to the page cache. Lock held. */
void efs_budget_use_experts(struct efs *fs);

/* Checks a budget that the user requested. Without lock, after full.c's and the arena's tables were built. held: bytes
 * of it that this process has allocated already. -ENOMEM, with the limit and a way out in err: it exceeds the memory
 * limit of this process, and the store is large enough to use it up. 0: err has a note if it exceeds the memory
 * available now, else it is unchanged. */
errint_t efs_budget_check(struct efs *fs, uint64_t budget_bytes, uint64_t held_bytes, struct efs_error *err);

/* ---- grow.c ---- */
/* Reads the memory that is left, to which the effective budget is adjusted; prepares segments if few are ready; retries
 * waiters for memory. Without lock. sampled: the plan thread calls it, every 500 ms. */
void efs_grow(struct efs *fs, bool sampled);
/* Both with lock held. -EAGAIN: a job runs efs_grow(), which retries waiters for memory. */
/* Adds a ready segment to the chunk pool, for which the caller has reserved room: 0, -EAGAIN, -ENOMEM. */
errint_t efs_grow_add_segment(struct efs *fs);
/* Whether the system has bytes left, independently of the budget, by the last reading and what was allocated since:
 * pages of freed files in pipes, sockets and I/O in flight are charged to the cgroup but not counted in the budget, so
 * the budget alone cannot prevent an OOM kill. 0, -EAGAIN (memory was freed since the reading), -ENOMEM. */
errint_t efs_grow_check_memory(struct efs *fs, uint64_t bytes);

/* ---- prealloc.c ---- */
void efs_prealloc(struct efs *fs); /* without lock, after the first plan, before the first read */

#endif
