/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full.h - the full pool: experts decoded into memory files. Only files of this room write; any code with
 * the lock may read. With efs.lock held unless stated otherwise.
 */
#ifndef EFS_FULL_H
#define EFS_FULL_H

#include "efs.h"
#include "lru.h"
#include "memfile.h"

struct efs_request_item;

/* An expert in the full pool. */
enum efs_full_state { EFS_FULL_NONE, EFS_FULL_FILLING, EFS_FULL_READY };
struct efs_full {
    uint8_t state;            /* enum efs_full_state */
    bool protected;           /* kept full by the cache state */
    bool mapped;              /* one of the leases is for processes that may still map the expert's closed file */
    uint32_t leases, readers; /* readers: copying from it now */
    struct efs_memfile *memfile;
    struct efs_request_item *waiters;
    struct efs_link link; /* READY experts in order of last use */
};

#define EFS_FULL_CLOSED 8u

struct efs_full_pool {
    struct efs_full *at;     /* by expert */
    struct efs_lru lists[2]; /* evictable, protected */
    struct efs_memfiles memfiles;
    struct efs_memfile *free; /* free list: memory files that are not EXPORTED, with their pages, for reuse */
    uint32_t ready_count, filling_count, leased_count;
    uint64_t leased_bytes, leased_evictable_bytes; /* of leased experts; of those that are not kept full */
    _Atomic uint32_t mapped_count;                 /* of experts that are `mapped` */
    uint32_t sampled;                              /* the expert with which efs_full_sample() goes on */
    /* Experts that were mapped at their last close. They are looked at again at the next one, because the kernel
     * reports a close up to some milliseconds before the file has one user less, if other threads keep the closing one
     * from running. */
    uint32_t closed[EFS_FULL_CLOSED], closed_count;
};

static inline const struct efs_full_pool *efs_full_pool(const struct efs *fs)
{
    return fs->full;
}

static inline const struct efs_full *efs_full_of(const struct efs *fs, uint32_t expert)
{
    return &fs->full->at[expert];
}

/* What memory files are made with; without lock. */
static inline struct efs_memfiles *efs_full_memfiles(struct efs *fs)
{
    return &fs->full->memfiles;
}

/* Without lock, before threads are started and after they have ended. -ENOMEM. */
errint_t efs_full_build(struct efs *fs);
void efs_full_destroy(struct efs *fs);
void efs_full_close_in_child(struct efs *fs); /* efs_full_destroy() in a forked process */
/* Starts or ends copying from a READY expert, which is not evicted until the end. */
void efs_full_copy_begin(struct efs *fs, uint32_t expert);
void efs_full_copy_end(struct efs *fs, uint32_t expert);
/* The same for a reader: returns the expert's bytes, valid until efs_full_copy_end(); NULL: not READY. */
const uint8_t *efs_full_pin(struct efs *fs, uint32_t expert);
/* Whether a READY expert without leases and readers is in a memory file of a kind that cannot serve this use. */
bool efs_full_is_unusable(const struct efs_full *full, enum efs_memfile_kind use);
/* A READY expert without leases and readers becomes NONE; the cache state is not updated. */
void efs_full_evict(struct efs *fs, uint32_t expert);
/* Starts or ends a lease on a READY expert. *fd, if it is changed: its descriptor, which the caller closes; the expert
 * is then `mapped`. */
void efs_full_lease(struct efs *fs, uint32_t expert);
void efs_full_unlease(struct efs *fs, uint32_t expert, int *fd);
/* The same for the holder of a descriptor; the expert stays leased while another process maps it. Releases efs.lock for
 * a few microseconds meanwhile. */
void efs_full_close(struct efs *fs, uint32_t expert);
/* Looks whether a `mapped` expert without other leases is still mapped, because no event reports the end, and ends its
 * lease if not. Releases efs.lock for a few microseconds meanwhile. false: it is not such an expert. */
bool efs_full_look(struct efs *fs, uint32_t expert);
/* The same for at most this number of experts, in turns. Without lock. Called by the plan thread every 50 ms while
 * there are any, and when memory is short. */
void efs_full_sample(struct efs *fs, uint32_t most);
/* Adds a waiter to an expert that is being filled, and returns the previous newest one. NULL: the expert was NONE, and
 * is being filled from here on; fresh: in memory without pages. */
struct efs_request_item *efs_full_add_waiter(struct efs *fs, uint32_t expert, struct efs_request_item *waiter,
                                             bool fresh);
/* The expert is READY in this memory file, or NONE (NULL). Returns the waiters, newest first. */
struct efs_request_item *efs_full_filled(struct efs *fs, uint32_t expert, struct efs_memfile *memfile, bool fresh);
struct efs_stats;
void efs_full_stats(const struct efs *fs, struct efs_stats *stats);
/* Sets whether the cache state keeps the expert full. */
void efs_full_protect(struct efs *fs, uint32_t expert, bool protected);
bool efs_full_drop_free_memfiles(struct efs *fs, uint64_t bytes); /* false: there are none */
size_t efs_memfile_bytes(const struct efs *fs, uint32_t expert);  /* size of its memory file: whole pages */
/* Takes a free memory file of this size: of the kind `use`, else PRIVATE. NULL: none. */
struct efs_memfile *efs_full_get_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use);
/* Puts an expert's memory file on the free list, or frees it if it is EXPORTED. */
void efs_full_put_memfile(struct efs *fs, struct efs_memfile *memfile);

#endif
