/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.h - the receiving side of the socket over which a mount exports experts (expertfs-protocol.h): experts are in
 * windows that stay mapped. With efs_mount.lock held, unless stated otherwise.
 */
#ifndef EFS_EXPORT_H
#define EFS_EXPORT_H

#include "expertfs.h"
#include "expertfs-protocol.h"
#include "file_layout.h"

#include <sys/queue.h>
#include <time.h>

struct efs_expert_file;
struct efs_mount;

#define EFS_EXPORT_BUCKETS 256u

/* The tag and memory of an expert that the mount has exported. */
struct efs_exported_expert {
    uint32_t tag;
    struct efs_export_window *window;  /* full: its window */
    struct efs_export_window **places; /* coded: the windows of E and SM of each extent; NULL: none */
    uint32_t place_count;
    uint8_t *body;                   /* coded: the received parts, until all are received; NULL: no memory */
    uint32_t body_bytes, body_total; /* body_bytes: received; body_total: of all parts */
};

/* The packets that the mount sends. */
union efs_export_incoming {
    struct efs_export_head head;
    struct efs_export_answer answer;
    struct efs_export_coded coded;
};

/* Pages of the arrays are used from the first tag on that needs them. */
struct efs_export {
    int fd, kick;        /* socket; eventfd */
    bool failed;         /* the socket has failed; nothing is requested any more */
    uint32_t tag_count;  /* tags that were ever free, or used */
    uint32_t free_count; /* of free_tags */
    uint32_t queued;     /* elements of queue */
    uint32_t unmapped;   /* of these, EFS_EXPORT_UNMAPPED: at most EFS_EXPORT_ITEMS */
    uint32_t window_count;
    LIST_HEAD(, efs_export_window) windows[EFS_EXPORT_BUCKETS];
    TAILQ_HEAD(, efs_export_window) windows_by_use; /* the least recently used first */
    struct efs_expert_file *files[EFS_EXPORT_TAGS]; /* by tag; NULL: free */
    uint32_t free_tags[EFS_EXPORT_TAGS];
    struct {
        uint32_t kind, number; /* EFS_EXPORT_DROP or CANCEL of a tag, UNMAPPED of a window: to be sent */
    } queue[EFS_EXPORT_TAGS + EFS_EXPORT_ITEMS];
    _Alignas(8) uint8_t incoming[EFS_EXPORT_MESSAGE_BYTES]; /* the message that is being received */
};

static inline bool efs_export_works(const struct efs_export *export)
{
    return !export->failed;
}
/* The file with this tag; NULL: none. */
static inline struct efs_expert_file *efs_export_file(const struct efs_export *export, uint32_t tag)
{
    return tag < export->tag_count ? export->files[tag] : NULL;
}

/* Queues a drop or cancellation of a tag, or an unmapped window, to be sent. */
static inline void efs_export_queue(struct efs_export *export, enum efs_export_kind kind, uint32_t number)
{
    if (export->queued ==
        sizeof(export->queue) / sizeof(export->queue[0])) /* the mount has answered what was not sent */
        return;
    export->queue[export->queued].kind = kind;
    export->queue[export->queued++].number = number;
}

/* ---- export_connect.c: without lock ---- */
/* Connects to the mount's socket. -errno. */
errint_t efs_export_connect(int root, struct efs_export **export, struct efs_error *err);
/* Closes the socket and, if the data is whole, frees all files and unmaps all windows. forked: in a forked process,
 * whose parent goes on to use the socket. NULL is fine. */
void efs_export_free(struct efs_export *export, bool forked, bool whole);

/* ---- experts.c ---- */
/* Whether `count` tags are free. */
bool efs_export_has_tags(const struct efs_export *export, uint32_t count);
/* Assigns a tag, which is free, to a file before it is requested. */
void efs_export_alloc_tag(struct efs_export *export, struct efs_expert_file *file);
/* Makes a tag free that the mount knows nothing of. */
void efs_export_free_tag(struct efs_export *export, uint32_t tag);
/* Releases the tag and memory of a file that is no longer used; the mount is notified with the next packet. */
void efs_export_drop(struct efs_export *export, struct efs_expert_file *file);
/* Cancels the request of a file in flight. The tag and the file are freed when the mount has answered that. */
void efs_export_cancel(struct efs_export *export, struct efs_expert_file *file);
/* Releases the memory of a coded expert, received or not. */
void efs_export_free_coded(struct efs_exported_expert *exported);
/* Whether packets are to be sent by efs_mount_flush(): tags were dropped or cancelled. */
bool efs_mount_has_unsent(const struct efs_mount *m);

/* ---- export_windows.c ---- */
struct efs_export_window *efs_window_find(struct efs_export *export, uint32_t number);
/* The window that a packet names. A new one is mapped, from its descriptor. NULL: that failed, or there is none (fd <
 * 0); the window is reported as unmapped. */
struct efs_export_window *efs_window_take(struct efs_export *export, const struct efs_export_answer *packet, int fd);
/* Reports a window as unmapped with the next packet, so that the mount sends its descriptor again with the next expert
 * in it. */
void efs_window_report_unmapped(struct efs_export *export, uint32_t number);
/* Adds a user to the window; a window without users may be unmapped. */
void efs_window_get(struct efs_export *export, struct efs_export_window *window);
/* Removes a user. */
void efs_window_put(struct efs_export *export, struct efs_export_window *window);
void efs_window_unmap_all(struct efs_export *export);

/* ---- export_send.c ---- */
/* Returns an empty packet of this kind. Without lock. */
struct efs_export_ask efs_export_packet(enum efs_export_kind kind);
/* Sets the size in the head of a packet, from the number of its items. Without lock. */
void efs_export_end_packet(struct efs_export_ask *packet);
/* Sends queued packets, then `last` (NULL: none). flags: 0, or MSG_DONTWAIT: -EAGAIN if the socket is full. Other
 * errors: it does not work any more. With efs_mount.send_lock held, without lock. */
errint_t efs_export_send(struct efs_mount *m, const struct efs_export_head *last, int flags);

/* ---- export.c ---- */
/* The mount has exited or sent an invalid packet: stops using the socket; files in flight fail. */
void efs_export_fail(struct efs_mount *m);
/* Waits for packets until this time (NULL: no limit) and handles them; releases the lock while it waits. One thread at
 * a time; returns early when kick is signalled. -ETIMEDOUT. */
errint_t efs_export_receive(struct efs_mount *m, const struct timespec *until);
/* Handles all packets that have arrived. */
void efs_export_receive_ready(struct efs_mount *m);

#endif
