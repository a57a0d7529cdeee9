/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred.h - efs.lock, and what follows from a turn with it. Functions that hold the lock put what is to follow here;
 * leaving the lock works it off, in one order, so that no change has to know what it means for others:
 *
 *   with the lock   who waits for what may have changed looks again (EFS_AGAIN_...), until nothing new comes of it
 *   without         reads are submitted, jobs pushed, memory given back, full experts and fetches begun, leases
 *                   answered
 *
 * What a turn may need of the system is got before it begins (supply()), but for turns of the I/O thread. Where that
 * was not enough, who needs more waits in a line and looks again after the next supply.
 *
 * What is worked off without the lock may come to take it, and may call the user: nobody who leaves efs.lock holds
 * another lock that these need.
 */
#ifndef EFS_DEFERRED_H
#define EFS_DEFERRED_H

#include "expertfs.h"

#include <stdbool.h>

struct efs;
struct efs_disk_request;
struct efs_fetch;
struct efs_full_waiter;
struct efs_job;
struct efs_memfile;

/* A list that keeps the order in which its elements came, linked by their `next`. */
#define EFS_QUEUE(type)                                                                                                \
    struct {                                                                                                           \
        type *head, **tail;                                                                                            \
    }
#define EFS_QUEUE_INIT(queue) ((queue)->head = NULL, (queue)->tail = &(queue)->head)
#define EFS_QUEUE_PUT(queue, element)                                                                                  \
    ((element)->next = NULL, *(queue)->tail = (element), (queue)->tail = &(element)->next)

/* Who looks again, in this order. */
enum efs_again {
    EFS_AGAIN_BUDGET,   /* what is above the budget goes */
    EFS_AGAIN_EXTENTS,  /* extents that wait for memory */
    EFS_AGAIN_MOVE,     /* what nobody uses in segments that leave */
    EFS_AGAIN_SEGMENTS, /* segments that leave and may be empty now */
    EFS_AGAIN_PREFAULT, /* something was wanted that was not there: the pool may soon want more segments */
    EFS_AGAIN_REST,     /* the disk may rest: what is guessed is read, empty memory filled */
    EFS_AGAIN_LEASES,   /* leases that wait for room */
    EFS_AGAIN_CODED,    /* coded experts that do */
    EFS_AGAIN_PLAN,     /* what a plan depends on has changed */
    EFS_AGAIN_COUNT
};

enum efs_job_order { EFS_JOB_FIRST, EFS_JOB_NORMAL, EFS_JOB_LOW, EFS_JOB_ORDERS }; /* as workers.h has them */

struct efs_deferred {
    bool any;       /* of what follows but for again */
    bool supply;    /* who waits for memory looks again after the next supply */
    unsigned again; /* bits by enum efs_again */
    EFS_QUEUE(struct efs_disk_request) reads;
    EFS_QUEUE(struct efs_job) jobs[EFS_JOB_ORDERS];
    EFS_QUEUE(struct efs_memfile) memfiles;  /* to be freed */
    uint64_t memfile_bytes;                  /* that they have */
    EFS_QUEUE(struct efs_full_waiter) fills; /* leases whose expert is to be brought: begun as one batch with ... */
    EFS_QUEUE(struct efs_fetch) fetches;     /* ... these */
    EFS_QUEUE(struct efs_full_waiter) answers;
    bool look;       /* reads under way are demand now, or cancelled */
    bool from_lines; /* some fetches are of leases or coded experts that waited */
};

/* What the rooms ask of those above them, set once by who knows all rooms (serve.c). With lock held but for the last
 * four. */
struct efs_hooks {
    void (*again[EFS_AGAIN_COUNT])(struct efs *fs);
    /* efs_budget_add_segment(), efs_budget_has_segment() */
    errint_t (*add_segment)(struct efs *fs);
    bool (*has_segment)(struct efs *fs);
    /* a layer asks for these (numbers in the policy's layer); before the policy hears of it */
    void (*saw)(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count);
    void (*warmed)(struct efs *fs, uint32_t extent, errint_t error); /* a load of warming has ended */
    /* before each turn: what it may need and must not get with the lock. freed: there is more memory than a moment ago
     */
    void (*supply)(struct efs *fs, uint64_t gone_bytes);
    /* a load of efs_extents_guess() has ended, whoever wanted it in the end; cancelled: -ECANCELED */
    void (*guessed)(struct efs *fs, uint32_t expert, errint_t error);
    /* a layer asks for these, and for how many tokens (NULL: one each); named: for all that it needs, else for others
     * one by one. Before memory changes for them */
    void (*asked)(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                  bool named);
    void (*free_memfiles)(struct efs *fs, struct efs_memfile *memfiles);
    void (*begin)(struct efs *fs, struct efs_full_waiter *fills, struct efs_fetch *fetches);
    void (*answer)(struct efs *fs, struct efs_full_waiter *answers);
};

void efs_lock(struct efs *fs);
void efs_unlock(struct efs *fs);
/* The same in a completion on the I/O thread, which must not block: nothing is got of the system before the turn, and
 * of what follows without the lock reads are submitted and jobs pushed; a worker does the rest. */
void efs_lock_completion(struct efs *fs);
void efs_unlock_completion(struct efs *fs);

/* With the lock held: */
void efs_deferred_init(struct efs_deferred *deferred);
void efs_again(struct efs *fs, enum efs_again who);
void efs_defer_read(struct efs *fs, struct efs_disk_request *request);
void efs_defer_look(struct efs *fs); /* efs_disk_look() */
/* Something that supply() gets is wanting. -EAGAIN: who waits for memory looks again when it was there; -ENOMEM: the
 * system did not have it the last time. */
errint_t efs_defer_supply(struct efs *fs);
void efs_defer_job(struct efs *fs, struct efs_job *job, enum efs_job_order order);
/* Rooms put what is of their own types on these by EFS_DEFER; bytes: of memory files. */
#define EFS_DEFER(fs, queue, element) ((fs)->deferred.any = true, EFS_QUEUE_PUT(&(fs)->deferred.queue, element))

#endif
