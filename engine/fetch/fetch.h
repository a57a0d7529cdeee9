/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.h - requests of experts: admitted, loaded, held until dropped.
 *
 * fetch/ serves requests: it loads experts and ranges of files, and grants leases on experts. client/, serve/, all
 * rooms of the daemon except base/, and runmoe call it. It never submits a read itself (core/ does when efs.lock is
 * released) and never calls a policy: cache/ does.
 *
 *     request_begin.c  checks a request and allocates all of it
 *     admission.c      the queue of requests that wait for memory
 *     reserve.c        takes all memory that an item will ever hold, or nothing
 *     load.c           reads and decodes admitted items
 *     lease.c          starts loads; leases on full experts; lease_coalesce.c: of opens
 *     request.c        the life of a request: loaded, reported, dropped
 *     use.c            reports uses of experts
 *     read.c           reads of files
 *     gather.c         fills memory files with checkpoint files, reads these
 *
 * A request that waits for memory holds none: the queue takes the memory of all of its items in one critical section,
 * as blocks of the chunk pool and memory files, or nothing. From then on the request waits only for the disk and the
 * CPU. So requests cannot wait for each other.
 *
 * Reads are submitted in the order of the requests, and an idle worker decodes the first shard of that order that is in
 * memory. ZipMoE's Algorithm 1 (sched/schedule/) is not used here: on a real disk it takes no less time than this
 * order.
 */
#ifndef EFS_FETCH_H
#define EFS_FETCH_H

#include "cache.h"
#include "expertfs-private.h"
#include "extent.h"
#include "full.h"
#include "request.h"
#include "uncached.h"

/* One extent of an item. */
struct efs_part {
    struct efs_extent_waiter waiter;
    struct efs_request_item *item;
    uint64_t file_offset, object_offset; /* of its raw bytes, in the expert's file and in the object */
    size_t bytes;
    uint32_t shards, next_shard, done_shards; /* guarded by request->lock, as is ready */
    bool ready;                               /* the extent is in memory and referenced: its shards may be decoded */
    bool early;                               /* it was loaded, or failed, before its item was started */
    struct efs_uncached uncached;
};

/* The parts and jobs of the items of a request. Freed when no item is loading or held coded. */
struct efs_load {
    struct efs_request *request;
    _Atomic uint32_t refs;         /* items */
    uint32_t part_count, job_next; /* job_next is guarded by request->lock */
    struct efs_load_job *jobs;     /* one per shard */
    struct efs_part parts[];       /* in order of priority */
};

/* What an item has got in a critical section that admits it (reserve.c). */
enum efs_item_got { EFS_GOT_NOTHING, EFS_GOT_CODED, EFS_GOT_LEASE, EFS_GOT_FILLING, EFS_GOT_MEMFILE };

struct efs_item_ops {                                      /* of a form */
    void (*start)(struct efs *fs, struct efs_task *task);  /* the item was admitted; without lock */
    void (*loaded)(struct efs_request_item *item);         /* remaining is 0; may free the item; without lock */
    void (*answer)(struct efs *fs, struct efs_task *task); /* reports load_error; may free the item; without lock */
};

/* An expert of a request. When loaded it has a lease (full), or references on its extents (coded). */
struct efs_request_item {
    struct efs_client_item base; /* guarded by request->lock */
    struct efs_request *request;
    struct efs_task task;                 /* starts the item, later answers it */
    struct efs_request_item *next_waiter; /* full: in the list of those that wait until the expert is filled */
    uint32_t expert;
    void *arg; /* argument of request->arrived */
    enum efs_form form;
    enum efs_item_got got;
    bool waiting;     /* in the admission queue; guarded by efs.lock */
    bool preload;     /* without a holder: released when it is loaded */
    bool started;     /* its memory is prepared; guarded by request->lock, as is efs_part.early */
    bool was_loading; /* when it was dropped */
    bool was_full;    /* it was full, in a memory file that does not serve this use, and was evicted for it */
    bool fresh;       /* memfile has no pages yet */
    bool held;        /* counted in request->held and that of its holder; guarded by efs.lock */
    struct efs_lease *lease;
    const struct efs_item_ops *ops;
    struct efs_memfile *memfile; /* full, in the item that fills it: reserved; NULL: to be allocated */
    uint64_t bytes;              /* coded: bytes of its chunks */
    struct efs_load *load;       /* NULL: its parts are not needed any more */
    struct efs_part *parts;
    uint32_t part_count;
    _Atomic uint32_t remaining; /* parts that are being loaded, and one until all are requested */
    _Atomic errint_t load_error;
    _Atomic bool from_disk;
    struct efs_tensor *tensors;
    struct efs_coded_shard *shards;
    char *names;
    uint32_t tensor_count;
};

