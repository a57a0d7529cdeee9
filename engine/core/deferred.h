/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred.h - efs.lock, and the work that is deferred until it is released. A critical section is one hold of the
 * lock. Functions that hold the lock queue deferred work here; efs_unlock() runs it in a fixed order, so that the code
 * that changes state need not know what depends on it:
 *
 *     with the lock      if something has changed, retries of all waiters (struct efs_hooks), until nothing changes
 *     without the lock   free memory, submit reads, push jobs, run tasks
 *
 * A critical section allocates no memory: a job on a worker does, and the waiter is retried at its end (efs.growing).
 *
 * Deferred work that runs without the lock may take it, and may call callbacks of the user: a thread must not release
 * efs.lock while it holds another lock that these need.
 */
#ifndef EFS_DEFERRED_H
#define EFS_DEFERRED_H

#include "account.h"
#include "expertfs.h"
#include "workers.h"

#include <stdbool.h>

struct efs;
struct efs_io;
struct efs_memfile;

/* A FIFO list, linked by the elements' `next`. */
#define EFS_QUEUE(type)                                                                                                \
    struct {                                                                                                           \
        type *head, **tail;                                                                                            \
    }
#define EFS_QUEUE_INIT(queue) ((queue)->head = NULL, (queue)->tail = &(queue)->head)
#define EFS_QUEUE_PUSH(queue, element)                                                                                 \
    ((element)->next = NULL, *(queue)->tail = (element), (queue)->tail = &(element)->next)

/*
 * Changes that waiters for memory may depend on, besides those that the account and the arena note themselves
 * (efs_account.changed, efs_arena.emptied). The function that makes a change reports it, never its callers, so that
 * none is forgotten.
 */
enum efs_change {
    EFS_CHANGED_FLIGHT, /* a load has ended, or the last reference on an extent, or the last that no client holds */
    EFS_CHANGED_GROWN,  /* segments were prepared, and the memory that the system has left was read */
    EFS_CHANGED_HELD,   /* a request holds less */
    EFS_CHANGED_QUEUE,  /* an expert was taken off the admission queue */
    EFS_CHANGED_PREDICTIONS, /* some have ended */
    EFS_CHANGES
};

struct efs_changes {
    bool any;       /* something has changed since all waiters were retried */
    bool flight;    /* also a load or a reference has ended */
    bool admission; /* also something that the admission queue may wait for while nothing in flight helps it */
};

/* Work that may block or call the user, run once on the thread that releases the lock, or on a worker if that is the
 * I/O thread. Its owner keeps it allocated until run() is called, which may free it or defer it again. */
struct efs_task {
    struct efs_task *next;
    void (*run)(struct efs *fs, struct efs_task *task);
};

struct efs_deferred {
    struct efs_changes changes;
    bool any; /* any member below is set */
    EFS_QUEUE(struct efs_io) reads;
    EFS_QUEUE(struct efs_job) jobs[EFS_JOB_ORDERS];
    EFS_QUEUE(struct efs_task) tasks;
    EFS_QUEUE(struct efs_memfile) memfiles; /* to be freed */
    uint64_t memfile_bytes;                 /* bytes of these memory files */
    bool disk_changes;                      /* priorities of reads have changed, or reads were cancelled */
    bool admitted;                          /* some of tasks load experts that waited in the admission queue */
};

/* Calls from rooms to rooms above them, set by serve.c when these are built. With efs.lock held. */
struct efs_hooks {
    /* Retries after a change, in this order. */
    void (*fit_budget)(struct efs *fs);       /* evict memory above the budget; wake threads that wait for that */
    void (*admit)(struct efs *fs);            /* requests that wait for memory */
    void (*load_extents)(struct efs *fs);     /* that wait for memory */
    void (*release_segments)(struct efs *fs); /* retiring ones that are empty */
    void (*use_idle_disk)(struct efs *fs);    /* read predicted experts, fill empty memory */
    void (*look_at_plan)(struct efs *fs);     /* plan again if its inputs have changed */
    errint_t (*add_segment)(struct efs *fs, bool may_evict); /* efs_budget_add_segment() */
    /* For assertions: whether all waiters for memory will be retried: memory is pinned, in flight or being freed */
    bool (*is_live)(const struct efs *fs);
};

void efs_lock(struct efs *fs);
void efs_unlock(struct efs *fs);
/* efs_unlock() for completions on the I/O thread, which must not block: only reads are submitted and jobs pushed; a
 * worker does the other deferred work. */
void efs_unlock_completion(struct efs *fs);

/* Copies under the lock: as many bytes in one critical section take some 10 us, for which all other threads wait. */
#define EFS_LOCKED_COPY_MAX (64u << 10)
/* Lock held, before a copy of this size: if the critical section would have copied more than EFS_LOCKED_COPY_MAX, the
 * lock is released and taken again, and what the caller has looked up may have changed. */
void efs_copy_begin(struct efs *fs, size_t bytes);
/* Lock held: memcpy(). Asserts that the critical section copies no more than EFS_LOCKED_COPY_MAX. */
void efs_copy_locked(struct efs *fs, void *to, const void *from, size_t bytes);

/* With the lock held: */
void efs_deferred_init(struct efs_deferred *deferred);
void efs_changed(struct efs *fs, enum efs_change what);
struct efs_changes efs_changes(struct efs *fs);
/* After a failed attempt has put back the memory that it took: that is no reason for another attempt of admission.
 * before: efs_changes() at its start. */
void efs_changes_undo(struct efs *fs, struct efs_changes before);
void efs_defer_read(struct efs *fs, struct efs_io *request);
void efs_defer_disk_changes(struct efs *fs); /* defers efs_io_apply_changes() */
void efs_defer_job(struct efs *fs, struct efs_job *job, enum efs_job_order order);
void efs_defer_task(struct efs *fs, struct efs_task *task, void (*run)(struct efs *fs, struct efs_task *task));
void efs_defer_free(struct efs *fs, struct efs_memfile *memfile); /* moves its bytes from FULL to RETURNING */

#endif
