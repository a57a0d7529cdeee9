/*
 * handout_core.h - what the files of the hand-out's client share: handout.c (tags and packets), handout_windows.c,
 * handout_told.c. With the lock of the mount held.
 */
#ifndef EFS_CLIENT_HANDOUT_CORE_H
#define EFS_CLIENT_HANDOUT_CORE_H

#include "handout.h"

#define EFS_HANDOUT_BUCKETS 256u
#define EFS_HANDOUT_TOLD_BYTES 16384u

struct efs_handout_window {
    struct efs_handout_window *next;
    struct efs_handout_window *newer, *older; /* by use */
    uint32_t number, users;
    uint8_t *data;
    size_t bytes;
};

struct efs_handout {
    int fd, nudge;                  /* socket; eventfd */
    bool lost;                      /* asked no more */
    struct efs_expert_file **files; /* by tag; NULL: free */
    uint32_t *free_tags, *drops;    /* each with room for room */
    uint32_t room, free_count, drop_count;
    struct efs_handout_window *windows[EFS_HANDOUT_BUCKETS], *newest, *oldest;
    uint32_t window_count;
    uint32_t forget[EFS_HANDOUT_ITEMS], forget_count;
    char told[EFS_HANDOUT_TOLD_BYTES]; /* packets, one behind the other */
    size_t told_bytes;
};

/* ---- handout_windows.c ---- */
struct efs_handout_window *efs_window_find(struct efs_handout *h, uint32_t number);
/* What came with an answer is mapped. NULL: it cannot be. */
struct efs_handout_window *efs_window_map(struct efs_handout *h, const struct efs_handout_answer *answer, int fd);
/* It was unmapped, and the mount is not told yet. */
bool efs_window_is_forgotten(const struct efs_handout *h, uint32_t number);
/* One more file is in it; with the last of them gone it may be unmapped. */
void efs_window_use(struct efs_handout *h, struct efs_handout_window *w);
void efs_window_unmap_all(struct efs_handout *h);

/* ---- handout_told.c ---- */
/* Of a packet with that many items. */
size_t efs_handout_packet_bytes(const struct efs_handout_ask *ask);
/* The oldest packet that is to be told. false: there is none. */
bool efs_handout_take_told(struct efs_handout *h, struct efs_handout_ask *packet);

#endif
