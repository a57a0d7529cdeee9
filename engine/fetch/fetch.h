/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.h - requests of experts: admitted, loaded, held until dropped.
 *
 * fetch/ serves requests: it loads experts and ranges of files, and grants leases on experts. client/, serve/, all
 * rooms of the daemon except base/, and runmoe call it. It never submits a read itself (core/ does when efs.lock is
 * released) and never calls a policy: cache/ does.
 *
 *     request.c         checks a request, allocates all of it, begins it; drops
 *     admission.c       the queue of requests that wait for memory
 *     fit.c             whether experts fit into memory next to those that are held
 *     reserve.c         takes all memory that an item will ever hold, or nothing
 *     load.c            reads and decodes admitted items; answers and releases them
 *     request_memory.c  tensors and windows of the experts that a request holds
 *     lease.c           leases on full experts for opens of their files
 *     routing.c         finds experts; reports their uses, and what callers choose or predict
 *     read.c            reads of files; read_rows.c: of rows of a table
 *     slot.c            reads past the extents, through slots
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
#include "efs.h"
#include "expertfs-private.h"
#include "extent.h"
#include "full.h"
#include "request.h"

#include <sys/queue.h>

/* A read of raw bytes [begin, begin + bytes) of an object, which may continue in the next objects, into dst, that
 * bypasses the chunk pool (slot.h). The caller keeps it allocated until done() is called. */
struct efs_uncached {
    struct efs_uncached *next; /* in the queue for a slot */
    uint32_t object, extent;   /* extent: of a small read */
    uint64_t begin;
    size_t bytes;
    uint8_t *dst;
    bool small;     /* by the pages that it needs, if they are good: efs_small_serves() */
    bool may_block; /* of a small read: the calling thread may wait for the disk */
    /* Called once, without lock, on a worker; for a small read possibly on its caller's thread, before it returns. 0,
     * -EUCLEAN, the read's error. May free the struct. */
    void (*done)(struct efs *fs, struct efs_uncached *read, errint_t error);
};

/* One extent of an item. */
struct efs_part {
    struct efs_extent_waiter waiter;
    struct efs_request_item *item;
    uint64_t file_offset;        /* of its raw bytes in the expert's file */
    struct efs_uncached span;    /* its raw bytes in the object, and their read if the extent has no memory */
    uint32_t shards, next_shard; /* guarded by request->lock, as is ready */
    bool ready;                  /* the extent is in memory and referenced: its shards may be decoded */
    _Atomic uint32_t done_shards;
    _Atomic uint8_t gate; /* of two events that have not happened: it was loaded, or failed; its item was started */
};

/* What an item has got in a critical section that admits it (reserve.c). */
enum efs_item_got { EFS_GOT_NOTHING, EFS_GOT_CODED, EFS_GOT_LEASE, EFS_GOT_FILLING, EFS_GOT_MEMFILE };

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
    bool was_loading; /* when it was dropped */
    bool was_full;    /* it was full, in a memory file that does not serve this use, and was evicted for it */
    bool held;        /* counted in request->held and that of its holder; guarded by efs.lock */
    struct efs_memfile *memfile; /* full, in the item that fills it: reserved; NULL: to be allocated */
    struct efs_part *parts;      /* of request->parts */
    uint32_t part_count;
    _Atomic uint32_t remaining; /* parts that are being loaded, and one until all are requested */
    _Atomic errint_t load_error;
    _Atomic bool from_disk;
    struct efs_tensor *tensors; /* with their shards and names, in one allocation */
    uint32_t tensor_count;
};

struct efs_held {      /* bytes of experts that were admitted together, and not dropped; guarded by efs.lock */
    uint64_t bytes[2]; /* by form: FULL, CODED */
};

static inline bool efs_held_some(struct efs_held held)
{
    return held.bytes[EFS_FORM_CODED] || held.bytes[EFS_FORM_FULL];
}

struct efs_holder {
    _Atomic uint32_t refs;
    struct efs_held held; /* in all of its requests */
};

struct efs_request {
    struct efs_client_request base; /* its oversize is guarded by request->lock and efs.lock */
    struct efs *fs;
    struct efs_request *next; /* in the admission queue */
    /* in leases->holding, while a request of a thread of this process holds experts; guarded by efs.lock */
    LIST_ENTRY(efs_request) holding;
    pthread_mutex_t lock; /* guards items, refs and job_next; taken after efs.lock */
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
    _Atomic bool waited; /* it was not admitted as a whole when it was first tried */
    bool is_short;       /* when the queue was last tried, it was not admitted, for want of memory */
    bool in_line;        /* it holds some of its items, and waits for the next in the order of the queue */
    uint32_t passed;     /* later requests that were admitted while it waited as the first */
    uint32_t waiting;    /* items in the admission queue; guarded by efs.lock, as are is_short, in_line and passed */
    uint32_t job_next;
    /* In the same allocation, after the items: the parts of all items in order of priority; a job for each shard. */
    struct efs_part *parts;
    struct efs_load_job *jobs;
    struct efs_request_item items[];
};

