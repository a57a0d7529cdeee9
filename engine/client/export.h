/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.h - the receiving side of the socket over which a mount exports experts (expertfs-protocol.h): experts are in
 * windows that stay mapped, without opening or mapping files. With efs_mount.lock held, unless stated otherwise.
 */
#ifndef EFS_EXPORT_H
#define EFS_EXPORT_H

#include "expertfs.h"
#include "expertfs-protocol.h"

#include <time.h>

struct efs_expert_file;
struct efs_mount;
struct efs_export_window;
struct efs_export;

#define EFS_NO_TAG EFS_EXPORT_NOTIFY
#define EFS_NOTIFY_BATCH 16u /* requests whose uses are reported at once */

/* The tag and memory of an expert that the mount has exported. */
struct efs_exported_expert {
    uint32_t tag;                      /* EFS_NO_TAG: not exported */
    struct efs_export_window *window;  /* full: its window */
    struct efs_export_window **places; /* coded: the windows of E and SM of each extent; NULL: none */
    uint32_t place_count;
    uint8_t *body;                   /* coded: the received parts, until all are received; NULL: no memory */
    uint32_t body_bytes, body_total; /* body_bytes: received; body_total: of all parts */
};

/* Connects to the mount's socket; keeps: a second time, to keep idle files. NULL: not accessible to this process; files
 * are used. Without lock. */
struct efs_export *efs_export_connect(int root, bool keeps);
/* Closes the socket and unmaps all windows, after efs_files_free(). Without lock. NULL is fine. */
void efs_export_free(struct efs_export *export);
/* The same in a forked process: closes the child's descriptors and, if the data is whole, frees it and unmaps the
 * windows. NULL is fine. */
void efs_export_free_forked(struct efs_export *export, bool whole);
/* Whether the socket works. */
bool efs_export_works(const struct efs_export *export);
/* Whether the mount exports coded experts. */
bool efs_export_supports_coded(const struct efs_export *export);

/* Assigns a tag to a file before it is requested. false: no memory, or too many tags. */
bool efs_export_alloc_tag(struct efs_export *export, struct efs_expert_file *file);
/* Releases the tag and memory of a file that is no longer used; the mount is notified with the next packet. */
void efs_export_drop(struct efs_export *export, struct efs_expert_file *file);
/* Cancels the request of a file in flight. The tag and the file are freed when the mount has answered that. */
void efs_export_cancel(struct efs_export *export, struct efs_expert_file *file);
/* Releases the memory of a coded expert, received or not. */
void efs_export_free_coded(struct efs_exported_expert *exported);
/* Whether packets are to be sent by efs_mount_flush(): dropped or cancelled tags, EFS_EXPORT_KEEP or LIST. */
bool efs_export_has_unsent(const struct efs_mount *m);

/* Returns an empty packet of this kind. Without lock. */
struct efs_export_ask efs_export_packet(enum efs_export_kind kind);
/* Sets the size in the head of a packet, from the number of its items. Without lock. */
void efs_export_end_packet(struct efs_export_ask *packet);
/* With efs_mount.send_lock held, without lock: */
/* Sends queued packets, then this one, whose head has its size. < 0: the socket does not work any more. */
errint_t efs_export_send(struct efs_mount *m, const struct efs_export_head *last);
/* The same; sets the size in the head. */
void efs_export_send_ask(struct efs_mount *m, struct efs_export_ask *ask);
/* Sends queued packets, and EFS_EXPORT_KEEP and LIST where due. flags: 0, or MSG_DONTWAIT: -EAGAIN if the socket is
 * full. */
errint_t efs_export_flush(struct efs_mount *m, int flags);

/* Interrupts efs_export_receive(), because a file or a waiter has changed without a packet. */
void efs_export_kick(const struct efs_export *export);
/* Waits for packets until this time (NULL: no limit) and handles them; releases the lock while it waits. One thread at
 * a time; returns early after a kick. -ETIMEDOUT. */
errint_t efs_export_receive(struct efs_mount *m, const struct timespec *until);
/* Handles all packets that have arrived. */
void efs_export_receive_ready(struct efs_mount *m);
/* The same, if packets are due that no thread waits for: a list, or answers to cancellations while no tag is free. */
void efs_export_receive_late(struct efs_mount *m);
/* The descriptor of the socket, and that of EFS_EXPORT_ROOM; < 0: none. */
int efs_export_fd(const struct efs_export *export);
int efs_export_room_fd(const struct efs_export *export);
/* No file without users stays open from now on: the mount cannot ask for its memory. export may be NULL. */
void efs_export_keep_nothing(struct efs_mount *m);
/* Handles an EFS_EXPORT_ROOM that has arrived there: evicts idle files of this size. */
void efs_export_receive_room(struct efs_mount *m);

#endif
