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

/* The tag and memory of an expert that the mount has exported. */
struct efs_exported_expert {
    uint32_t tag;                      /* EFS_NO_TAG: not exported */
    struct efs_export_window *window;  /* full: its window */
    struct efs_export_window **places; /* coded: its windows */
    uint32_t place_count;
    uint8_t *body;                   /* coded: the received parts, until all are received; NULL: no memory */
    uint32_t body_bytes, body_total; /* body_bytes: received; body_total: of all parts */
};

/* Connects to the mount's socket. NULL: not accessible to this process; files are used. Without lock. */
struct efs_export *efs_export_connect(int root);
/* Closes the socket and unmaps all windows, after the last use. Without lock. NULL is fine. */
void efs_export_free(struct efs_export *export);
/* The same in a forked process: closes the child's descriptors and, with unmap, unmaps its windows. NULL is fine. */
void efs_export_free_forked(struct efs_export *export, bool unmap);
/* Whether the socket works. */
bool efs_export_works(const struct efs_export *export);
/* Whether the mount exports coded experts. */
bool efs_export_supports_coded(const struct efs_export *export);

/* Assigns a tag to a file before it is requested. false: no memory, or too many tags. */
bool efs_export_alloc_tag(struct efs_export *export, struct efs_expert_file *file);
/* Releases the tag and memory of a file that is no longer used; the mount is notified with the next packet. */
void efs_export_drop(struct efs_export *export, struct efs_expert_file *file);
/* Releases the memory of a coded expert, received or not. */
void efs_export_free_coded(struct efs_exported_expert *exported);
/* Whether an expert without users is in flight. */
bool efs_export_has_orphans(const struct efs_export *export);
/* Queues a notification that experts of a layer, which are held already, are used; it is sent with the next packet.
 * false: the queue is full. */
bool efs_export_notify(struct efs_export *export, const char *stack, uint32_t layer, const struct efs_need *needs,
                       uint32_t count, enum efs_form form);
/* Whether notifications or drops are pending. */
bool efs_export_has_unsent(const struct efs_export *export);

/* Returns an empty packet of this kind; sets the sizes in its head after its items were added. Without lock. */
struct efs_export_ask efs_export_packet(enum efs_export_kind kind);
void efs_export_packet_end(struct efs_export_ask *packet);
/* Sends pending notifications and drops, then ask (NULL: nothing more), whose sizes this call sets. With
 * efs_mount.send_lock held, without lock. < 0: the socket does not work any more. */
errint_t efs_export_send(struct efs_mount *m, struct efs_export_ask *ask);
/* The same with a complete packet of any kind. */
errint_t efs_export_send_all(struct efs_mount *m, const struct efs_export_head *last);
/* The same, then requests the list of experts that the mount protects; efs_protected_set_receive() handles the answer.
 */
errint_t efs_export_send_list(struct efs_mount *m);
/* Interrupts efs_export_receive(), because a file or a waiter has changed without a packet. */
void efs_export_kick(const struct efs_export *export);
/* Waits for packets until this time (NULL: no limit) and handles them; releases the lock while it waits. One thread at
 * a time; returns early after a kick. -ETIMEDOUT. */
errint_t efs_export_receive(struct efs_mount *m, const struct timespec *until);

#endif
