/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efs.h - what the rooms that serve a store share: the store, its threads, one lock, what follows from a turn with it,
 * and the numbers of the budget. What a room has for itself is behind its pointer.
 *
 * One lock (efs.lock) guards all but what is set once at the start; it is never held over I/O, decoding or a callback.
 */
#ifndef EFS_EFS_H
#define EFS_EFS_H

#include "account.h"
#include "arena.h"
#include "clock.h"
#include "deferred.h"
#include "disk.h"
#include "expertfs-private.h"
#include "layout.h"
#include "owner.h"
#include "stats.h"
#include "store.h"
#include "view.h"
#include "workers.h"

#include <pthread.h>

struct efs {
    struct efs_owner owner;
    struct efs_store *store;
    struct efs_options options;
    struct efs_view view;
    struct efs_stats_counters stats;
    struct efs_workers *workers;
    struct efs_disk *disk;
    struct efs_estimator *estimator; /* what reads and decodes take now */

    pthread_mutex_t lock; /* by efs_lock() and efs_unlock() */
    struct efs_deferred deferred;
    const struct efs_hooks *hooks;
    struct efs_job rest_job;    /* what follows from turns of the I/O thread and is not for it */
    bool rest_pushed;           /* that job is */
    bool lines_begin;           /* a thread begins what waited in a line */
    bool supply_failed;         /* the system did not have it; once told, it is tried again */
    _Atomic bool supply_wanted; /* before the next turn */
    pthread_cond_t quiet;       /* signalled when active reaches 0 while closing */
    _Atomic unsigned active;    /* loads, reads and leases under way, and one until it is closed */
    bool closing;
    bool budget_auto;                       /* the user left the budget to us */
    uint32_t leases_waiting, coded_waiting; /* for room */
    struct efs_arena arena;                 /* the chunk pool's memory */
    struct efs_account account;

    struct efs_extents *extents;
    struct efs_full_pool *full;
    struct efs_demotion *demotion;
    struct efs_cache *cache;
    struct efs_budget *budget;
    struct efs_plan_thread *plan_thread;
    struct efs_guessing *guessing;
    struct efs_leases *leases;
    struct efs_record *record;
};

static inline bool efs_is_here(const struct efs *fs)
{
    return efs_owner_is_here(&fs->owner);
}

/* One more, one fewer thing under way: efs_close() waits for them. To end one is the last that is done with efs,
 * without lock. */
void efs_active_begin(struct efs *fs);
void efs_active_end(struct efs *fs);
void efs_active_end_locked(struct efs *fs);

void efs_log(const struct efs *fs, enum efs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
