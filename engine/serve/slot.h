/*
 * slot.h - memory for full experts: files in memory, mapped. With efs.lock held unless said otherwise.
 *
 * PRIVATE: nobody else has ever seen it. Filled, filled again for another expert, given back, as we like.
 *
 * SHOWN: its file was given out. Pages of it may be anywhere, in pipes, socket queues, under I/O that pinned them, in
 * opens that the kernel has yet to make. It is never written, truncated or punched again, and given back whole: the
 * kernel frees each page with its last user.
 *
 * WINDOW: given out as a window, whose readers know that other experts come to stand in it. Filled again, but never
 * shown as a file.
 *
 * PRIVATE -> SHOWN or PRIVATE -> WINDOW, for good.
 */
#ifndef EFS_SLOT_H
#define EFS_SLOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertfs.h"

enum efs_slot_kind { EFS_SLOT_PRIVATE, EFS_SLOT_SHOWN, EFS_SLOT_WINDOW };

struct efs_slot {
    struct efs_slot *next;   /* of the free ones */
    enum efs_slot_kind kind; /* changed by slot.c alone */
    bool memfd;              /* not of our tmpfs: sealed when it is shown; no window */
    bool populated;          /* all its pages are there */
    int fd;                  /* PRIVATE: for writing. Else for reading, and for nothing else by whoever gets it */
    uint32_t window;         /* WINDOW: its number */
    uint64_t name;           /* PRIVATE, in the tmpfs */
    uint8_t *data;           /* mapped; SHOWN: for reading */
    size_t bytes;            /* whole pages */
};

/* Where slots are made; made once. */
struct efs_slots {
    int tmpfs, reading; /* the root of a tmpfs with huge pages, mounted nowhere, and of a clone of it that is read-only;
                           < 0: there is none, memfds do */
    _Atomic uint64_t named;
    uint32_t windows; /* number given last to one of them */
};

/* tmpfs: try to have one. Without lock, before slots are made. */
void efs_slots_open(struct efs_slots *slots, bool tmpfs);
void efs_slots_close(struct efs_slots *slots); /* after all slots were freed */
/* A PRIVATE slot of bytes (whole pages), which nobody has counted yet. NULL: no memory. Also without lock. */
struct efs_slot *efs_slot_new(struct efs_slots *slots, size_t bytes);
/* Give its memory back. Also without lock. */
void efs_slot_free(struct efs_slots *slots, struct efs_slot *slot);
/* A WINDOW that is nobody's: who keeps it mapped holds none of its memory any more, and reads zeros. */
void efs_slot_empty(struct efs_slot *slot);
/* It is to hold a file of that size, of as many pages as the slot has, which comes next. Not SHOWN. 0 or -errno. */
errint_t efs_slot_resize(struct efs_slot *slot, uint64_t file_bytes);
/* Show it as a file, or as a window: 0, also if it is that already; -EBUSY: it is the other, or cannot be it; -errno:
 * it is what it was. */
errint_t efs_slot_show(struct efs_slots *slots, struct efs_slot *slot);
errint_t efs_slot_make_window(struct efs_slots *slots, struct efs_slot *slot);
/* It is to be filled: have the pages that it lacks, as large as they can be, and leave it to the fill to clear each of
 * them. A fault gets huge pages and, after the last whole one, pages of 4 KiB: of an expert of 9 MiB and a header that
 * is a mebibyte, and those 257 faults cost more than all the rest. In one call the end gets large pages, too. Where
 * that fails, faults do it. After efs_slot_resize(). Without lock: takes some 20 us. */
void efs_slot_reserve(struct efs_slot *slot);
/* Have all its pages, whose content is anything then. PRIVATE. Without lock: may take a millisecond for each MiB. */
errint_t efs_slot_populate(struct efs_slot *slot);

#endif
