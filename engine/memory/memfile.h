/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfile.h - memory for full experts: files in memory, mapped. Without efs.lock: each call is one or more of the
 * system. A memory file is its owner's, who is one at a time; only showing it may be asked for by several at once.
 *
 * No descriptor is kept for one, since the process may have few (RLIMIT_NOFILE): it is a file of a tmpfs of our own,
 * opened by its name when that is needed, or anonymous memory that is mapped shared. A descriptor that was asked for
 * stays until efs_memfile_take_fd().
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
 * PRIVATE -> SHOWN or PRIVATE -> WINDOW, for good. Anonymous memory becomes SHOWN by a copy in a sealed memfd, mapped
 * in its place, and never WINDOW.
 *
 * Beside these: files for segments of the chunk pool, which are windows from the start (efs_window_file).
 */
#ifndef EFS_MEMFILE_H
#define EFS_MEMFILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertfs.h"

enum efs_memfile_kind { EFS_MEMFILE_PRIVATE, EFS_MEMFILE_SHOWN, EFS_MEMFILE_WINDOW };

struct efs_memfile {
    struct efs_memfile *next;            /* of the free ones */
    const struct efs_memfiles *memfiles; /* where it was made */
    enum efs_memfile_kind kind;          /* changed by memfile.c alone */
    bool populated;                      /* all its pages are there */
    bool empty;          /* WINDOW: when it is freed, who keeps it mapped loses its memory, too, and reads zeros */
    int fd;              /* SHOWN: for reading, and for nothing else by whoever gets it; < 0: it is not open */
    uint32_t window;     /* WINDOW: its number */
    uint64_t name;       /* in the tmpfs; 0: anonymous */
    uint8_t *data;       /* mapped; SHOWN: for reading */
    size_t bytes;        /* whole pages */
    uint64_t file_bytes; /* of the file that it is shown as */
};

/* Where memfiles are made; made once. */
struct efs_memfiles {
    int tmpfs, reading; /* the root of a tmpfs with huge pages, mounted nowhere, and of a clone of it that is read-only;
                           < 0: there is none, memfds do */
    _Atomic uint64_t named;
    _Atomic uint32_t windows; /* number given last to one of them */
    pthread_mutex_t lock;     /* guards kind while a memory file is shown */
};

/* tmpfs: try to have one. Before memfiles are made. */
void efs_memfiles_open(struct efs_memfiles *memfiles, bool tmpfs);
void efs_memfiles_close(struct efs_memfiles *memfiles); /* after all memfiles were freed */
/* A PRIVATE memfile of bytes (whole pages), which nobody has counted yet. NULL: no memory. */
struct efs_memfile *efs_memfile_new(struct efs_memfiles *memfiles, size_t bytes);
/* Give its memory back. */
void efs_memfile_free(struct efs_memfiles *memfiles, struct efs_memfile *memfile);
/* In a forked process: what that one has of it; the memory is the parent's. */
void efs_memfile_leave(const struct efs_memfile *memfile);
/* It is to hold a file of that size, of as many pages as the memfile has, which comes next. Not SHOWN. */
void efs_memfile_resize(struct efs_memfile *memfile, uint64_t file_bytes);
/* Show it as a file, whose descriptor is in fd then, or as a window: 0, also if it is that already; -EBUSY: it is the
 * other, or cannot be it; -errno: it is what it was. */
errint_t efs_memfile_show(struct efs_memfiles *memfiles, struct efs_memfile *memfile);
errint_t efs_memfile_make_window(struct efs_memfiles *memfiles, struct efs_memfile *memfile);
/* The descriptor of one that is SHOWN, to be closed by the caller: nobody uses it. < 0: it is not open. */
int efs_memfile_take_fd(struct efs_memfile *memfile);
/* A descriptor of a window for somebody else, to be closed by the caller: for reading, and for nothing else by whoever
 * gets it. -EMFILE, ... */
int efs_memfile_open_window(const struct efs_memfile *memfile);
/* It is to be filled: have the pages that it lacks, as large as they can be, and leave it to the fill to clear each of
 * them. A fault gets huge pages and, after the last whole one, pages of 4 KiB: of an expert of 9 MiB and a header that
 * is a mebibyte, and those 257 faults cost more than all the rest. In one call the end gets large pages, too. After
 * efs_memfile_resize(). Takes some 20 us. -ENOMEM: it cannot have them, and must not be written to. */
errint_t efs_memfile_reserve(struct efs_memfile *memfile);
/* Have all its pages, whose content is anything then. PRIVATE. May take a millisecond for each MiB. */
errint_t efs_memfile_populate(struct efs_memfile *memfile);

/*
 * Memory of many owners that is a window from the start, and is written all the time: a process that maps it may read
 * what it was given of it, for as long as it holds that, and nothing else. No descriptor of it is kept.
 */
struct efs_window_file {
    uint64_t name;   /* 0: it has no file, nobody else can see it */
    uint32_t number; /* of the window */
};
/* Bytes (whole pages) without pages yet, mapped for writing at `at`, where addresses are reserved, or, NULL, anywhere.
 * NULL: there is no tmpfs, no descriptor, no memory. */
uint8_t *efs_window_file_map(struct efs_memfiles *memfiles, uint8_t *at, size_t bytes, struct efs_window_file *file);
/* A descriptor for somebody else, to be closed by the caller: for reading, and for nothing else by whoever gets it.
 * -EOPNOTSUPP: it has no file; -EMFILE, ... */
int efs_window_file_open(struct efs_memfiles *memfiles, const struct efs_window_file *file);
/* Its pages go, also for those who keep it mapped, and its name. It stays mapped here. */
void efs_window_file_empty(struct efs_memfiles *memfiles, const struct efs_window_file *file, uint8_t *data,
                           size_t bytes);

#endif
