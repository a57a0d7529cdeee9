/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - what a served store consists of, for the files of the engine that serve it.
 *
 * The rooms that do the work: io (the disk's thread), cache (extents, the full pool, their states), budget (who gives
 * way to whom), fetch (reads, requests, leases), trace, planner, control. Each function's file is found in
 * ARCHITECTURE.md.
 *
 * One lock (efs.lock) guards extents, arena, full pool and budget; it is never held over I/O, decoding or a callback.
 */
#ifndef EFS_SERVE_H
#define EFS_SERVE_H

#include "arena.h"
#include "deferred.h"
#include "disk.h"
#include "layout.h"
#include "expertfs.h"
#include "lru.h"
#include "memory_left.h"
#include "clock.h"
#include "memfile.h"
#include "stats.h"
#include "store.h"
#include "streams.h"
#include "view.h"
#include "workers.h"

#include <pthread.h>

/* The two components of coded weights (ZipMoE 3.1). */
enum efs_component { EFS_COMPONENT_E = 1, EFS_COMPONENT_SM = 2 };
#define EFS_BOTH ((unsigned)EFS_COMPONENT_E | (unsigned)EFS_COMPONENT_SM)

/*
 * An extent is what is read at once: some shards of one object whose E-chunks are adjacent in the store and whose
 * SM-chunks are too. An expert's tensor is one extent, or several if it is large.
 */
enum efs_extent_state { EFS_EXTENT_REST, EFS_EXTENT_NO_MEMORY, EFS_EXTENT_LOADING };
enum efs_extent_list { EFS_LIST_NONE, EFS_LIST_PROTECTED, EFS_LIST_EVICTABLE, EFS_LIST_PASSING };

#define EFS_EXTENT_SHARDS 64

struct efs_extent {
    uint32_t object, shard_first;
    uint16_t shard_count;
    uint8_t state;             /* enum efs_extent_state */
    uint8_t needs, have, keep; /* components: that it consists of, that are in memory, that the policy keeps */
    uint8_t list;              /* enum efs_extent_list */
    bool discard;              /* damaged: drop when the last reference goes */
    bool evict_first;          /* evictable, and the first to go, before the pool grows */
    bool streamed;             /* came for a sequential reader, and nobody else has asked for it */
    uint32_t refs;             /* users of the memory; an extent with users is whole and not evicted */
    uint32_t ahead_bytes;      /* that were read ahead and not used yet */
    uint32_t passing_bytes;    /* that it counts in what streams have in passing; 0: it is not theirs */
    uint32_t passed_bytes;     /* raw bytes of it that were read since it came */
    uint64_t passing_clock;    /* efs_streams.clock when it was read, or read ahead for a stream */
    struct efs_block e, sm;
    _Atomic uint64_t checked; /* a bit a shard: checksums were right */
    struct efs_link link;     /* of its list */
    struct efs_extent_waiter *waiters;
    struct efs_extent *next_no_memory;
};

/* Why an extent is loaded: somebody waits for it, a reader is expected to come to it, or there is nothing else to read.
 */
enum efs_load { EFS_LOAD_WANTED, EFS_LOAD_AHEAD, EFS_LOAD_WARM, EFS_LOADS };

/* Someone who needs an extent: its job is pushed to the workers once, with error set, or 0 and the extent referenced.
 */
struct efs_extent_waiter {
    struct efs_extent_waiter *next;
    struct efs_job job;
    /* Lock held, not NULL where the extent being here means jobs of the waiter's own: it defers these, and its job is
     * not pushed. false: the job is, as ever. */
    bool (*loaded)(struct efs *fs, struct efs_extent_waiter *waiter);
    uint32_t extent;
    errint_t error;
};

/* One expert in the full pool. */
enum efs_full_state { EFS_FULL_NONE, EFS_FULL_FILLING, EFS_FULL_READY };
struct efs_full {
    uint8_t state;            /* enum efs_full_state */
    bool kept;                /* by the policy's cache state: in the list of those, else evictable */
    uint32_t leases, readers; /* readers: copying out of it right now */
    struct efs_memfile *memfile;
    struct efs_full_waiter *waiters;
    struct efs_link link; /* READY experts by last use, of the kept or of the evictable */
};

struct efs_extent_load;

struct efs_extent_move { /* the component that moves out of a segment that leaves */
    struct efs_job job;
    struct efs *fs;
    uint32_t extent;
    enum efs_component component;
    struct efs_block to;
    bool busy;
};

