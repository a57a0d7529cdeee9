/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.h - experts that the mount hands out over its socket, in windows that stay mapped: see expertfs-protocol.h.
 * No file is opened or mapped for one. With the lock of the mount held, unless said otherwise.
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

/* What an expert is handed out as. */
struct efs_handed {
    uint32_t tag;                      /* EFS_NO_TAG: it is not handed out */
    struct efs_export_window *window;  /* full: the one that it is in */
    struct efs_export_window **places; /* coded: those that it is in */
    uint32_t place_count;
    uint8_t *body;                   /* coded, while it comes: what its parts tell; NULL: there was no memory */
    uint32_t body_bytes, body_total; /* that have come; of all */
};

/* Connect to the mount's socket. NULL: there is none for us; files do. Without lock. */
struct efs_export *efs_export_connect(int root);
/* Without lock, when nothing is used any more. NULL is fine. */
void efs_export_free(struct efs_export *export);
/* The same in a forked process: its descriptors are closed, and with whole, its windows unmapped. NULL is fine. */
void efs_export_leave(struct efs_export *export, bool whole);
/* May it be asked for more? */
bool efs_export_works(const struct efs_export *export);
/* Does the mount hand out coded experts? */
bool efs_export_hands_out_coded(const struct efs_export *export);

/* A tag for a file that is to be asked for. false: no memory, or too many. */
bool efs_export_take_tag(struct efs_export *export, struct efs_expert_file *file);
/* The file is used no more: what it was handed out as is given back with the next packet. */
void efs_export_drop(struct efs_export *export, struct efs_expert_file *file);
/* It does not come coded any more, or is used no more: what that takes. */
void efs_export_end_coded(struct efs_handed *handed);
/* Is an expert on its way that nobody waits for any more? */
bool efs_export_has_orphans(const struct efs_export *export);
/* A layer's experts that are held already are used: told with the next packet. false: there is no room for it now. */
bool efs_export_notify(struct efs_export *export, const char *stack, uint32_t layer, const struct efs_need *needs,
                       uint32_t count, enum efs_form form);
/* Is there something to be told, or given back? */
bool efs_export_has_news(const struct efs_export *export);

/* An empty packet of that kind; and what its head has to say of its length, once its items are in. Without lock. */
struct efs_export_ask efs_export_packet(enum efs_export_kind kind);
void efs_export_packet_end(struct efs_export_ask *packet);
/* With efs_mount.telling held and without lock: tell, give back what was dropped, then ask (NULL: do not), whose end is
 * set here. <0: it does not work any more. */
errint_t efs_export_send(struct efs_mount *m, struct efs_export_ask *ask);
/* The same with a packet of any kind, which is complete. */
errint_t efs_export_send_all(struct efs_mount *m, const struct efs_export_head *last);
/* The same, then ask which experts the mount keeps full: efs_full_set_take() gets the answer. */
errint_t efs_export_send_list(struct efs_mount *m);
/* End the wait of who receives: something else has come. */
void efs_export_kick(const struct efs_export *export);
/* Wait for answers until then (NULL: for ever) and take them; the lock is given up while it waits. By one thread at a
 * time, which comes back early at a kick. -ETIMEDOUT. */
errint_t efs_export_receive(struct efs_mount *m, const struct timespec *until);

#endif
