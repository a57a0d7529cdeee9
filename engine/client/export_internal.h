/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_internal.h - shared by the files of the socket's client: export.c (packets), export_connect.c (the socket),
 * export_tags.c, export_windows.c, export_notify.c, export_coded.c. With efs_mount.lock held.
 */
#ifndef EFS_EXPORT_INTERNAL_H
#define EFS_EXPORT_INTERNAL_H

#include "export.h"

#define EFS_EXPORT_BUCKETS 256u
#define EFS_EXPORT_UNSENT_BYTES 16384u

struct efs_export_window {
    struct efs_export_window *next;
    struct efs_export_window *newer, *older; /* in the order of use */
    uint32_t number, users;
    uint8_t *data;
    size_t bytes;
};

struct efs_export {
    int fd, kick;                   /* socket; eventfd */
    bool failed;                    /* the socket has failed; nothing is requested any more */
    bool coded;                     /* the mount exports coded experts */
    struct efs_expert_file **files; /* by tag; NULL: free */
    uint32_t *free_tags, *drops;    /* arrays of `room` elements */
    uint32_t room, free_count, drop_count;
    struct efs_export_window *windows[EFS_EXPORT_BUCKETS], *newest, *oldest;
    uint32_t window_count;
    uint32_t unmapped[EFS_EXPORT_ITEMS], unmapped_count; /* unmapped windows that the mount must be notified of */
    char unsent[EFS_EXPORT_UNSENT_BYTES];                /* queued packets, back to back */
    size_t unsent_bytes;
};

/* ---- export_windows.c ---- */
struct efs_export_window *efs_window_find(struct efs_export *h, uint32_t number);
/* Maps the window that an answer carries. NULL: it cannot be mapped. */
struct efs_export_window *efs_window_map(struct efs_export *h, const struct efs_export_answer *answer, int fd);
/* Reports a window as unmapped with the next packet, so that the mount sends its descriptor again with the next expert
 * in it. */
void efs_window_report_unmapped(struct efs_export *h, uint32_t number);
/* Adds a user to the window; a window without users may be unmapped. */
void efs_window_get(struct efs_export *h, struct efs_export_window *w);
void efs_window_unmap_all(struct efs_export *h);

/* ---- export_coded.c ---- */
/* Handles a packet with a window of coded experts and its descriptor. false: malformed. */
bool efs_export_receive_window(struct efs_export *h, const struct efs_export_answer *packet, int fd);
/* Handles a part of a coded expert; after the last part the expert is loaded or has failed. false: malformed. */
bool efs_export_receive_coded(struct efs_mount *m, const struct efs_export_coded *packet);

/* ---- export_notify.c ---- */
/* Takes the oldest queued notification. false: none. */
bool efs_export_pop_notification(struct efs_export *h, struct efs_export_ask *packet);

#endif