struct efs_retirement { /* the segment that is being unpinned, to be returned */
    struct efs_disk_request request;
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

struct efs {
    struct efs_store *store;
    struct efs_options options;
    struct efs_view view;
    struct efs_stats_counters stats;
    struct efs_workers *workers;
    struct efs_disk *disk;

    struct efs_extent *extents;
    uint32_t extent_count;
    uint32_t *object_extent; /* first extent of each object; one more entry at the end */
    size_t extent_max_bytes; /* coded bytes of an extent at most (one shard at least) */

    pthread_mutex_t lock; /* by efs_lock() and efs_unlock() */
    struct efs_deferred deferred;
    const struct efs_deferred_steps *steps;
    bool lines_begin;     /* a thread begins what waited in a line */
    pthread_cond_t quiet; /* signalled when active reaches 0 while closing */
    struct efs_arena arena;
    struct efs_lru protected_extents, evictable_extents, passing_extents;
    struct efs_streams streams;
    uint64_t passing_bytes; /* of all extents */
    struct efs_extent *no_memory, **no_memory_tail;
    uint64_t ahead_bytes, ahead_max_bytes; /* read ahead and not used yet; never more than that */
    struct efs_full *full;                 /* by expert, as lease_handles */
    struct efs_lease *lease_handles;
    struct efs_lru protected_full, evictable_full;
    struct efs_memfiles memfiles;
    struct efs_memory_left memory_left;
    uint64_t fresh_bytes;              /* of memfiles that are being filled and have no pages yet */
    struct efs_memfile *free_memfiles; /* not SHOWN, pages kept, for other experts */
    enum efs_memfile_kind last_use;    /* that a lease was asked for: SHOWN or WINDOW */
    struct efs_full_waiter *lease_queue, **lease_queue_tail; /* leases that wait for room */
    struct efs_full_waiter *gathered;                        /* leases that are to be brought together */
    struct efs_job gather_job;
    bool gathering;                         /* the job is queued or runs */
    struct efs_request_item *coded_waiting; /* coded experts that wait for others to be dropped */
    uint64_t coded_bytes;                   /* of those that are handed out or on their way */
    uint64_t fixed_bytes, full_bytes;       /* of the budget: never given back; memfiles, free ones included */
    uint64_t freeing_bytes;                 /* memfiles that a thread gives back just now */
    uint64_t floor_segments;                /* of the chunk pool: always left to it */
    uint64_t planned_segments;              /* of the chunk pool: what the plan needs */
    struct efs_cache *cache;
    struct efs_demotion *demotion;
    struct efs_plan_thread *plan_thread;
    struct efs_record *record;
    struct efs_warming *warming;     /* NULL: off */
    uint32_t loads[EFS_LOADS];       /* under way */
    struct efs_estimator *estimator; /* what reads and decodes take now */
    _Atomic int schedule;            /* enum efs_schedule_kind */
    bool budget_auto;                /* the user left the budget to us */
    uint64_t segments_leaving;       /* retiring */
    struct efs_retirement retirement;
    struct efs_extent_move move;
    struct efs_extent_load *idle_loads; /* that ended */
    struct efs_next_segment next_segment;
    _Atomic unsigned active; /* loads, reads and leases under way, and one until it is closed */
    bool closing;
    _Atomic uint64_t *touches; /* by expert: how often it was asked for */
    uint64_t *expert_bytes;    /* by expert: coded */
    uint32_t extent_ready_count, full_ready_count, leased_count, filling_count;
    uint64_t leased_bytes, leased_evictable_bytes; /* of leased experts; of those that the policy does not keep full */
};

/* ---- extent.c ---- */
/* How many there are with fs->extent_max_bytes, which is known first. */
uint32_t efs_extents_count(const struct efs *fs);
errint_t efs_extents_build(struct efs *fs, struct efs_error *err);
/* A reference goes. used_up: nobody will come back for it soon, so that it goes before others do and before the pool
 * grows. _put() without lock, _unref() with lock held. */
void efs_extent_put(struct efs *fs, uint32_t extent, bool used_up);
void efs_extent_unref(struct efs *fs, uint32_t extent, bool used_up);
/* Raw bytes [begin, begin + bytes) of the extent's object, all inside the extent, into dst; the extent is referenced.
 * Chunks are checked before their first use. 0, -EUCLEAN. */
errint_t efs_extent_decode(struct efs *fs, uint32_t extent, uint64_t begin, size_t bytes, void *dst, bool stream,
                           struct efs_codec_scratch *scratch);
/* Check the chunks of a shard of the extent (counted from its first) without decoding it; the extent is referenced. */
errint_t efs_extent_check(struct efs *fs, uint32_t extent, uint32_t shard);
bool efs_extent_checked(const struct efs *fs, uint32_t extent); /* all of them */
bool efs_extent_shard_checked(const struct efs *fs, uint32_t extent, uint32_t shard);
/* Can efs_extent_decode() do without scratch? */
bool efs_extent_decodes_inline(const struct efs *fs, uint32_t extent);
/* The extent that holds raw byte `offset` of the object, and the byte after its last. */
uint32_t efs_extent_at(const struct efs *fs, uint32_t object, uint64_t offset, uint64_t *end);
uint64_t efs_extent_begin(const struct efs *fs, uint32_t extent); /* its first raw byte in the object */
/* With lock held: */
/* true: the extent is in memory and referenced; false: waiter->job comes later. */
bool efs_extent_ask(struct efs *fs, uint32_t extent, struct efs_extent_waiter *waiter);
/* The same for bytes of it and a reader of that pace: what a scan brings is in passing, what others ask for is not any
 * more. */
bool efs_extent_ask_paced(struct efs *fs, uint32_t extent, enum efs_pace pace, size_t bytes,
                          struct efs_extent_waiter *waiter);
/* Start loading the extents of a group without waiting, as far as there is room for read-ahead. */
void efs_group_ahead(struct efs *fs, uint32_t group);
/* The components that the policy keeps of an expert's extents; 0: all of them become evictable. */
void efs_extents_keep(struct efs *fs, uint32_t expert, unsigned components);
/* The components that all extents of an expert have; *some: any extent has any. */
unsigned efs_extents_have(const struct efs *fs, uint32_t expert, bool *some);
bool efs_extents_loading(const struct efs *fs, uint32_t expert); /* or waiting for memory: any of them */
/* Drop the oldest evictable components without users; only_evict_first: only of those that go first. NONE: there are
 * none, IN_USE: all there are have users. */
enum efs_evicted { EFS_EVICTED_NONE, EFS_EVICTED_ONE, EFS_EVICTED_IN_USE };
enum efs_evicted efs_extents_evict(struct efs *fs, bool only_evict_first);
/* Start loading it for a stream. false: it has all the memory that streams may take. */
bool efs_extent_ahead_passing(struct efs *fs, uint32_t extent);
/* It came for a stream, which has turned out to be a scan: it is in passing. */
void efs_extent_pass(struct efs *fs, uint32_t extent);
/* Drop the oldest kept extent without users, and tell the cache state. false: none. */
bool efs_extents_evict_protected(struct efs *fs);
void efs_extent_wait_for_memory(struct efs *fs, uint32_t extent); /* it waits for memory, in line */
void efs_extents_retry(struct efs *fs);                           /* EFS_AGAIN_EXTENTS */
void efs_extent_loads_free(struct efs *fs);
/* EFS_AGAIN_MOVE: what nobody uses leaves the segments that leave: to others, if it is kept. */
void efs_extents_move(struct efs *fs);

/* ---- budget.c ---- */
/* Without lock: the budget as it is now. efs_set() changes it under everybody's feet. */
uint64_t efs_budget_now(struct efs *fs);
/* With lock held: */
uint64_t efs_budget_used(const struct efs *fs);
/* The same if the chunk pool had so many segments, should it have fewer. */
uint64_t efs_budget_used_with(const struct efs *fs, uint64_t segments);
/* Make room for one more segment, without taking it from a full expert that is kept. 0; -EAGAIN: room is on its way;
 * -ENOMEM. */
errint_t efs_budget_reserve_segment(struct efs *fs);
/* Is there room for one more segment as it is, within the plan, with nothing that must go? */
bool efs_budget_has_segment(const struct efs *fs);
/* Bytes of chunks that clients may hold at once: component of what the chunk pool has by the plan or, should the plan
 * give it little, a quarter of the budget, for which full experts give way. */
uint64_t efs_budget_coded(const struct efs *fs);
/* Make room for a memfile of bytes more, or leave a free one for that use: gives up free memfiles, segments above the
 * plan, evictable experts, kept ones that nobody holds, then segments down to the floor. What goes leaves later
 * (-EAGAIN: waiting leases are then tried again; -EBUSY: it is under way and takes a moment); -ENOMEM: everything is
 * held. */
errint_t efs_budget_reserve_full(struct efs *fs, uint64_t bytes, enum efs_memfile_kind use);
/* What follows from a budget of at least the floor: segments that the chunk pool always keeps, how far to read ahead.
 */
void efs_budget_set(struct efs *fs, uint64_t bytes);
/* Without lock: shrink, and wait until all has gone that is not leased (at most some seconds). Bytes still above. */
uint64_t efs_budget_wait(struct efs *fs);
/* The budget or the plan is smaller now: what is above it goes, as far as nobody holds it. */
void efs_budget_shrink(struct efs *fs);
/* EFS_AGAIN_SEGMENTS: of those that were to leave and are empty now, begin to give one back. */
void efs_budget_retire(struct efs *fs);

/* ---- budget_check.c ---- */
/* Without lock, with full.c's and arena's tables built: may a budget that somebody named be taken? held: bytes of it
 * that this process has already. -ENOMEM, with the limit and the way out in err: it is above what processes may have
 * here, and the store is large enough to take it. A budget above what is available now is told in the log. */
errint_t efs_budget_check(struct efs *fs, uint64_t budget_bytes, uint64_t held_bytes, struct efs_error *err);

/* ---- prefault.c ---- */
/* With lock held: something was wanted that was not there. If the chunk pool will soon want more segments, have their
 * pages ready. */
void efs_prefault(struct efs *fs);

/* ---- full.c ---- */
errint_t efs_full_build(struct efs *fs);
void efs_full_destroy(struct efs *fs);
/* With lock held: if the expert is full: its bytes, held until efs_full_unpin(). Else NULL. */
const uint8_t *efs_full_pin(struct efs *fs, uint32_t expert);
void efs_full_unpin(struct efs *fs, uint32_t expert);
/* With lock held: drop the oldest expert that nobody holds, of the evictable or of the kept ones. false: none. */
bool efs_full_evict_oldest(struct efs *fs, bool kept);
/* With lock held: nobody has it leased: it can be evicted, now or when it was copied from. */
bool efs_full_may_go(const struct efs_full *full);
/* With lock held: a READY expert that nobody holds is in memory that cannot be used so, because it is the other kind.
 */
bool efs_full_must_leave(const struct efs_full *full, enum efs_memfile_kind use);
/* With lock held: if so, it leaves it; the cache state are not told. false: it stays. */
bool efs_full_leave_for(struct efs *fs, uint32_t expert, enum efs_memfile_kind use);
/* With lock held: the expert is, or is not any more, kept full by the cache state. */
void efs_full_keep(struct efs *fs, uint32_t expert, bool kept);
void efs_full_drop_free_memfiles(struct efs *fs, uint64_t bytes);
/* With lock held: is there memory of that size that the next expert can take over as it is, for that use? */
bool efs_full_has_free_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use);
size_t efs_memfile_bytes(const struct efs *fs, uint32_t expert); /* of its memory: whole pages */
/* With lock held: a place for a memfile of that size, not SHOWN: *memfile is a free one, PRIVATE or, if that is the
 * use, a WINDOW; NULL: a new one is to be made and is counted already. As efs_budget_reserve_full() else. */
