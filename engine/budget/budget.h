/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.h - admission to the budget, and eviction for it.
 *
 * budget/ enforces one budget for all memory of the engine: it admits memory and chooses the pool that must release
 * some. planner/, prefetch/, fetch/, control/ and serve/ call it. It never reads the store and never calls sched/.
 */
#ifndef EFS_BUDGET_H
#define EFS_BUDGET_H

#include "efs.h"
#include "memfile.h"
#include "memory_left.h"

struct efs_retirement { /* the segment that is being released: unregistered by the I/O thread, then freed by a worker */
    struct efs_io request;
    struct efs_job job;
    struct efs *fs;
    bool busy;
};

struct efs_next_segment { /* the chunk pool's next segment, while a worker populates its pages */
    struct efs_job job;
    struct efs *fs;
    uint32_t segment;
    size_t done;
    unsigned left; /* segments to populate after it */
    bool busy;
};

#define EFS_READY_SEGMENTS 2u

struct efs_refill {
    pthread_mutex_t lock;                   /* serialises refill; taken before efs.lock */
    _Atomic uint64_t used_ns, measured_ns;  /* last use by a critical section, last reading of free memory; 0: never */
    _Atomic uint32_t frees, frees_measured; /* frees: counts frees of memory; frees_measured: its value at the start of
                                     the last reading, which is stale if they differ */
    /* guarded by efs.lock */
    struct efs_pending_segment segments[EFS_READY_SEGMENTS]; /* ready to be added */
    unsigned count;
    uint64_t limit_bytes; /* free memory at the last reading, plus allocated_bytes then: limit of
                             efs_account.allocated_bytes */
    bool is_unused;       /* limit_bytes was not used yet */
    bool has_measured;    /* measured_bytes is new: efs_budget_follow() has not used it */
    uint64_t measured_bytes;
};

struct efs_effective {              /* the effective budget (effective.c) */
    bool is_reduced;                /* than the requested budget: ... */
    uint64_t bytes;                 /* ... by memory pressure: the effective budget */
    uint64_t least_bytes, since_ns; /* minimum found since since_ns, while is_reduced */
};

struct efs_budget {
    bool built;
    struct efs_effective effective;
    struct efs_refill refill;
    struct efs_memory_left memory_left;
    struct efs_retirement retirement;
    struct efs_next_segment next_segment;
};

/* ---- budget.c ---- */
/* With lock held: */
/* Bytes in use, if the chunk pool had at least this number of segments. */
static inline uint64_t efs_budget_used_with(const struct efs *fs, uint64_t segments)
{
    uint64_t more = segments > fs->arena.segment_count ? segments - fs->arena.segment_count : 0;
    return fs->account.used_bytes + more * fs->arena.segment_bytes;
}
/* Adds a segment to the chunk pool; evicts full experts if the pool is below its plan, or needs more for coded experts,
 * and the budget is used up. 0; -EAGAIN: memory is being freed or allocated, retry; -ENOMEM. */
errint_t efs_budget_add_segment(struct efs *fs);
/* Whether the chunk pool can get a segment within plan, budget and free memory, without evictions. */
bool efs_budget_has_segment(struct efs *fs);
/* Limit of the chunks that clients hold: half of the planned chunk pool, but at least a quarter of the budget that is
 * not fixed; full experts are evicted for it. */
uint64_t efs_budget_coded(const struct efs *fs);
/* Makes room for another memory file of this size, or a free one for this use. Frees, in this order: free memory files,
 * segments above the plan, evictable full experts, kept full experts without leases, segments down to the floor.
 * -EAGAIN: segments are being released, waiting leases are retried afterwards; -EBUSY: memory is being freed, retry
 * soon; -ENOMEM: all memory is held. */
errint_t efs_budget_reserve_full(struct efs *fs, uint64_t bytes, enum efs_memfile_kind use);
/* Reserves a memory file of this size: *memfile is a free one, PRIVATE or, if use is WINDOW, possibly a WINDOW, never
 * EXPORTED; NULL: the caller allocates one, which is already counted. Errors of efs_budget_reserve_full(). */
