/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - the experts of a mount, for client.c.
 *
 * client/ gives a runtime the experts of a mount or of a store, by the same calls. gpu/, compute/ and runtimes (ggml/,
 * runmoe/, moe-replay/ and bench_gpu/ of tools/) call it. It never takes efs.lock and never includes a header of a room
 * that serves a store.
 *
 * The experts of a mount are received over its socket, or, if a process cannot connect to it, are files that worker
 * threads open and map. They are shared by requests, and open until evicted.
 *
 *     mount.c          creation and end
 *     mount_request.c  requests: start, waiting, drops
 *     mount_notify.c   notifications of uses; mount_routing.c: chosen and predicted experts
 *     maintenance.c    the thread that closes files and sends notifications
 *     open_workers.c   the threads that open files
 *     export*.c        experts that the mount exports over its socket
 *     experts.c        the table of experts: their layouts; which of them the mount's policy protects
 *     files.c          the files of experts, their users, idle ones
 *     mapping.c        one file; file_layout.c, coded_layout.c, tensor_metadata.c: layouts
 *
 * One lock (efs_mount.lock) guards all of it; it is never held during a system call that may block.
 */
#ifndef EFS_CLIENT_MOUNT_H
#define EFS_CLIENT_MOUNT_H

#include "export.h"
#include "mapping.h"
#include "request.h"

#include <pthread.h>
#include <sys/queue.h>
#include <unistd.h>

#define EFS_MOUNT_BUCKETS 4096u
#define EFS_USES_BYTES 16384u
#define EFS_NO_LIST 1u /* no list was received yet: experts have 0 */
#define EFS_MOUNT_OPEN_WORKERS 64u
#define EFS_MOUNT_EXPERTS 512u /* per request: the limit of a line of .expertfs/want */

/* An expert that was requested, or that the mount has listed. Freed with the mount. */
struct efs_expert {
    LIST_ENTRY(efs_expert) same_hash;
    struct efs_expert_key key;
    LIST_HEAD(, efs_expert_file) files;            /* that requests may share */
    struct efs_file_layout *layout, *coded_layout; /* of its file and its coded form; NULL: not known */
    uint32_t list;                                 /* the last list of protected experts that has it */
};

/* The memory of an expert: a file, or received over the socket. Shared when it is ready; a file that is being opened,
 * too. One that the mount is to send belongs to its request alone until it is received: a request that waits for memory
 * holds none. If it loses its last user before, the request is cancelled. */
struct efs_expert_file {
    struct efs_expert *expert;
    LIST_ENTRY(efs_expert_file) sibling; /* in expert->files */
    TAILQ_ENTRY(efs_expert_file) link;   /* in open_queue, idle or close_queue */
    LIST_HEAD(, efs_mount_item) waiting; /* items of requests, until it is ready */
    uint32_t refs;                       /* number of items; 0 and ready: it is idle */
    enum efs_form form;                  /* EFS_FORM_ANY: not received yet */
    bool ready;
    struct efs_mapped_file mapped;
    struct efs_exported_expert exported; /* set if received over the socket, instead of opened */
};
TAILQ_HEAD(efs_file_list, efs_expert_file);

struct efs_mount {
    int root, want;            /* descriptors of the directory and .expertfs/want; < 0: not writable */
    struct efs_export *export; /* NULL: no socket, files are opened */
    bool no_view;              /* experts/ belongs to the checkpoint and has no expert files */
    bool receiving;            /* a thread is in efs_export_receive() */
    bool keep_auto;            /* EFS_KEEP_AUTO: keep the experts that the mount keeps full (experts.c) */
    unsigned open_workers_max;

    pthread_mutex_t lock;
    pthread_cond_t arrived, open_wake, closed; /* for waiting threads; open workers; those that lack descriptors */
    LIST_HEAD(, efs_expert) experts[EFS_MOUNT_BUCKETS];
    uint32_t expert_count;
    struct efs_file_list open_queue, close_queue, idle; /* idle: the least recently used first */
    uint64_t keep_bytes, idle_bytes;                    /* keep_bytes: limit; idle_bytes: now */
    uint32_t list, protected; /* for keep_auto: number of the last complete list; its experts */
    uint32_t listed;          /* experts of the list that is being received, */
    uint64_t listed_bytes;    /* and their decoded bytes */
    bool listing;             /* a list was requested and is not complete */
    uint32_t idle_count;      /* files that have lost their last user since that request */
    uint32_t queued, idle_open_workers, open_worker_count;
    uint32_t open_files, closing; /* files with a descriptor; threads that close files */
    uint32_t polled;              /* LOADING items of requests with an event: maintenance receives for them */
    int wake;                     /* eventfd of the maintenance thread */
    bool maintenance_receives, stop;
    pthread_t open_workers[EFS_MOUNT_OPEN_WORKERS], maintenance;
    bool maintenance_started;

    pthread_mutex_t send_lock; /* serialises writes to want and the socket; taken before lock */
    size_t uses_bytes;         /* of the packets in uses, of uses_count requests; guarded by lock */
    uint32_t uses_count;
    char uses[EFS_USES_BYTES];
};

/* A request of a mount, and its items (base/request.h). */
struct efs_mount_item {
    struct efs_client_item base;
    struct efs_mount_request *request;
    struct efs_expert *expert;          /* NULL: not in the table before the request */
    struct efs_expert_file *file;       /* while LOADING or READY, else NULL */
    LIST_ENTRY(efs_mount_item) waiting; /* LOADING: in file->waiting */
};

struct efs_mount_request {
    struct efs_client_request base;
    struct efs_mount *mount;
    struct efs_mount_item *oversize_item; /* by which the mount reported base.oversize; NULL: not oversize */
    struct efs_mount_item items[];
};

