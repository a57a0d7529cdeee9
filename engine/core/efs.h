/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efs.h - struct efs: the store, its threads, one lock, deferred work, the numbers of the budget.
 *
 * core/ has the state that the rooms of a served store share, its lock, and the work that is deferred until the lock is
 * released. trace/, cache/, budget/, planner/, prefetch/, fetch/, control/ and serve/ call it; client/ calls its check
 * for forked processes. It never includes a header of these rooms, which it calls only through struct efs_hooks, and
 * never does I/O itself.
 *
 * A room's own state is behind its pointer.
 *
 * One lock (efs.lock) guards all members that change after the start and are not atomic; it is never held during I/O,
 * decoding or a callback.
 */
#ifndef EFS_EFS_H
#define EFS_EFS_H

#include "account.h"
#include "arena.h"
#include "expertfs-clock-private.h"
#include "deferred.h"
#include "expertfs-private.h"
#include "layout.h"
#include "owner.h"
#include "queue.h"
#include "store.h"
#include "view.h"
#include "workers.h"

#include <pthread.h>

struct efs_stats_counters; /* stats.h */

struct efs {
    struct efs_owner owner;
    struct efs_store *store;
    struct efs_options options;
    size_t shard_bytes_max; /* bytes of the pages that the chunks of the largest shard touch */
    struct efs_view view;
    struct efs_stats_counters *stats;
    struct efs_workers *workers;
    struct efs_io_queue *io;
    struct efs_local *local;         /* NULL: none */
    bool fill_local;                 /* the setting local_fill, until local is open */
    struct efs_error local_error;    /* why it could not be opened */
    struct efs_estimator *estimator; /* current rates of reads and decodes */

    pthread_mutex_t lock; /* use efs_lock() and efs_unlock() */
    size_t copied_bytes;  /* since it was taken: efs_copy_locked() */
    struct efs_deferred deferred;
    const struct efs_hooks *hooks;
    struct efs_job blocking_job; /* deferred work of the I/O thread's critical sections that may block */
    bool blocking_pushed;        /* blocking_job is queued */
    bool queue_starts;           /* a thread starts what the admission queue has admitted */
    bool growing;                /* a job prepares segments or reads the memory that is left; waiters for memory are
                                    retried at its end */
    pthread_cond_t drained;      /* signalled when in_flight reaches 0 while closing */
    _Atomic unsigned in_flight;  /* loads, reads and leases in flight, and 1 until the store is closed */
    bool closing;
    uint32_t items_waiting; /* experts of requests that wait for memory */
    /* The first of these requests waits for memory that loads and decodes in flight use: no load starts before it. */
    bool admission_starved;
    uint32_t coded_pinned;  /* coded experts that clients hold or that are being loaded for it */
    struct efs_arena arena; /* memory of the chunk pool */
    struct efs_account account;

    struct efs_extents *extents;
    struct efs_fragments *fragments; /* NULL: the store has no page checksums */
    struct efs_slots *slots;
    struct efs_full_pool *full;
    struct efs_demotion *demotion;
    struct efs_cache *cache;
    struct efs_budget *budget;
    struct efs_plan_thread *plan_thread;
    struct efs_placed *placed; /* NULL: without option placement */
    struct efs_prefetcher *prefetcher;
    struct efs_leases *leases;
    struct efs_record *record;
};

static inline bool efs_is_this_process(const struct efs *fs)
{
    return efs_owner_is_this_process(&fs->owner);
}

/* For assertions: whether a thread holds the lock. */
static inline bool efs_is_locked(const struct efs *fs)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&fs->lock;
    if (pthread_mutex_trylock(lock) != 0)
        return true;
    pthread_mutex_unlock(lock);
    return false;
}

/* Starts or ends an operation that efs_close() waits for. Ending it must be the caller's last use of efs.
 * efs_in_flight_end() without lock. */
void efs_in_flight_begin(struct efs *fs);
void efs_in_flight_end(struct efs *fs);
void efs_in_flight_end_locked(struct efs *fs);

/* Charges bytes to the budget, as fixed; with lock held. false: the rest would not hold the memory that is pinned now,
 * or an expert of expert_bytes. */
bool efs_charge_fixed(struct efs *fs, uint64_t bytes, uint64_t expert_bytes);

void efs_log(const struct efs *fs, enum efs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
