/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - leases on full experts within the engine, one by one or for a request. With efs.lock held unless stated
 * otherwise.
 */
#ifndef EFS_LEASE_H
#define EFS_LEASE_H

#include "expertfs-private.h"
#include "fetch.h"

struct efs_leases {
    struct efs *fs;
    struct efs_lease *handles;                   /* by expert */
    uint32_t *coded_pins;                        /* by expert: coded items of requests that hold it or are loading it */
    struct efs_full_waiter *queue, **queue_tail; /* FIFO of fs->leases_waiting leases that wait for room */
    /* Opens to be loaded as one request, newest first, and the job that takes the list, queued while it is not empty.
     * Opens are added with the lock and taken without (lease_coalesce.c). */
    _Atomic(struct efs_full_waiter *) open_list;
    struct efs_job coalesce_job;
    enum efs_memfile_kind last_use;                       /* use of the last requested lease: EXPORTED or WINDOW */
    struct efs_request_item *coded_waiting, **coded_tail; /* FIFO of fs->coded_waiting experts (coded_admission.c) */
    _Atomic uint8_t *preloading; /* by expert, a bit for each form: is being loaded without a holder (request.c) */
};

/* A request for a lease. lease.c owns it from efs_lease_request() until done has been called. The cache state holds its
 * expert already (efs_cache_request()). */
struct efs_full_waiter {
    struct efs_full_waiter *next;        /* in a queue for room, or in a list of leases to start or answer */
    struct efs_full_waiter *next_waiter; /* for the same expert */
    uint32_t expert;
    enum efs_memfile_kind use;   /* PRIVATE: any kind of memory file */
    errint_t error;              /* passed to done */
    struct efs_memfile *memfile; /* in the waiter that fills the expert: reserved; NULL: to be allocated */
    bool fresh;                  /* memfile has no pages yet */
    efs_leased_fn *done;
    void *arg;
    const void
        *client_arg; /* of an expert for a client of the socket: its argument (efs_requests_cancel()); else NULL */
};

/* A waiter for any use. NULL: no memory. Free with free() unless passed to efs_lease_request(). */
struct efs_full_waiter *efs_lease_waiter(uint32_t expert, efs_leased_fn *done, void *arg);
/* Requests a lease. It is answered after the lock is released: at once, when the expert is loaded, or after waiting for
 * room. Counts as an active operation (efs.active) until done was called. */
void efs_lease_request(struct efs *fs, struct efs_full_waiter *w);

/* Answers those that wait for room, and whose client_arg is cancelled, with -ECANCELED. */
void efs_leases_cancel(struct efs *fs, efs_cancelled_fn *cancelled);
void efs_leases_retry(struct efs *fs); /* EFS_RETRY_LEASES: starts leases that waited for room */
void efs_coded_retry(struct efs *fs);  /* EFS_RETRY_CODED: starts coded experts that waited (coded_admission.c) */

/* The memory file of a leased expert as a window. As efs_request_window() and efs_request_open_window(). */
struct efs_window;
errint_t efs_lease_window(const struct efs_lease *lease, struct efs_window *window);
errint_t efs_lease_open_window(const struct efs_lease *lease, struct efs_window *window);
void efs_coded_stats(const struct efs *fs, struct efs_stats *stats);

/* Without lock, before threads are started and after they have ended. -ENOMEM. */
errint_t efs_leases_build(struct efs *fs);
void efs_leases_destroy(struct efs *fs);

/* efs_hooks.complete_leases and efs_hooks.start_loads: calls done of all these leases; starts all these leases and
 * fetches as one batch. Without lock. */
void efs_lease_answer(struct efs *fs, struct efs_full_waiter *answers);
void efs_lease_fill_all(struct efs *fs, struct efs_full_waiter *fills, struct efs_fetch *fetches);

#endif