errint_t efs_budget_get_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use, struct efs_memfile **memfile);
/* Sets the requested budget, which is at least the minimum, and from it the effective budget
 * (efs_account.budget_bytes), the floor of the chunk pool and the limit of read-ahead. */
void efs_budget_set(struct efs *fs, uint64_t bytes);
/* The same when the store is opened; this is the size of the chunk pool until the first plan. */
void efs_budget_begin(struct efs *fs, uint64_t bytes, uint64_t segments);
/* Sets the share of the chunk pool for prefetched experts; efs_budget_cut() applies it. */
void efs_budget_set_prefetch(struct efs *fs, uint64_t bytes);
/* Cuts the budget into pools by the cache's tuning; evicts the victims. */
void efs_budget_cut(struct efs *fs);
/* Changes the budget, which is at least the minimum. A smaller one evicts at once; efs_budget_wait() waits until that
 * memory is freed. */
void efs_budget_change(struct efs *fs, uint64_t bytes);
/* Shrinks to the budget and waits until all memory that is not held is freed, for at most about 5 s. Without lock.
 * Returns the bytes still above the requested budget. */
uint64_t efs_budget_wait(struct efs *fs);
/* Evicts what exceeds the budget or the plan and is not held. */
void efs_budget_shrink(struct efs *fs);
/* Without lock, before threads are started and after they have ended. */
void efs_budget_build(struct efs *fs);
void efs_budget_destroy(struct efs *fs);
void efs_budget_close_in_child(struct efs *fs); /* efs_budget_destroy() in a forked process */
/* EFS_RETRY_SEGMENTS: starts to release a retiring segment that is empty. */
void efs_budget_retire(struct efs *fs);
bool efs_budget_is_retiring(const struct efs *fs); /* a segment is being released */

/* ---- effective.c ---- */
/* EFS_RETRY_BUDGET: adjusts the effective budget to the last reading of free memory: down at once, up in steps after 3
 * s; then efs_budget_shrink(). */
void efs_budget_follow(struct efs *fs);

/* ---- budget_check.c ---- */
/* Checks a budget that the user requested. Without lock, after full.c's and the arena's tables were built. held: bytes
 * of it that this process has allocated already. -ENOMEM, with the limit and a way out in err: it exceeds the memory
 * limit of this process, and the store is large enough to use it up. 0: err has a note if it exceeds the memory
 * available now, else it is unchanged. */
errint_t efs_budget_check(struct efs *fs, uint64_t budget_bytes, uint64_t held_bytes, struct efs_error *err);

/* ---- refill.c ---- */
/* Allocates memory that critical sections may need; see efs_hooks. Without lock. May wait for another thread in it.
 * freed_bytes: bytes that the caller has just freed and that are still counted as in use; the caller subtracts them
 * from freed_bytes and from that count afterwards. */
void efs_refill(struct efs *fs, uint64_t freed_bytes);
/* Reads how much memory is free, also when no critical section has asked. Without lock. */
void efs_refill_measure(struct efs *fs);
/* Both with lock held. -EAGAIN: as efs_defer_refill(). */
/* Adds a segment to the chunk pool, for which the caller has reserved room: 0, -EAGAIN, -ENOMEM. */
errint_t efs_refill_add_segment(struct efs *fs);
/* Whether the system has bytes free, independently of the budget: memory that clients still map is charged to the
 * cgroup but not counted in the budget, so the budget alone cannot prevent an OOM kill. 0, -EAGAIN, -ENOMEM. */
errint_t efs_refill_check_memory(struct efs *fs, uint64_t bytes);

/* ---- prefault.c ---- */
/* EFS_RETRY_PREFAULT: populates the chunk pool's next segments if less than 4 segments of it are free. */
void efs_prefault(struct efs *fs);

/* ---- prealloc.c ---- */
void efs_prealloc(struct efs *fs); /* without lock, after the first plan, before the first read */

#endif
