/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfile.h - memory files: mapped memory for decoded experts, which can be passed to other processes. The functions
 * make system calls and are called without efs.lock. A memory file is used by one owner at a time; only
 * efs_memfile_export(), efs_memfile_make_window() and efs_memfile_is_mapped_elsewhere() may be called concurrently.
 *
 * It is a file of a private tmpfs, which is opened by name when needed, because the process may have few descriptors
 * (RLIMIT_NOFILE); or, without the privilege for a tmpfs, a memfd, whose descriptor stays open; or, if it need not be
 * passed on or there are too few descriptors, an anonymous shared mapping. The descriptor of an EXPORTED file stays
 * open until efs_memfile_take_fd().
 *
 * PRIVATE: never passed to another process. It may be refilled with other experts and freed.
 *
 * EXPORTED: its file was passed on. Its pages may be referenced from pipes, socket queues, I/O that pinned them, or
 * opens that the kernel has not completed. So it is never written, truncated or punched again, and is freed as a whole:
 * the kernel frees each page when its last user releases it.
 *
 * WINDOW: its descriptor was passed on as a window; readers expect its content to change to other experts. It is
 * refilled, but never becomes EXPORTED.
 *
 * Transitions: PRIVATE -> EXPORTED or PRIVATE -> WINDOW, both permanent. Anonymous memory stays PRIVATE.
 *
 * Segments of the chunk pool are window files from the start (struct efs_window_file).
 */
#ifndef EFS_MEMFILE_H
#define EFS_MEMFILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertfs.h"

enum efs_memfile_kind { EFS_MEMFILE_PRIVATE, EFS_MEMFILE_EXPORTED, EFS_MEMFILE_WINDOW };

struct efs_window_file {
    uint64_t name;   /* in the tmpfs; 0: none */
    int memfd;       /* open for writing; < 0: none, as with a name */
    uint32_t number; /* id of the window; 0: none yet, or of a segment: other processes cannot map it */
};

struct efs_memfile {
    struct efs_memfile *next;      /* in the list of free memory files */
    struct efs_memfiles *memfiles; /* its creator */
    enum efs_memfile_kind kind;    /* changed only by memfile.c */
    bool populated;                /* all its pages are allocated */
    bool empty; /* set before a WINDOW is freed: freeing it also removes the pages from mappings of other processes,
                   which then read zeros */
    int fd;     /* EXPORTED: read-only descriptor that cannot be reopened for writing; < 0: not open */
    struct efs_window_file file;
    uint8_t *data;       /* mapping; EXPORTED: read-only */
    size_t bytes;        /* whole pages */
    uint64_t file_bytes; /* size of the file that it contains */
};

/* Creates memory files; one per engine. */
struct efs_memfiles {
    int tmpfs, readonly; /* root of a private, unmounted tmpfs with huge pages, and of its read-only clone; < 0: not
                           available */
    bool memfds;         /* use memfds where a tmpfs is not available */
    _Atomic uint64_t named, memfd_count;
    _Atomic uint32_t windows; /* last id assigned to a window */
    pthread_mutex_t lock;     /* guards kind, and fd while it is opened, in functions that may be called concurrently */
};

/* tmpfs: try to create a private tmpfs; memfds: else use memfds, because memory files are passed to other processes.
 * Call it before creating memory files. */
void efs_memfiles_open(struct efs_memfiles *memfiles, bool tmpfs, bool memfds);
void efs_memfiles_close(struct efs_memfiles *memfiles); /* call it after freeing all memory files */
/* Creates a PRIVATE memory file of `bytes` bytes (whole pages), which the caller accounts for. NULL: no memory. */
struct efs_memfile *efs_memfile_new(struct efs_memfiles *memfiles, size_t bytes);
/* Frees the memory file. */
void efs_memfile_free(struct efs_memfile *memfile);
/* In a forked child: unmaps and closes the child's copy; the memory stays the parent's. */
void efs_memfile_unmap_in_child(const struct efs_memfile *memfile);
/* Sets the file size for the next content, which occupies all pages of the memory file. Not for EXPORTED files. */
void efs_memfile_resize(struct efs_memfile *memfile, uint64_t file_bytes);
/* Makes it EXPORTED, with fd open. 0, also if it is EXPORTED already; -EBUSY: it is a WINDOW, or anonymous; other
 * -errno: its kind is unchanged. */
errint_t efs_memfile_export(struct efs_memfiles *memfiles, struct efs_memfile *memfile);
/* Gives it an id as a window: a PRIVATE file becomes a WINDOW; an EXPORTED one stays that, and a process that maps it
 * by this id unmaps it when it releases the expert. 0; -EBUSY: it is anonymous; other -errno: its kind is unchanged. */
errint_t efs_memfile_make_window(struct efs_memfiles *memfiles, struct efs_memfile *memfile);
/* Moves the descriptor of an EXPORTED file that is not in use to the caller, which closes it. < 0: it was not open. */
int efs_memfile_take_fd(struct efs_memfile *memfile);
/* Whether another process maps an EXPORTED file, or has it open: the kernel reports the close of a file that it serves
 * from a memory file when the last descriptor is closed, although mappings of it remain. Closes fd, its descriptor from
 * efs_memfile_take_fd(); if that is < 0, opens another one for the check. true also if it was exported again meanwhile,
 * cannot be opened, or the kernel refuses the check (efs_leases_probe()); false for anonymous memory, of which this
 * cannot be found out. Takes a few microseconds. */
bool efs_memfile_is_mapped_elsewhere(struct efs_memfiles *memfiles, struct efs_memfile *memfile, int fd);
/* Opens a read-only descriptor of a WINDOW, to be passed to another process; it cannot be reopened for writing. The
 * caller closes it. -errno (-EMFILE, ...) on failure. */
int efs_memfile_open_window(const struct efs_memfile *memfile);
/* Allocates missing pages of a PRIVATE file before it is filled, in the largest page sizes available; each page is
 * cleared when the fill first touches it. Page faults would allocate huge pages, and 4 KiB pages after the last
 * whole huge page: for an expert of 9 MiB and a header that is 1 MiB, and those 257 faults take longer than all
 * earlier ones. One call allocates large pages for the end, too. Takes some 20 us. -ENOMEM: pages are not available,
 * and the memory must not be written. */
errint_t efs_memfile_reserve(struct efs_memfile *memfile);
/* Allocates and clears all pages of a PRIVATE file; the content is undefined afterwards. May take 1 ms per MiB. */
errint_t efs_memfile_populate(struct efs_memfile *memfile);

/*
 * A segment of the chunk pool is a file, too: a window from the start, with chunks of many extents, written
 * continuously. A process that maps it may read only the chunks that it was granted, and only while it holds them. The
 * descriptor is not kept open.
 */
/* Maps `bytes` bytes (whole pages) for writing, at the reserved address `at`, or anywhere if it is NULL; pages are
 * allocated on first access. NULL: no file, no descriptor or no memory. */
uint8_t *efs_window_file_map(struct efs_memfiles *memfiles, uint8_t *at, size_t bytes, struct efs_window_file *file);
/* Opens a read-only descriptor to be passed to another process; it cannot be reopened for writing. The caller closes
 * it. -EOPNOTSUPP: no file; -EMFILE, ... */
int efs_window_file_open(struct efs_memfiles *memfiles, const struct efs_window_file *file);
/* Removes its name or closes it; empty: removes its pages before, also from mappings of other processes. The mapping at
 * data stays. Without a file: no effect. */
void efs_window_file_free(struct efs_memfiles *memfiles, const struct efs_window_file *file, uint8_t *data,
                          size_t bytes, bool empty);

#endif