static inline struct efs_request *efs_request_of(const struct efs_client_request *request)
{
    return (struct efs_request *)(uintptr_t)request; /* base is its first member */
}

/* What leases and requests hold of an expert. It is the handle of all leases, which struct efs_full counts. */
struct efs_lease {
    struct efs *fs;
    uint32_t expert;
    uint32_t coded_pins; /* coded items of requests that hold it or are loading it; guarded by efs.lock */
    uint8_t marks;       /* of fit.c, by form; 0 while the lock is free */
};

/* A leased expert keeps its memory file, so no lock is needed. */
static inline struct efs_memfile *efs_lease_memfile(const struct efs_lease *lease)
{
    return efs_full_of(lease->fs, lease->expert)->memfile;
}

struct efs_leases {
    struct efs_lease *at;                /* by expert */
    EFS_QUEUE(struct efs_request) queue; /* the admission queue; linked by next */
    LIST_HEAD(, efs_request) holding;    /* requests of threads of this process that hold experts */
    bool awaits_flight;                  /* the first one waits for memory that is in flight or being freed */
    bool is_short;                       /* efs_memory_short() */
    bool progressed;                     /* since the last call of on_short */
    uint64_t least_pinned;               /* bytes since the last progress; UINT64_MAX: none waits for other programs */
    efs_memory_short_fn *on_short;       /* of efs_on_memory_short() */
    void *on_short_arg;
    /* Opens to be loaded as one request, newest first, and the job that takes the list, queued while it is not empty.
     * Opens are added with the lock and taken without (lease.c). */
    _Atomic(struct efs_open *) open_list;
    struct efs_job coalesce_job;
    enum efs_memfile_kind last_use; /* use of the last requested lease: EXPORTED or WINDOW */
};

/* ---- admission.c: with efs.lock held ---- */
/* Appends a request and admits what it can. */
void efs_admission_enqueue(struct efs *fs, struct efs_request *request);
void efs_admission_run(struct efs *fs); /* admits requests in order while there is memory */
/* efs_hooks.is_live: whether requests and extents that wait will be retried. True whenever the lock is released: if
 * something waits, then memory is pinned by a request that has all that it needs, or in flight, or being freed. */
bool efs_admission_is_live(const struct efs *fs);
/* Takes waiting items off the queue; they end with this error when the lock is released. dropped: the DROPPED items of
 * this request; NULL: items of requests for other processes, if chosen() is true for their argument. Not of a request
 * that waits for its own drops, unless the error is -ECANCELED. Returns their number. */
uint32_t efs_admission_cancel(struct efs *fs, const struct efs_request *dropped, efs_cancelled_fn *chosen,
                              errint_t error);

/* A thread waits for a request of the queue without a limit: sets base.stuck of one if the threads that hold all memory
 * wait for each other. */
void efs_admission_blocked(struct efs *fs);

/* ---- fit.c: with efs.lock held ---- */
/* The bytes that the program of a request holds in all of its requests. An expert in two of them counts twice. */
struct efs_held efs_program_held(const struct efs *fs, const struct efs_request *request);
/* Whether the rest of a request waits for memory that other programs pin, or that is in use. */
bool efs_request_waits_for_others(const struct efs *fs, const struct efs_request *request);
/* Whether several items wait that cannot be in memory at once, even if nothing else is. A single one is admitted
 * whenever nothing is pinned. */
bool efs_request_is_oversize(const struct efs *fs, const struct efs_request *request);
/* Whether all experts that a request waits for are pinned for other requests, so that they need no memory. */
bool efs_request_is_pinned(const struct efs *fs, const struct efs_request *request);
/* Whether those that are admitted next fit into memory with experts of these sizes, if nothing else is pinned. */
bool efs_request_fits_next_to(const struct efs *fs, const struct efs_request *request, struct efs_held held);
/* Whether memory that was not got, for this reason of efs_items_reserve(), becomes available by drops only: blocks of
 * the chunk pool may be in use by pinned experts alone, in which the bytes that are left are too scattered. */
bool efs_memory_is_held(const struct efs *fs, errint_t why);
/* Whether a request waits for memory that other requests of its thread hold: it does not fit next to them; or nothing
 * else is pinned, and it was not admitted. A thread that waits for it alone would wait for ever. What the request
 * itself holds does not matter, as threads of a team drop that. */
