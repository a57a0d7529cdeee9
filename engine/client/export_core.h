/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_core.h - what the files of the hand-out's client share: export.c (packets), export_connect.c (the socket),
 * export_tags.c, export_windows.c, export_notify.c, export_coded.c. With the lock of the mount held.
 */
#ifndef EFS_EXPORT_CORE_H
#define EFS_EXPORT_CORE_H

#include "export.h"

#define EFS_EXPORT_BUCKETS 256u
#define EFS_EXPORT_NEWS_BYTES 16384u

struct efs_export_window {
    struct efs_export_window *next;
    struct efs_export_window *newer, *older; /* by use */
    uint32_t number, users;
    uint8_t *data;
    size_t bytes;
};

struct efs_export {
    int fd, kick;                   /* socket; eventfd */
    bool lost;                      /* asked no more */
    bool coded;                     /* hands out coded experts */
    struct efs_expert_file **files; /* by tag; NULL: free */
    uint32_t *free_tags, *drops;    /* each with room for room */
    uint32_t room, free_count, drop_count;
    struct efs_export_window *windows[EFS_EXPORT_BUCKETS], *newest, *oldest;
    uint32_t window_count;
    uint32_t unmapped[EFS_EXPORT_ITEMS], unmapped_count; /* windows that the mount is not told of yet */
    char news[EFS_EXPORT_NEWS_BYTES];                    /* packets, one behind the other */
    size_t news_bytes;
};

/* ---- export_windows.c ---- */
struct efs_export_window *efs_window_find(struct efs_export *h, uint32_t number);
/* What came with an answer is mapped. NULL: it cannot be. */
struct efs_export_window *efs_window_map(struct efs_export *h, const struct efs_export_answer *answer, int fd);
/* It is not mapped here, as the mount believes, which is told with the next packet and sends it again then. */
void efs_window_miss(struct efs_export *h, uint32_t number);
/* One more file is in it; with the last of them gone it may be unmapped. */
void efs_window_use(struct efs_export *h, struct efs_export_window *w);
void efs_window_unmap_all(struct efs_export *h);

/* ---- export_coded.c ---- */
/* A window that coded experts will name, which came with a descriptor. false: it makes no sense. */
bool efs_export_take_place(struct efs_export *h, const struct efs_export_answer *packet, int fd);
/* A part of what is told of a coded expert; with the last of them it is there, or has failed. false: it makes no sense.
 */
bool efs_export_take_coded(struct efs_mount *m, const struct efs_export_coded *packet);

/* ---- export_notify.c ---- */
/* The oldest packet that is to be told. false: there is none. */
bool efs_export_take_notified(struct efs_export *h, struct efs_export_ask *packet);

#endif