struct efs_held { /* bytes of experts that were admitted together, and not dropped; guarded by efs.lock */
    uint64_t coded_bytes, full_bytes;
};

struct efs_holder {
    _Atomic uint32_t refs;
    struct efs_held held; /* in all of its requests */
};

struct efs_request {
    struct efs_client_request base; /* its oversize is guarded by request->lock and efs.lock */
    struct efs *fs;
    struct efs_request *next_queued; /* in the admission queue */
    pthread_mutex_t lock;            /* guards items and refs; taken after efs.lock */
    pthread_cond_t changed;
    uint32_t refs;             /* items that are being loaded, and one for the caller */
    bool together;             /* its items are held together: admitted all or none */
    enum efs_memfile_kind use; /* of its full experts */
    efs_arrived_fn *arrived;   /* the request is for other processes: each item holds a reference until dropped */
    struct efs_held held;
    struct efs_holder *holder;    /* NULL: the request alone */
    efs_oversize_fn *oversize_fn; /* called when oversize is set; may be NULL */
    /* the item by which oversize_fn was last called with true; NULL: with false, or never; guarded by efs.lock */
    struct efs_request_item *oversize_item;
    bool in_line;     /* it holds some of its items, and waits for the next in the order of the queue */
    uint32_t waiting; /* items in the admission queue; guarded by efs.lock, as is in_line */
    struct efs_request_item items[];
};

static inline struct efs_request *efs_request_of(const struct efs_client_request *request)
{
    return (struct efs_request *)(uintptr_t)request; /* base is its first member */
}

/* A lease on a full expert: one struct for each expert; struct efs_full counts its leases. */
struct efs_lease {
    struct efs *fs;
    uint32_t expert;
};

struct efs_leases {
    struct efs *fs;
    struct efs_lease *handles;           /* by expert */
    uint32_t *coded_pins;                /* by expert: coded items of requests that hold it or are loading it */
    EFS_QUEUE(struct efs_request) queue; /* the admission queue; linked by next_queued */
    uint64_t short_bytes;                /* of the first request that waits for pinned memory; 0: none does */
    efs_memory_short_fn *on_short;       /* of efs_on_memory_short() */
    void *on_short_arg;
    /* Opens to be loaded as one request, newest first, and the job that takes the list, queued while it is not empty.
     * Opens are added with the lock and taken without (lease_coalesce.c). */
    _Atomic(struct efs_open *) open_list;
    struct efs_job coalesce_job;
    enum efs_memfile_kind last_use; /* use of the last requested lease: EXPORTED or WINDOW */
    _Atomic uint8_t *preloading;    /* by expert, a bit for each form: is being loaded without a holder (request.c) */
};

/* ---- admission.c: with efs.lock held ---- */
/* Appends a request and admits what it can. */
void efs_admission_enqueue(struct efs *fs, struct efs_request *request);
void efs_admission_run(struct efs *fs); /* EFS_RETRY_ADMIT: admits requests in order while there is memory */
/* efs_hooks.is_live: whether requests and extents that wait will be retried. True whenever the lock is released: if
 * something waits, then memory is pinned by a request that has all that it needs, or in flight, or being freed. */
bool efs_admission_is_live(const struct efs *fs);
/* Takes the items for which cancelled() is true off the queue; they end with -ECANCELED when the lock is released. */
typedef bool efs_cancel_item_fn(const struct efs_request_item *item, const void *arg);
void efs_admission_cancel(struct efs *fs, efs_cancel_item_fn *cancelled, const void *arg);

/* ---- reserve.c: with efs.lock held ---- */
/* The items are of one request; those that do not wait are skipped. */
/* Takes the memory of all of them, or nothing. 0: efs_items_commit() follows in the same critical section. -EAGAIN:
 * memory is being freed, or blocks of the chunk pool are in use; -ENOMEM: the items do not fit next to pinned memory.
 */
