/* SPDX-License-Identifier: Apache-2.0 */
/* local_internal.h - the state of the copies. */
#ifndef EFS_LOCAL_INTERNAL_H
#define EFS_LOCAL_INTERNAL_H

#include "local.h"
#include "stats.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#define LOCAL_BLOCK_PAGES (EFS_LOCAL_BLOCK / EFS_ALIGN)
static_assert(LOCAL_BLOCK_PAGES == 64, "the pages of a block are the bits of a word");
#define LOCAL_SLOTS 32u /* blocks that wait to be written */

#define EFS_LOCAL_MAGIC "efslocal"
#define EFS_LOCAL_VERSION 1u
struct efs_local_header {
    char magic[8];
    uint32_t version;
    uint32_t page_bytes; /* EFS_ALIGN */
    uint64_t bytes;      /* of the source's file */
    char identity[EFS_LOCAL_IDENTITY];
    uint64_t hash; /* efs_hash() of all before it */
};

struct local_file {
    struct efs_local_file of;
    uint32_t block_first, block_count; /* its blocks in the tables of struct efs_local */
    uint32_t page_count;
    int fd, map_fd; /* fd -1: another process has not created the copy yet */
    bool written;   /* since its last sync; of the thread efs-local */
};

/* Pages of a block that wait to be written. */
struct local_slot {
    struct local_slot *next;
    uint8_t *data;    /* EFS_LOCAL_BLOCK */
    uint64_t offered; /* pages in data */
    uint64_t pages;   /* of these, those that are to be written */
    uint32_t block;
};

struct efs_local {
    char *folder;
    int dir;
    struct local_file *files;
    unsigned file_count;
    struct efs_local_options o; /* its callbacks; folder and files are copied */
    errint_t refused;           /* why this process only reads: -EWOULDBLOCK: another one writes; 0: it may write */
    bool owner;                 /* holds the locks of the maps */
    _Atomic bool writes;        /* the owner's thread runs, and no write has failed */
    _Atomic bool off;           /* a read has failed */
    uint64_t page_limit;
    _Atomic uint64_t page_count; /* pages that are there */
    uint32_t block_count;
    _Atomic uint64_t *there;       /* [block]: a bit a page */
    _Atomic uint64_t *waiting;     /* [block]: pages in slots */
    _Atomic uint32_t *used, clock; /* [block]: clock of its last use */
    uint32_t *unit;                /* [block]; EFS_NONE: none, EFS_LOCAL_STAYS, EFS_LOCAL_TABLES */
    struct local_victim *victims;  /* [block], scratch */
    double *worth;                 /* [units], scratch */

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t wake;
    bool stop, started;
    char fault[400];     /* why nothing more is written, "": nothing failed; an error of reading replaces it */
    errint_t fill_error; /* why filling ended early; 0: it did not */
    bool reload;         /* another process writes, and a page was not found: its map may have more by now */
    enum efs_local_fill fill;
    bool fill_reads;  /* fill_data is in use */
    uint64_t fill_at; /* this pass looks for missing pages from here on: block * LOCAL_BLOCK_PAGES + page */
    unsigned fill_passes;
    struct local_slot *free_slots, *queue, **queue_tail;
    struct local_slot slots[LOCAL_SLOTS];
    uint8_t *slot_data, *fill_data;
    unsigned long thread;
};

/* A block that can be evicted; the largest key goes first. */
struct local_victim {
    float key;
    uint32_t block;
};

/* The file of an address; NULL: none. */
struct local_file *efs_local_file_at(const struct efs_local *local, uint64_t address);
struct local_file *efs_local_file_of(const struct efs_local *local, uint32_t block);
/* The offset in the file of a block's first page; and of its entry in the map. */
static inline uint64_t local_offset(const struct local_file *f, uint32_t block)
{
    return (uint64_t)(block - f->block_first) * EFS_LOCAL_BLOCK;
}
static inline uint64_t local_entry_offset(uint64_t offset)
{
    return EFS_ALIGN + offset / EFS_ALIGN * sizeof(uint32_t);
}
/* Pages [first, first + count) of a block as bits. */
static inline uint64_t local_bits(unsigned first, unsigned count)
{
    return (count >= 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1) << first;
}
/* The next run of set bits from *first on: sets *first and *count. false: none. */
static inline bool local_next_run(uint64_t bits, unsigned *first, unsigned *count)
{
    uint64_t left = *first < 64 ? bits >> *first << *first : 0;
    if (!left)
        return false;
    *first = (unsigned)__builtin_ctzll(left);
    uint64_t after = ~(left >> *first);
    *count = after ? (unsigned)__builtin_ctzll(after) : 64;
    *count = *count > 64 - *first ? 64 - *first : *count;
    return true;
}

/* The checksum of a page; never 0. */
uint32_t efs_local_check(const void *page);
/* Writes the entries of a run of pages of a block. checks NULL: zeros. 0 or -errno. */
errint_t efs_local_write_entries(const struct local_file *f, uint32_t block, unsigned first, unsigned count,
                                 const uint32_t *checks);
/* Opens the copy of a map that is open; the owner creates it. 0, with fd -1 if another process has yet to create it; or
 * -errno with a line in err. */
errint_t efs_local_open_copy(const struct efs_local *local, struct local_file *f, struct efs_error *err);
/* Reads the maps into `there`, of copies that exist by now. 0 or -errno. */
errint_t efs_local_load(struct efs_local *local);
/* A call on the copy failed: nothing is written any more; reading: nor read. Warns once for each. */
void efs_local_failed(struct efs_local *local, const struct local_file *f, bool reading, errint_t error);
/* With the lock: starts the next read that fills, if filling is on and none is in flight. */
void efs_local_fill_next(struct efs_local *local);
/* Makes room for pages; returns how many fit. Of the thread efs-local. */
uint64_t efs_local_make_room(struct efs_local *local, uint64_t pages);
/* Releases the disk space of blocks that have no page: a process was killed before it wrote their entries. */
void efs_local_trim(struct efs_local *local);

#endif