bool efs_request_is_stuck(const struct efs *fs, const struct efs_request *request);
/* The same for a request that holds some of its experts, by what it and the other requests of its thread hold: the
 * number of its experts that wait; 0: it is not so. Of a request for another process only what it holds itself counts,
 * as the threads of that process are not known. */
uint32_t efs_request_waits_for_drops(const struct efs *fs, const struct efs_request *request);

/* The last request in the queue of a thread that holds experts, if all pinned memory is held by threads that wait
 * without a limit, none of them for its own drops alone, and nothing is in flight: then they wait for each other. NULL:
 * not so. */
const struct efs_request *efs_deadlocked(const struct efs *fs);

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

/* ---- load.c: with efs.lock held ---- */
/* The memory that an item takes. Coded: bytes of its chunks. */
uint64_t efs_item_bytes(const struct efs *fs, const struct efs_request_item *item);
/* Sets whether the item is counted as held: until it is dropped, or fails. */
void efs_item_set_held(struct efs *fs, struct efs_request_item *item, bool held);
/* Charges the bytes of a coded expert to its first item, and releases them with its last. */
void efs_item_coded_pin(struct efs *fs, const struct efs_request_item *item);
void efs_item_coded_unpin(struct efs *fs, const struct efs_request_item *item);
/* One more lease on a READY expert; ends it. The caller closes *fd, if it is changed. */
void efs_lease_get(struct efs *fs, uint32_t expert);
/* Releases a READY item, or one that has just completed: its lease, or its references on extents. *fd: see
 * efs_full_unlease(). */
void efs_item_release(struct efs_request_item *item, int *fd);
/* The item is answered with this error, or 0, after the lock is released. */
void efs_item_defer_answer(struct efs *fs, struct efs_request_item *item, errint_t error);
/* Without lock: */
void efs_item_set(struct efs_request_item *item, enum efs_item_state state, errint_t error);
void efs_request_unref(struct efs_request *request); /* drops a reference */
/* Bytes of the parts and jobs of an expert. */
size_t efs_expert_load_bytes(const struct efs *fs, uint32_t expert);
/* Sets up the parts and jobs of all items, in the memory after these. */
void efs_request_add_parts(struct efs_request *request);
/* Requests the extents of an item that was admitted, and defers its reads. With efs.lock held; efs_item_start() follows
 * without. */
void efs_item_request_parts(struct efs_request_item *item);
/* Prepares the memory of the item: the memory file of a full one. Then decodes the parts that are in memory, and each
 * other part when it is loaded. May free the request. Without lock. */
void efs_item_start(struct efs *fs, struct efs_task *task);

/* ---- lease.c: without lock ---- */
/* Before threads are started and after they have ended. -ENOMEM. */
errint_t efs_leases_build(struct efs *fs);
void efs_leases_destroy(struct efs *fs);

/* ---- routing.c: with efs.lock held ---- */
/* Experts of one layer are requested: they are pinned until efs_cache_release(), counted, and placed by the policy. As
 * efs_cache_request(). */
void efs_use_experts(struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_use_kind kind);
/* Bytes of an expert are read. As efs_cache_read(). */
void efs_use_bytes(struct efs *fs, uint32_t expert, uint64_t bytes);

/* ---- read.c ---- */
/* The bytes of a file from an offset on that are of one object and in one extent; EFS_NONE: of the header of an
 * expert's file. The offset is in the file. */
struct efs_file_span {
    struct efs_view_location at;
    uint32_t extent;
    uint64_t bytes;
};
struct efs_file_span efs_file_span(const struct efs *fs, uint32_t file, uint64_t offset);

/* ---- slot.c ---- */
#define EFS_SMALL_BYTES (32u << 10) /* the limit of a small read */
/* With lock held: whether these bytes, inside the extent, can be a small read. */
bool efs_small_serves(const struct efs *fs, uint32_t extent, uint32_t object, uint64_t begin, size_t bytes);
/* Makes or starts the read, or queues it for a slot. Without lock; never fails. The caller keeps the store open until
 * done(). */
void efs_uncached_read(struct efs *fs, struct efs_uncached *read);
/* Memory of all slots, bytes: part of the fixed memory. */
uint64_t efs_slots_bytes(const struct efs *fs);
/* Without lock, before threads are started and after they have ended. -ENOMEM. */
errint_t efs_slots_build(struct efs *fs);
void efs_slots_destroy(struct efs *fs);

/* ---- request_memory.c ---- */
errint_t efs_item_tensors(struct efs_request_item *item);
/* The memory file of a leased expert as a window: as efs_request_window(); open: as efs_request_open_window(). */
errint_t efs_lease_window(const struct efs_lease *lease, bool open, struct efs_window *window);

#endif