errint_t efs_items_reserve(struct efs *fs, struct efs_request_item *items, uint32_t count);
void efs_items_commit(struct efs *fs, struct efs_request_item *items, uint32_t count);
/* The memory that a full expert needs: 0 if it is full, or being filled. */
static inline uint64_t efs_full_missing_bytes(const struct efs *fs, uint32_t expert)
{
    return efs_full_of(fs, expert)->state == EFS_FULL_NONE ? efs_memfile_bytes(fs, expert) : 0;
}
/* Whether memory for full experts that need these bytes is not available because the rest is pinned. */
bool efs_full_is_short(const struct efs *fs, uint64_t need);
/* Whether several items wait that cannot be in memory at once, even if nothing else is. A single one is admitted
 * whenever nothing is pinned. */
bool efs_items_are_oversize(const struct efs *fs, const struct efs_request_item *items, uint32_t count);
/* The memory that an item takes. */
uint64_t efs_item_bytes(const struct efs *fs, const struct efs_request_item *item);
/* Whether an item fits next to these bytes of coded and full experts, if nothing else is pinned. */
bool efs_item_fits_beside(const struct efs *fs, const struct efs_request_item *item, uint64_t coded, uint64_t full);
/* Whether all of them are pinned for other requests, so that they need no memory. */
bool efs_items_are_pinned(const struct efs *fs, const struct efs_request_item *items, uint32_t count);
/* The item holds its expert no more: it was dropped, or failed. The second time: nothing. */
void efs_item_unhold(const struct efs *fs, struct efs_request_item *item);
/* Ends the references of a coded item on its extents. */
void efs_item_unpin(struct efs *fs, struct efs_request_item *item);

/* ---- item.c ---- */
void efs_item_free_load(struct efs_request_item *item); /* does nothing the second time */
/* With efs.lock held: one more lease on a READY expert. */
void efs_lease_get(struct efs *fs, uint32_t expert);

/* With efs.lock held: the item is answered with this error, or 0, after the lock is released. */
void efs_item_defer_answer(struct efs *fs, struct efs_request_item *item, errint_t error);

/* ---- load.c ---- */
/* Allocates the parts and jobs of all items. NULL: no memory. */
struct efs_load *efs_load_new(struct efs *fs, struct efs_request_item *items, uint32_t count);
/* Requests the extents of an item that was admitted, and defers its reads. With efs.lock held; efs_item_begin() follows
 * without. */
void efs_item_request_parts(struct efs_request_item *item);
/* The memory of the item is prepared, or load_error is set: decodes the parts that are in memory, and each other part
 * when it is loaded. May free the request. Without lock. */
void efs_item_begin(struct efs_request_item *item);

/* ---- lease.c: without lock ---- */
/* Allocates the memory file of a full item; starts it. */
void efs_item_start(struct efs *fs, struct efs_task *task);
void efs_lease_filled(struct efs_request_item *item); /* its expert was loaded, or load_error is set */
/* The memory file of a leased expert as a window. As efs_request_window() and efs_request_open_window(). */
errint_t efs_lease_window(const struct efs_lease *lease, struct efs_window *window);
errint_t efs_lease_open_window(const struct efs_lease *lease, struct efs_window *window);
/* Before threads are started and after they have ended. -ENOMEM. */
errint_t efs_leases_build(struct efs *fs);
void efs_leases_destroy(struct efs *fs);

/* ---- use.c: with efs.lock held ---- */
/* Experts of one layer are requested: they are pinned until efs_cache_release(), counted, and placed by the policy. As
 * efs_cache_request(). */
void efs_use_experts(struct efs *fs, const uint32_t *experts, const uint32_t *tokens, uint32_t count,
                     enum efs_use_kind kind);
/* Bytes of an expert are read. As efs_cache_read(). */
void efs_use_bytes(struct efs *fs, uint32_t expert, uint64_t bytes);

/* ---- request.c ---- */
extern const struct efs_request_ops efs_request_ops;
/* The coded item was loaded, or load_error is set. Without lock. */
void efs_item_coded_loaded(struct efs_request_item *item);
void efs_item_answer(struct efs *fs, struct efs_task *task);
/* Drops a reference. */
void efs_request_unref(struct efs_request *request);
/* Marks an expert as being loaded without a holder. false: it is already, and must not be loaded again, which bounds
 * the queue. */
bool efs_preload_begin(struct efs *fs, uint32_t expert, enum efs_form form);
void efs_preload_end(struct efs *fs, uint32_t expert, enum efs_form form);

/* ---- request_tensors.c ---- */
errint_t efs_item_tensors(struct efs_request_item *item);
void efs_item_free_tensors(struct efs_request_item *item);

#endif
