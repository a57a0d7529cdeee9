/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h - one budget for all that is held, and who gives way to whom in it. */
#ifndef EFS_BUDGET_H
#define EFS_BUDGET_H

#include "efs.h"
#include "memfile.h"
#include "memory_left.h"

struct efs_retirement { /* the segment that is being unpinned, to be returned */
    struct efs_disk_request request;
    struct efs_job job;
    struct efs *fs;
    bool busy;
};

struct efs_next_segment { /* of the chunk pool, whose pages are being made */
    struct efs_job job;
    struct efs *fs;
    uint32_t segment;
    size_t done;
    unsigned left; /* to be made after it */
    bool busy;
};

#define EFS_SUPPLY_SEGMENTS 2u

struct efs_supply {
    pthread_mutex_t lock;                 /* one thread at a time gets it */
    _Atomic uint64_t asked_ns, looked_ns; /* how much memory is left; 0: never */
    _Atomic uint32_t freed, seen; /* how often memory came free; the same when the last look began, which is no use for
                                   * what came after */
    /* guarded by efs.lock */
    struct efs_coming_segment segments[EFS_SUPPLY_SEGMENTS]; /* ready */
    unsigned count;
    uint64_t left_bytes; /* more than efs_account.taken_bytes: may be taken */
    bool is_new;         /* nobody has gone by it yet */
    bool has_found;      /* all that we may hold together was found, and nobody has followed it: ... */
    uint64_t found_bytes;
};

struct efs_effective {              /* what of the budget can be had, as it was found last: effective.c */
    bool is_less;                   /* than what is asked for: ... */
    uint64_t bytes;                 /* ... this */
    uint64_t least_bytes, since_ns; /* the least that was found since then, while it is less */
};

struct efs_budget {
    bool built;
    struct efs_effective effective;
    struct efs_supply supply;
    struct efs_memory_left memory_left;
    struct efs_retirement retirement;
    struct efs_next_segment next_segment;
};

/* ---- budget.c ---- */
/* With lock held: */
/* What is held, if the chunk pool had so many segments, should it have fewer. */
static inline uint64_t efs_budget_used_with(const struct efs *fs, uint64_t segments)
{
    uint64_t most = segments > fs->arena.segment_count ? segments : fs->arena.segment_count;
    return fs->account.fixed_bytes + most * fs->arena.segment_bytes + fs->account.full_bytes +
           fs->account.freeing_bytes;
}
static inline uint64_t efs_budget_used(const struct efs *fs)
{
    return efs_budget_used_with(fs, 0);
}
/* The chunk pool gets one more segment, but not from a full expert that is kept. 0; -EAGAIN: it is on its way; -ENOMEM.
 */
errint_t efs_budget_add_segment(struct efs *fs);
/* Is there room for one more segment as it is, within the plan, with nothing that must go? */
bool efs_budget_has_segment(struct efs *fs);
/* Bytes of chunks that clients may hold at once: half of what the chunk pool has by the plan or, should the plan
 * give it little, a quarter of the budget, for which full experts give way. */
uint64_t efs_budget_coded(const struct efs *fs);
/* Make room for a memfile of bytes more, or leave a free one for that use: gives up free memfiles, segments above the
 * plan, evictable experts, kept ones that nobody holds, then segments down to the floor. What goes leaves later
 * (-EAGAIN: waiting leases are then tried again; -EBUSY: it is under way and takes a moment); -ENOMEM: everything is
 * held. */
errint_t efs_budget_reserve_full(struct efs *fs, uint64_t bytes, enum efs_memfile_kind use);
/* A place for a memfile of that size, not SHOWN: *memfile is a free one, PRIVATE or, if that is the
 * use, a WINDOW; NULL: a new one is to be made and is counted already. As efs_budget_reserve_full() else. */
errint_t efs_budget_take_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use, struct efs_memfile **memfile);
/* A budget of at least the floor is asked for: what of it can be had (efs_account.budget_bytes), and what follows from
 * that: segments that the chunk pool always keeps, how far to read ahead. */
void efs_budget_set(struct efs *fs, uint64_t bytes);
/* Cut the budget into pools by the tuning of the cache state; victims go. */
void efs_budget_cut(struct efs *fs);
/* A new budget of at least the floor: shrinking evicts at once; what is leaving then, efs_budget_wait() waits for. */
void efs_budget_change(struct efs *fs, uint64_t bytes);
/* Without lock: shrink, and wait until all has gone that is not leased (at most some seconds). Bytes still above what
 * was asked for. */
uint64_t efs_budget_wait(struct efs *fs);
/* The budget or the plan is smaller now: what is above it goes, as far as nobody holds it. */
void efs_budget_shrink(struct efs *fs);
/* Without lock, before there are threads and after. */
void efs_budget_build(struct efs *fs);
void efs_budget_destroy(struct efs *fs);
void efs_budget_leave(struct efs *fs); /* in its place, in a forked process */
/* EFS_AGAIN_SEGMENTS: of those that were to leave and are empty now, begin to give one back. */
void efs_budget_retire(struct efs *fs);
bool efs_budget_is_retiring(const struct efs *fs); /* one is being given back just now */

/* ---- effective.c ---- */
/* EFS_AGAIN_BUDGET: what can be had follows what was found last, at once down, some seconds later and by a step up;
 * what is above it goes, as efs_budget_shrink(). */
void efs_budget_follow(struct efs *fs);

/* ---- budget_check.c ---- */
/* Without lock, with full.c's and arena's tables built: may a budget that somebody named be taken? held: bytes of it
 * that this process has already. -ENOMEM, with the limit and the way out in err: it is above what processes may have
 * here, and the store is large enough to take it. 0: err says whether it is above what is
 * available now, or is left as it was. */
errint_t efs_budget_check(struct efs *fs, uint64_t budget_bytes, uint64_t held_bytes, struct efs_error *err);

/* ---- supply.c ---- */
/* Without lock: get what turns may need; see efs_hooks. May wait for another thread that does. gone_bytes: so much of
 * what is counted as held has just been given back to the system; who says so takes it off both counts then. */
void efs_supply(struct efs *fs, uint64_t gone_bytes);
/* Without lock: look how much memory is left, though nobody asks for it. */
void efs_supply_look(struct efs *fs);
/* With lock held, both: -EAGAIN: as efs_defer_supply(), not now. */
/* The chunk pool has one more segment, which the caller has room for: 0, -EAGAIN, -ENOMEM. */
errint_t efs_supply_segment(struct efs *fs);
/* Is there memory for so much more, whatever the budget says? 0, -EAGAIN, -ENOMEM. */
errint_t efs_supply_memory(struct efs *fs, uint64_t bytes);

/* ---- prefault.c ---- */
/* EFS_AGAIN_PREFAULT: something was wanted that was not there. If the chunk pool will soon want more segments, have
 * their pages ready. */
void efs_prefault(struct efs *fs);

/* ---- prealloc.c ---- */
void efs_prealloc(struct efs *fs); /* without lock, before anybody reads, and after the first plan */

#endif
