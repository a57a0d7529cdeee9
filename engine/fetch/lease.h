/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - inside the engine: asking for leases, one by one or as a request. With efs.lock held unless said otherwise.
 */
#ifndef EFS_LEASE_H
#define EFS_LEASE_H

#include "fetch.h"

struct efs_leases {
    struct efs *fs;
    struct efs_lease *handles;                   /* by expert */
    uint32_t *coded_holds;                       /* by expert: coded items of requests that hold it, or will */
    struct efs_full_waiter *queue, **queue_tail; /* those that wait for room: fs->leases_waiting */
    /* Opens that are to be brought together, the last one first, and who does that, queued while there are some: put
     * there with the lock, taken without (lease_open.c). */
    _Atomic(struct efs_full_waiter *) gathered;
    struct efs_job gather_job;
    enum efs_memfile_kind last_use;                       /* that a lease was asked for: SHOWN or WINDOW */
    struct efs_request_item *coded_waiting, **coded_tail; /* coded experts that do: fs->coded_waiting (coded_line.c) */
    _Atomic uint8_t *brought; /* by expert, a bit for each form: comes, and nobody comes for it (request.c) */
};

/* One who asks for a lease; owned by lease.c from efs_lease_ask() until done was called. Its expert is held in the
 * state already (efs_cache_request). */
struct efs_full_waiter {
    struct efs_full_waiter *next;        /* in a line, or among those that are to be begun or answered */
    struct efs_full_waiter *next_waiter; /* for the same expert */
    uint32_t expert;
    enum efs_memfile_kind use;   /* PRIVATE: as it comes */
    errint_t error;              /* with which done is to be called */
    struct efs_memfile *memfile; /* of the one that has its expert filled: taken for it; NULL: to be made */
    bool fresh;                  /* it has no pages yet */
    efs_leased_fn *done;
    void *arg;
};

/* Of any use. NULL: no memory. Free with free() if it was not asked for. */
struct efs_full_waiter *efs_lease_waiter(uint32_t expert, efs_leased_fn *done, void *arg);
/* Ask: it is answered at once, or when the expert was brought, or waits for room: all of it after the lock. Counts as
 * one thing under way (efs.active) until done. */
void efs_lease_ask(struct efs *fs, struct efs_full_waiter *w);

void efs_leases_retry(struct efs *fs); /* EFS_AGAIN_LEASES: waiting leases may have room now */
void efs_coded_retry(struct efs *fs);  /* EFS_AGAIN_CODED: the same for coded experts (coded_line.c) */

/* What the leases of an expert that is held are: its memory file as a window. As efs_request_window(). */
struct efs_window;
errint_t efs_lease_window(const struct efs_lease *lease, struct efs_window *window);
errint_t efs_lease_open_window(const struct efs_lease *lease, struct efs_window *window);
void efs_coded_stats(const struct efs *fs, struct efs_stats *stats);

/* Without lock, before there are threads and after. -ENOMEM. */
errint_t efs_leases_build(struct efs *fs);
void efs_leases_destroy(struct efs *fs);

/* Without lock, of efs_hooks: call done of all of these; begin these as one batch, also those that are wanted
 * coded. */
void efs_lease_answer(struct efs *fs, struct efs_full_waiter *answers);
void efs_lease_begin_all(struct efs *fs, struct efs_full_waiter *fills, struct efs_fetch *fetches);

#endif
