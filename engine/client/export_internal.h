/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_internal.h - shared by the files of the socket's client: export.c (packets), export_connect.c (the socket),
 * export_tags.c, export_windows.c, export_send.c, export_coded.c. With efs_mount.lock held.
 */
#ifndef EFS_EXPORT_INTERNAL_H
#define EFS_EXPORT_INTERNAL_H

#include "export.h"
#include "file_layout.h"

#define EFS_EXPORT_BUCKETS 256u

/* A list of tags, or of windows. */
struct efs_export_numbers {
    uint32_t *at, count;
};

struct efs_export {
    int fd, kick;                        /* socket; eventfd */
    int room;                            /* a second socket, for EFS_EXPORT_KEEP and ROOM; < 0: none */
    bool failed;                         /* the socket has failed; nothing is requested any more */
    bool coded;                          /* the mount exports coded experts */
    bool keeps, told_keep;               /* room works; EFS_EXPORT_KEEP was sent and not answered yet */
    struct efs_expert_file **files;      /* by tag; NULL: free */
    struct efs_export_numbers free_tags, /* with memory for tag_count elements each */
        drops, cancels;                  /* to be sent */
    uint32_t tag_count;
    LIST_HEAD(, efs_export_window) windows[EFS_EXPORT_BUCKETS];
    TAILQ_HEAD(, efs_export_window) windows_by_use; /* the least recently used first */
    uint32_t window_count;
    uint32_t unmapped_numbers[EFS_EXPORT_ITEMS];
    struct efs_export_numbers unmapped; /* windows: to be sent */
};

/* ---- export_windows.c ---- */
struct efs_export_window *efs_window_find(struct efs_export *h, uint32_t number);
/* The window that a packet names. A new one is mapped, from its descriptor. NULL: that failed, or there is none (fd <
 * 0); the window is reported as unmapped. */
struct efs_export_window *efs_window_take(struct efs_export *h, const struct efs_export_answer *packet, int fd);
/* Reports a window as unmapped with the next packet, so that the mount sends its descriptor again with the next expert
 * in it. */
void efs_window_report_unmapped(struct efs_export *h, uint32_t number);
/* Adds a user to the window; a window without users may be unmapped. */
void efs_window_get(struct efs_export *h, struct efs_export_window *w);
void efs_window_unmap_all(struct efs_export *h);

/* ---- export_coded.c ---- */
/* Handles a file whose expert was received (error 0), or whose request has failed. held: the mount holds the expert for
 * the tag. */
void efs_export_received(struct efs_mount *m, struct efs_expert_file *file, errint_t error, bool held);
/* Handles a part of a coded expert; after the last part the expert is loaded or has failed. false: malformed. */
bool efs_export_receive_coded(struct efs_mount *m, const struct efs_export_coded *packet);

/* The file with this tag; NULL: none. */
static inline struct efs_expert_file *efs_export_file(const struct efs_export *h, uint32_t tag)
{
    return tag < h->tag_count ? h->files[tag] : NULL;
}
/* Whether the mount must be told that idle files are kept. */
bool efs_export_keeps_untold(const struct efs_mount *m);
/* Makes a tag free that the mount knows nothing of. */
void efs_export_free_tag(struct efs_export *h, uint32_t tag);

/* ---- export.c ---- */
/* The mount has exited or sent an invalid packet: stops using the socket; files in flight are opened instead. */
void efs_export_fail(struct efs_mount *m);

#endif
