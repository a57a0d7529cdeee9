/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred.h - efs.lock, and the work that is deferred until it is released. A critical section is one hold of the
 * lock. Functions that hold the lock queue deferred work here; efs_unlock() runs it in a fixed order, so that the code
 * that changes state need not know what depends on it:
 *
 *     with the lock      retries of all waiters that a change may affect (EFS_RETRY_...), until no retry is pending
 *     without the lock   free memory, submit reads, push jobs, start loads of requests, answer them
 *
 * A critical section allocates no memory: a job on a worker does, and the waiter is retried at its end (efs.growing).
 *
 * Deferred work that runs without the lock may take it, and may call callbacks of the user: a thread must not release
 * efs.lock while it holds another lock that these need.
 */
#ifndef EFS_DEFERRED_H
#define EFS_DEFERRED_H

#include "expertfs.h"

#include <stdbool.h>

struct efs;
struct efs_io;
struct efs_job;
struct efs_memfile;
struct efs_request_item;

/* A FIFO list, linked by the elements' `next`. */
#define EFS_QUEUE(type)                                                                                                \
    struct {                                                                                                           \
        type *head, **tail;                                                                                            \
    }
#define EFS_QUEUE_INIT(queue) ((queue)->head = NULL, (queue)->tail = &(queue)->head)
#define EFS_QUEUE_PUSH(queue, element)                                                                                 \
    ((element)->next = NULL, *(queue)->tail = (element), (queue)->tail = &(element)->next)

/* Retries, in the order in which they run. */
enum efs_retry {
    EFS_RETRY_BUDGET,   /* evict memory above the budget; wake threads that wait for the end of that */
    EFS_RETRY_ADMIT,    /* requests that wait for memory */
    EFS_RETRY_EXTENTS,  /* extents that wait for memory */
    EFS_RETRY_MOVE,     /* move or drop unused extents in retiring segments */
    EFS_RETRY_SEGMENTS, /* release retiring segments that are empty */
    EFS_RETRY_PREFAULT, /* a load was started: the pool may soon need more segments */
    EFS_RETRY_IDLE,     /* the disk may be idle: read predicted experts, fill empty memory */
    EFS_RETRY_PLAN,     /* an input of the plan has changed */
    EFS_RETRY_COUNT
};

enum efs_job_order { EFS_JOB_FIRST, EFS_JOB_NORMAL, EFS_JOB_LOW, EFS_JOB_ORDERS }; /* priorities of workers.h */

struct efs_deferred {
    bool any;         /* any member below is set, except `retries` */
    unsigned retries; /* bits by enum efs_retry */
    EFS_QUEUE(struct efs_io) reads;
    EFS_QUEUE(struct efs_job) jobs[EFS_JOB_ORDERS];
    EFS_QUEUE(struct efs_memfile) memfiles;     /* to be freed */
    uint64_t memfile_bytes;                     /* bytes of these memory files */
    EFS_QUEUE(struct efs_request_item) starts;  /* admitted, to be loaded */
    EFS_QUEUE(struct efs_request_item) answers; /* loaded or failed */
    bool disk_changes;                          /* priorities of reads have changed, or reads were cancelled */
    bool admitted;                              /* some of starts come from the admission queue */
};

/* Calls from rooms to rooms above them, set once by serve.c. With efs.lock held, except free_memfiles, start_loads and
 * complete_items. */
struct efs_hooks {
    void (*retry[EFS_RETRY_COUNT])(struct efs *fs);
    errint_t (*add_segment)(struct efs *fs, bool may_evict); /* efs_budget_add_segment() */
    /* a layer requests these experts (numbers in the policy's layer); called before the policy counts it */
    void (*plan_request)(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count);
    void (*warm_done)(struct efs *fs, uint32_t extent,
                      errint_t error); /* a load of class EFS_LOAD_WARM has completed */
    /* a load of efs_extents_prefetch() has completed, also if it became demand; cancelled: -ECANCELED */
    void (*prefetch_done)(struct efs *fs, uint32_t expert, errint_t error);
    /* a layer requests these experts, for these numbers of tokens (NULL: 1 each); named: all experts that it needs,
     * else further ones may follow. Called before memory changes for the request */
    void (*prefetch_request)(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens,
                             uint32_t count, bool named);
    /* For assertions: whether whatever waits for memory will be retried: memory is pinned, in flight or being freed */
    bool (*is_live)(const struct efs *fs);
    void (*free_memfiles)(struct efs *fs, struct efs_memfile *memfiles);
    void (*start_loads)(struct efs *fs, struct efs_request_item *starts);
    void (*complete_items)(struct efs *fs, struct efs_request_item *answers);
};

void efs_lock(struct efs *fs);
void efs_unlock(struct efs *fs);
/* efs_unlock() for completions on the I/O thread, which must not block: only reads are submitted and jobs pushed; a
 * worker does the other deferred work. */
void efs_unlock_completion(struct efs *fs);

/* With the lock held: */
void efs_deferred_init(struct efs_deferred *deferred);
void efs_retry(struct efs *fs, enum efs_retry who);
void efs_defer_read(struct efs *fs, struct efs_io *request);
void efs_defer_disk_changes(struct efs *fs); /* defers efs_io_apply_changes() */
void efs_defer_job(struct efs *fs, struct efs_job *job, enum efs_job_order order);
/* Appends an element of a room's own type to a queue of efs_deferred. */
#define EFS_DEFER(fs, queue, element) ((fs)->deferred.any = true, EFS_QUEUE_PUSH(&(fs)->deferred.queue, element))

#endif
