/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - the experts of a mount, for client.c.
 *
 * client/ gives a runtime the experts of a mount or of a store, by the same calls. gpu/, compute/ and runtimes (ggml/,
 * runmoe/, moe-replay/ and bench_gpu/ of tools/) call it. It never takes efs.lock and never includes a header of a room
 * that serves a store.
 *
 * The experts of a mount are received over its socket, and held until the request drops them: the mount alone keeps
 * experts that are not in use, and releases them when their memory is needed.
 *
 *     client.c         the calls; client_store.c: a store in this process, the only file that links the engine
 *     mount.c          creation and end
 *     mount_request.c  requests: start, waiting, drops
 *     mount_routing.c  chosen and predicted experts; what the program has mapped, and has on a device
 *     maintenance.c    the thread that sends packets that would block, and receives for users of poll(2)
 *     export*.c        experts that the mount exports over its socket
 *     experts.c        the table of experts: their layouts, files and tags
 *     file_layout.c, coded_layout.c: layouts
 *     layers.c         the list of all experts
 *
 * One lock (efs_mount.lock) guards all of it; it is never held during a system call that may block.
 */
#ifndef EFS_CLIENT_MOUNT_H
#define EFS_CLIENT_MOUNT_H

#include "expert_key.h"
#include "expertfs-private.h"
#include "export.h"
#include "request.h"

#include <pthread.h>
#include <sys/queue.h>
#include <unistd.h>

#define EFS_MOUNT_BUCKETS 4096u
#define EFS_MOUNT_EXPERTS 512u /* per request: the limit of a line of .expertfs/want */

/* An expert that was requested. Freed with the mount. */
struct efs_expert {
    LIST_ENTRY(efs_expert) same_hash;
    struct efs_expert_key key;
    struct efs_file_layout *layout, *coded_layout; /* of its file and its coded form; NULL: not known */
};

/* The memory of an expert, for one item of a request, which waits for it until it is ready. */
struct efs_expert_file {
    struct efs_expert *expert;
    struct efs_mount_item *item; /* NULL: cancelled, and freed when the mount has answered that */
    enum efs_form form;          /* EFS_FORM_ANY: not received yet */
    bool ready;
    struct efs_mapped_file mapped;
    struct efs_exported_expert exported;
};

struct efs_mount {
    int root; /* descriptor of the directory */
    struct efs_export *export;
    bool no_view;   /* experts/ belongs to the checkpoint and has no expert files */
    bool receiving; /* a thread is in efs_export_receive() */

    pthread_mutex_t lock;
    pthread_cond_t arrived; /* for waiting threads */
    LIST_HEAD(, efs_expert) experts[EFS_MOUNT_BUCKETS];
    uint32_t expert_count;
    uint32_t polled; /* LOADING items of requests with an event: maintenance receives for them */
    int wake;        /* eventfd of the maintenance thread */
    bool maintenance_receives, stop;
    pthread_t maintenance;
    bool maintenance_started;

    pthread_mutex_t send_lock; /* serialises writes to the socket; taken before lock */
};

/* A request of a mount, and its items (base/request.h). */
struct efs_mount_item {
    struct efs_client_item base;
    struct efs_mount_request *request;
    struct efs_expert *expert;    /* NULL: not in the table before the request */
    struct efs_expert_file *file; /* while LOADING or READY, else NULL */
};

struct efs_mount_request {
    struct efs_client_request base;
    struct efs_mount *mount;
    struct efs_mount_item *oversize_item; /* by which the mount reported base.oversize; NULL: not oversize */
    struct efs_mount_item items[];
};

/* ---- maintenance.c ---- */
errint_t efs_maintenance_start(struct efs_mount *m);
/* Ends the thread, also if it was not started, and sends all that is queued. Without lock. */
void efs_maintenance_stop(struct efs_mount *m);
/* Wakes the thread that polls this eventfd: the maintenance thread, because packets must be sent, or that in
 * efs_export_receive(), because a file or a waiter has changed without a packet. */
static inline void efs_mount_signal(int eventfd)
{
    const uint64_t one = 1;
    ssize_t n = write(eventfd, &one, sizeof(one)); /* fails only when it is readable already */
    (void)n;
}
/* Sends all that is queued on the calling thread; unless block, the maintenance thread is woken for what would block.
 * Without lock. */
void efs_mount_flush(struct efs_mount *m, bool block);

/* ---- experts.c: with lock held ---- */
/* "experts/L03/E017.safetensors", "experts/encoder-L03/E017.safetensors". Without lock. */
void efs_expert_path(const struct efs_expert_key *key, char path[EFS_EXPERT_PATH]);
/* NULL: not in the table. */
struct efs_expert *efs_expert_find(const struct efs_mount *m, const struct efs_expert_key *key);
/* Finds or adds it. NULL: no memory, or the table is full. */
struct efs_expert *efs_expert_add(struct efs_mount *m, const struct efs_expert_key *key);
/* Moves the layout that was parsed with a file to *known, which is one of its expert's. */
void efs_expert_keep_layout(struct efs_file_layout **known, struct efs_mapped_file *mapped);
/* Frees all experts. */
void efs_experts_free(struct efs_mount *m);

/* The file was received: its item is ready. */
void efs_file_received(struct efs_expert_file *file);
/* The file was not received, and has no tag any more: its item fails with this error. Frees it. */
void efs_file_failed(struct efs_expert_file *file, errint_t error);
/* Ends the use of a file by its item. Not received yet: cancels it. */
void efs_file_drop(struct efs_mount *m, struct efs_expert_file *file);
/* Changes the state of an item, with the error of FAILED. */
void efs_mount_item_set(struct efs_mount_item *item, enum efs_item_state state, errint_t error);
/* The mount has reported that the experts of the item's request do not fit into its memory at once, and how many of
 * them wait for drops (EFS_EXPORT_OVERSIZE); or that they do. */
void efs_mount_item_set_oversize(struct efs_mount_item *item, bool oversize, uint32_t own_drops);

/* ---- mount.c ---- */
/* Takes over root, also after an error. */
errint_t efs_mount_new(int root, struct efs_mount **mount, struct efs_error *err);
/* forked: in a forked process, closes the child's descriptors and mappings; does not notify the mount or wait for
 * threads. */
void efs_mount_free(struct efs_mount *mount, bool forked);

/* The text of .expertfs/layers, terminated; the caller frees it. Blocks. -EUCLEAN: too large; -ENOMEM, -errno. */
errint_t efs_mount_layers(const struct efs_mount *m, char **text);

/* Content hash of the mount's store; -EINVAL: a checkpoint in place; -EPROTO: the mount does not say. */
errint_t efs_mount_hash(const struct efs_mount *m, uint64_t *hash);

/* ---- mount_request.c ---- */
/* As efs_client_begin(); the caller sets the request's owner. */
errint_t efs_mount_begin(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                         uint32_t count, enum efs_form form, struct efs_client_request **request,
                         struct efs_error *err);

/* ---- mount_routing.c ---- */
/* efs_client_state(). Without lock. */
char efs_mount_state(const struct efs_mount *m, const struct efs_expert_key *key);
/* efs_observe(), efs_hint() and efs_client_count(), after efs_routing_check(). */
errint_t efs_mount_routing(struct efs_mount *m, const struct efs_routing *routing, enum efs_routing_kind kind,
                           struct efs_error *err);
errint_t efs_mount_leave(struct efs_mount *m, uint64_t disk_bytes, struct efs_error *err); /* efs_client_leave() */
/* efs_client_report_device(). */
void efs_mount_report_device(struct efs_mount *m, struct efs_export_device *device);

#endif
