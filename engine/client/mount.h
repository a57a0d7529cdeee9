/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - the experts of a mount, for client.c.
 *
 * client/ gives a runtime the experts of a mount or of a store, by the same calls. gpu/, compute/ and runtimes (ggml/,
 * runmoe/, moe-replay/ and bench_gpu/ of tools/) call it. It never takes efs.lock and never includes a header of a room
 * that serves a store.
 *
 * The experts of a mount are received over its socket. They are shared by requests, and held until evicted.
 *
 *     mount.c          creation and end
 *     mount_request.c  requests: start, waiting, drops
 *     mount_notify.c   notifications of uses; mount_routing.c: chosen and predicted experts
 *     maintenance.c    the thread that drops idle files when the mount needs their memory, and sends notifications
 *     export*.c        experts that the mount exports over its socket
 *     experts.c        the table of experts: their layouts; which of them the mount's policy protects
 *     files.c          the files of experts, their users, idle ones
 *     file_layout.c, coded_layout.c, tensor_metadata.c: layouts
 *
 * One lock (efs_mount.lock) guards all of it; it is never held during a system call that may block.
 */
#ifndef EFS_CLIENT_MOUNT_H
#define EFS_CLIENT_MOUNT_H

#include "expert_key.h"
#include "export.h"
#include "request.h"

#include <pthread.h>
#include <sys/queue.h>
#include <unistd.h>

#define EFS_MOUNT_BUCKETS 4096u
#define EFS_USES_BYTES 16384u
#define EFS_NO_LIST 1u         /* no list was received yet: experts have 0 */
#define EFS_MOUNT_EXPERTS 512u /* per request: the limit of a line of .expertfs/want */

/* An expert that was requested, or that the mount has listed. Freed with the mount. */
struct efs_expert {
    LIST_ENTRY(efs_expert) same_hash;
    struct efs_expert_key key;
    LIST_HEAD(, efs_expert_file) files;            /* that requests may share */
    struct efs_file_layout *layout, *coded_layout; /* of its file and its coded form; NULL: not known */
    uint32_t list;                                 /* the last list of protected experts that has it */
};

/* The memory of an expert. Shared when it is ready; until it is received it belongs to its request alone: a request
 * that waits for memory holds none. If it loses its last user before, the request is cancelled. */
struct efs_expert_file {
    struct efs_expert *expert;
    LIST_ENTRY(efs_expert_file) sibling; /* in expert->files */
    TAILQ_ENTRY(efs_expert_file) link;   /* in idle */
    LIST_HEAD(, efs_mount_item) waiting; /* items of requests, until it is ready */
    uint32_t refs;                       /* number of items; 0 and ready: it is idle */
    enum efs_form form;                  /* EFS_FORM_ANY: not received yet */
    bool ready;
    struct efs_mapped_file mapped;
    struct efs_exported_expert exported;
};
TAILQ_HEAD(efs_file_list, efs_expert_file);

struct efs_mount {
    int root; /* descriptor of the directory */
    struct efs_export *export;
    bool no_view;   /* experts/ belongs to the checkpoint and has no expert files */
    bool receiving; /* a thread is in efs_export_receive() */
    bool keep_auto; /* EFS_KEEP_AUTO: keep the experts that the mount keeps full (experts.c) */

    pthread_mutex_t lock;
    pthread_cond_t arrived; /* for waiting threads */
    LIST_HEAD(, efs_expert) experts[EFS_MOUNT_BUCKETS];
    uint32_t expert_count;
    struct efs_file_list idle;       /* the least recently used first */
    uint64_t keep_bytes, idle_bytes; /* keep_bytes: limit; idle_bytes: now */
    uint32_t list, protected;        /* for keep_auto: number of the last complete list; its experts */
    uint32_t listed;                 /* experts of the list that is being received, */
    uint64_t listed_bytes;           /* and their decoded bytes */
    bool listing;                    /* a list was requested and is not complete */
    uint32_t idle_count;             /* files that have lost their last user since that request */
    uint32_t polled;                 /* LOADING items of requests with an event: maintenance receives for them */
    int wake;                        /* eventfd of the maintenance thread */
    bool maintenance_receives, stop;
    pthread_t maintenance;
    bool maintenance_started;

    pthread_mutex_t send_lock; /* serialises writes to the socket; taken before lock */
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

/* ---- maintenance.c ---- */
errint_t efs_maintenance_start(struct efs_mount *m);
/* Ends the thread, also if it was not started: evicts all files and sends all notifications. Without lock. */
void efs_maintenance_stop(struct efs_mount *m);
/* Wakes the thread that polls this eventfd: the maintenance thread, because notifications must be sent,
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
/* "experts/L03/E017.safetensors", "experts/encoder-L03/E017.safetensors". Without lock. */
void efs_expert_path(const struct efs_expert_key *key, char path[EFS_EXPERT_PATH]);
/* NULL: not in the table. */
struct efs_expert *efs_expert_find(const struct efs_mount *m, const struct efs_expert_key *key);
/* Finds or adds it. NULL: no memory, or the table is full. */
struct efs_expert *efs_expert_add(struct efs_mount *m, const struct efs_expert_key *key);
/* A file of the expert in a form that a request allows: the full one, else the coded one. NULL: none. */
struct efs_expert_file *efs_expert_shared_file(const struct efs_expert *expert, enum efs_form form);
/* Moves the layout that was parsed with a file to *known, which is one of its expert's. */
void efs_expert_keep_layout(struct efs_file_layout **known, struct efs_mapped_file *mapped);
/* Whether a file without users may be kept. */
bool efs_file_is_protected(const struct efs_mount *m, const struct efs_expert_file *file);
/* Handles a packet of the list of experts that the mount keeps full; the last packet replaces the previous list. false:
 * no list was requested. */
bool efs_protected_set_receive(struct efs_mount *m, const struct efs_export_kept *packet);
/* Whether a list is to be requested. */
bool efs_protected_set_is_old(const struct efs_mount *m);
/* Empties the set: no idle file is kept then. */
void efs_protected_set_clear(struct efs_mount *m);

/* ---- files.c: with lock held ---- */
void efs_file_ref(struct efs_mount *m, struct efs_expert_file *file);
void efs_file_unref(struct efs_mount *m, struct efs_expert_file *file);
/* The file was received: it is ready, and shared. */
void efs_file_received(struct efs_mount *m, struct efs_expert_file *file);
/* The file was not received, and has no tag any more: its items fail with this error. Frees it. */
void efs_file_failed(struct efs_expert_file *file, errint_t error);
/* Drops and frees all files and experts. */
void efs_files_free(struct efs_mount *m);
/* Drops the least recently used files without users until at most keep_bytes are idle. */
void efs_files_trim(struct efs_mount *m, uint64_t keep_bytes);
/* The same with files of this size in all, at least one. */
void efs_files_free_bytes(struct efs_mount *m, uint64_t bytes);
/* The same with all idle files that are not protected, and those above keep_bytes. */
void efs_files_evict_unprotected(struct efs_mount *m);
/* Changes the state of an item, with the error of FAILED. The caller removes it from file->waiting. */
void efs_mount_item_set(struct efs_mount_item *item, enum efs_item_state state, errint_t error);
/* The mount has reported that the experts of the item's request do not fit into its memory at once, or that they do. */
void efs_mount_item_set_oversize(struct efs_mount_item *item, bool oversize);

/* ---- mount.c ---- */
/* Takes over root, also after an error. */
errint_t efs_mount_new(int root, uint64_t keep_bytes, struct efs_mount **mount, struct efs_error *err);
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
