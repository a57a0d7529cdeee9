/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h - sparse copies of a source's files in a local folder, and a map of the pages that each copy has.
 *
 * local/ keeps pages that were read from a slow source on a local disk, within a size. io/ reads from it in place of
 * the source and offers it what it has read from there; serve/ opens it and names its experts. It never reads the
 * source itself, and never takes efs.lock except in the callback rank().
 *
 *     local_base.c    places of pages, entries of the map
 *     local_open.c    the folder: identity, lock, creation
 *     local_map.c     which pages are there; reading and checking them
 *     local_write.c   writing pages: the thread efs-local
 *     local_fill.c    having missing ones read
 *     local_evict.c   what to drop
 *
 * FOLDER/NAME has the source's bytes at their own offsets, and holes; a copy that has all pages is the source's file.
 * FOLDER/NAME.map has a page with the source's identity (struct efs_local_header), then a u32 for each page of 4 KiB: 0
 * if the copy lacks it, else its checksum (efs_local_check).
 *
 * A page is written and synced before its checksum, and its checksum is cleared and synced before it is dropped. After
 * a kill or a power cut at any point a page is therefore there, or lost. Each read compares the checksums, so that a
 * page that the disk has damaged is read from the source instead. The bytes of one identity never change, so that two
 * processes may use a copy at once. The holder of the maps' locks writes, other processes only read.
 *
 * A block (EFS_LOCAL_BLOCK) is the unit of eviction. Addresses are those of the backing, multiples of EFS_ALIGN.
 */
#ifndef EFS_LOCAL_H
#define EFS_LOCAL_H

#include "expertfs.h"
#include "layout.h"

#include <sys/uio.h>

#define EFS_LOCAL_BLOCK (256u << 10)
#define EFS_LOCAL_READ_BYTES (4u << 20) /* limit of efs_local_run() */
#define EFS_LOCAL_FILL_BYTES (1u << 20) /* limit of a read that fills */
#define EFS_LOCAL_NAME 32
#define EFS_LOCAL_IDENTITY 200

struct efs_local_file {
    uint64_t address; /* of its first byte */
    uint64_t bytes;
    uint64_t device, inode;            /* of the source, which is no copy of itself; 0: not a file of this machine */
    char name[EFS_LOCAL_NAME];         /* of its copy */
    char identity[EFS_LOCAL_IDENTITY]; /* of the source's version; a copy of another one is refused */
};

struct efs_stats_counters;
struct efs_local_options {
    const char *folder; /* created if it does not exist, in one that does */
    uint64_t size_bytes;
    const struct efs_local_file *files; /* by address, without overlap; copied */
    unsigned file_count;
    struct efs_stats_counters *stats;
    void (*warn)(void *arg, const char *line); /* the copy fails from now on; any thread, at most twice */
    uint32_t units;
    /* Sets worth[units]: the least is evicted first, INFINITY never. false: by last use, except INFINITY. May be NULL.
     * Called by the thread efs-local without locks. */
    bool (*rank)(void *arg, double *worth);
    /* Starts a read of the source into data, of the lowest priority, and efs_local_filled() at its end. Its bytes
     * are offered like those of all reads. Must not block: a lock is held. -errno: not started. May be NULL. */
    errint_t (*read)(void *arg, uint64_t address, void *data, size_t bytes);
    void *arg;
};

struct efs_local;
/* Opens the copies, or creates them. 0 or -errno with a line in err: -EEXIST: a name is taken by another source or by a
 * file that is no copy; -EINVAL: size_bytes is below the minimum, EFS_LOCAL_SLOTS blocks. Blocks on I/O. */
errint_t efs_local_open(const struct efs_local_options *options, struct efs_local **local, struct efs_error *err);
/* Memory that efs_local_open() will take, with the stack of its thread. */
uint64_t efs_local_memory_bytes(const struct efs_local_options *options);
/* Starts writing what is offered, if no other process does. Without it the copy is only read. 0 or -errno. */
errint_t efs_local_start(struct efs_local *local);
bool efs_local_writes(const struct efs_local *local);
/* Why the copy gets no more, a line; "": nothing failed, or a copy that another process writes has all pages. */
void efs_local_fault(struct efs_local *local, char *line, size_t room);
/* Why this process only reads the copy, a line; "": it may write. */
void efs_local_refused(const struct efs_local *local, char *line, size_t room);
/* Bytes of the pages that are there. */
uint64_t efs_local_bytes(struct efs_local *local);
/* Writes what was offered, ends the thread, and closes. NULL is allowed. in_child: only closes the descriptors. */
void efs_local_close(struct efs_local *local, bool in_child);

/* ---- what to keep: before efs_local_start() ---- */

#define EFS_LOCAL_STAYS (EFS_NONE - 2)  /* instead of a unit: never evicted */
#define EFS_LOCAL_TABLES (EFS_NONE - 1) /* the same, and filled at once */
/* These bytes belong to a unit, such as an expert. Blocks of no unit are evicted by last use; a block with parts of
 * several kinds is of the strictest one. */
void efs_local_mark(struct efs_local *local, uint64_t address, uint64_t bytes, uint32_t unit);

/* ---- reading: any thread ---- */

/* The bytes from address on, at most `bytes` and EFS_LOCAL_READ_BYTES, whose pages are all there, or all not. */
size_t efs_local_run(struct efs_local *local, uint64_t address, size_t bytes, bool *there);
/* Reads pages that efs_local_run() found, and checks them; blocks. Zeros are read after a file's end. 0; -EAGAIN: some
 * are not there any more, efs_local_run() says which. */
errint_t efs_local_read(struct efs_local *local, uint64_t address, const struct iovec *buffers, unsigned count,
                        size_t bytes);
/* These bytes were wrong when they were read from the source: drops their pages, so that they are read again. */
void efs_local_forget(struct efs_local *local, uint64_t address, uint64_t bytes);
/* Copies whole pages that were read from the source, to be written later. Does not block: drops what finds no room. One
 * thread at a time. */
void efs_local_offer(struct efs_local *local, uint64_t address, const struct iovec *buffers, unsigned count,
                     size_t bytes);

/* ---- filling: reading missing pages ---- */

enum efs_local_fill { EFS_LOCAL_FILL_OFF, EFS_LOCAL_FILL_TABLES, EFS_LOCAL_FILL_ALL };
/* Has missing pages read: one run at a time, in the order of addresses, until nothing is missing or the next one
 * would need eviction; then it is off again. Off: returns after the last call of read(). Any thread. */
void efs_local_fill(struct efs_local *local, enum efs_local_fill fill);
enum efs_local_fill efs_local_filling(struct efs_local *local);
/* A read ended; after an error filling is off. */
void efs_local_filled(struct efs_local *local, errint_t error);

#endif