errint_t efs_memfile_take(struct efs *fs, size_t bytes, enum efs_memfile_kind use, struct efs_memfile **memfile);
/* With lock held: an expert's memory is free again: for the next one, or for the kernel. */
void efs_full_give_back(struct efs *fs, struct efs_memfile *memfile);
/* The list of the kept or of the evictable that a READY expert stands in. */
struct efs_lru *efs_full_list(struct efs *fs, const struct efs_full *full);

/* ---- prealloc.c ---- */
void efs_prealloc(struct efs *fs); /* without lock, before anybody reads; waits for the first plan */

/* ---- lease.c ---- */
errint_t efs_leases_build(struct efs *fs); /* -ENOMEM */
void efs_leases_destroy(struct efs *fs);
void efs_leases_retry(struct efs *fs); /* EFS_AGAIN_LEASES, lock held: waiting leases may have room now */

/* ---- request.c ---- */
void efs_coded_retry(struct efs *fs); /* EFS_AGAIN_CODED: the same for coded experts */

/* One more, one fewer thing under way: efs_close() waits for them. To end one is the last that is done with efs,
 * without lock. */
void efs_active_begin(struct efs *fs);
void efs_active_end(struct efs *fs);
void efs_active_end_locked(struct efs *fs);

void efs_log(const struct efs *fs, enum efs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