/* ---- open_workers.c ---- */
/* Starts one more. Files that are queued start more. */
errint_t efs_open_workers_start(struct efs_mount *m);
/* Ends the open workers, also if none was started; waits for files that are being opened and leaves queued ones
 * unopened. Without lock. */
void efs_open_workers_stop(struct efs_mount *m);
/* Queues a file, which its expert then shares, to be opened. Lock held. */
void efs_file_queue(struct efs_mount *m, struct efs_expert_file *file);
/* Handles a file that the mount did not export, with this error: it is queued to be opened; one that must be coded
 * fails. The file has no tag any more. Lock held. */
void efs_file_fall_back(struct efs_mount *m, struct efs_expert_file *file, errint_t error);

/* ---- maintenance.c ---- */
errint_t efs_maintenance_start(struct efs_mount *m);
/* Ends the thread, also if it was not started, after the open workers have ended: evicts all files and sends all
 * notifications. Without lock. */
void efs_maintenance_stop(struct efs_mount *m);
/* Wakes the thread that polls this eventfd: the maintenance thread, because files must be closed or notifications sent,
 * or that in efs_export_receive(), because a file or a waiter has changed without a packet. */
static inline void efs_mount_signal(int eventfd)
{
    const uint64_t one = 1;
    ssize_t n = write(eventfd, &one, sizeof(one)); /* fails only when it is readable already */
    (void)n;
}

/* ---- mount_notify.c ---- */
/* Sends all that is queued on the calling thread; unless block, the maintenance thread is woken for what would block.
 * Without lock. */
void efs_mount_flush(struct efs_mount *m, bool block);
/* Queues a notification that these experts of a layer are used. Lock held. false: no room now. */
bool efs_mount_notify_later(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                            uint32_t count, enum efs_form form);

/* ---- experts.c: with lock held ---- */
/* NULL: not in the table. */
struct efs_expert *efs_expert_find(const struct efs_mount *m, const struct efs_expert_key *key);
/* Finds or adds it. NULL: no memory, or the table is full. */
struct efs_expert *efs_expert_add(struct efs_mount *m, const struct efs_expert_key *key);
/* A file of the expert in a form that a request allows: the full one if it is ready, else the coded one, else the full
 * one that is being opened. NULL: none. */
struct efs_expert_file *efs_expert_shared_file(const struct efs_expert *expert, enum efs_form form);
/* Moves the layout that was parsed with a file to *known, which is one of its expert's. */
void efs_expert_keep_layout(struct efs_file_layout **known, struct efs_mapped_file *mapped);
/* Whether a file without users may stay open. */
bool efs_file_is_protected(const struct efs_mount *m, const struct efs_expert_file *file);
/* Handles a packet of the list of experts that the mount keeps full; the last packet replaces the previous list. false:
 * no list was requested. */
bool efs_protected_set_receive(struct efs_mount *m, const struct efs_export_kept *packet);
/* Whether a list is to be requested. */
bool efs_protected_set_is_old(const struct efs_mount *m);
/* Empties the set: no idle file stays open then. */
void efs_protected_set_clear(struct efs_mount *m);

/* ---- files.c: with lock held ---- */
void efs_file_ref(struct efs_mount *m, struct efs_expert_file *file);
void efs_file_unref(struct efs_mount *m, struct efs_expert_file *file);
/* Completes the open of a file, with 0 or an error, which frees it. */
void efs_file_opened(struct efs_mount *m, struct efs_expert_file *file, errint_t error);
/* Closes, unmaps and frees all files and experts. */
void efs_files_free(struct efs_mount *m);
/* Passes the least recently used files without users to the maintenance thread until at most keep_bytes are idle. true:
 * some were passed. */
bool efs_files_trim(struct efs_mount *m, uint64_t keep_bytes);
/* The same with files of this size in all, at least one. */
bool efs_files_free_bytes(struct efs_mount *m, uint64_t bytes);
/* The same with all idle files that are not protected, and those above keep_bytes. */
void efs_files_evict_unprotected(struct efs_mount *m);
/* Changes the state of an item, with the error of FAILED. The caller removes it from file->waiting. */
void efs_mount_item_set(struct efs_mount_item *item, enum efs_item_state state, errint_t error);
/* The mount has reported that the experts of the item's request do not fit into its memory at once, or that they do. */
void efs_mount_item_set_oversize(struct efs_mount_item *item, bool oversize);
/* Closes these files on the calling thread; releases the lock meanwhile. */
void efs_mount_close_files(struct efs_mount *m);

/* ---- mount.c ---- */
/* Takes over root, also after an error. */
errint_t efs_mount_new(int root, uint64_t keep_bytes, unsigned threads, struct efs_mount **mount,
                       struct efs_error *err);
/* forked: in a forked process, closes the child's descriptors and mappings; does not notify the mount or wait for
 * threads. */
void efs_mount_free(struct efs_mount *mount, bool forked);

/* ---- mount_request.c ---- */
/* As efs_client_begin(); the caller sets the request's owner. */
errint_t efs_mount_begin(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                         uint32_t count, enum efs_form form, struct efs_client_request **request,
                         struct efs_error *err);

/* ---- mount_routing.c ---- */
/* efs_client_state(). Without lock. */
char efs_mount_state(const struct efs_mount *m, const struct efs_expert_key *key);
/* efs_observe() and efs_hint(), after efs_routing_check(). */
errint_t efs_mount_routing(struct efs_mount *m, const struct efs_routing *routing, bool hint, struct efs_error *err);

#endif
