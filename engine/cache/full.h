/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full.h - the full pool: experts decoded into memory files. Fields of struct efs_full_pool are full.c's; what struct
 * efs_full says of one may be read by all who hold the lock. With efs.lock held unless said otherwise.
 */
#ifndef EFS_FULL_H
#define EFS_FULL_H

#include "efs.h"
#include "lru.h"
#include "memfile.h"

struct efs_full_waiter;

/* One expert in the full pool. */
enum efs_full_state { EFS_FULL_NONE, EFS_FULL_FILLING, EFS_FULL_READY };
struct efs_full {
    uint8_t state;            /* enum efs_full_state */
    bool kept;                /* by the policy's cache state: in the list of those, else evictable */
    uint32_t leases, readers; /* readers: copying out of it right now */
    struct efs_memfile *memfile;
    struct efs_full_waiter *waiters;
    struct efs_link link; /* READY experts by last use, of the kept or of the evictable */
};

struct efs_full_pool {
    struct efs_full *at; /* by expert */
    struct efs_lru protected, evictable;
    struct efs_memfiles memfiles;
    struct efs_memfile *free; /* not SHOWN, pages kept, for other experts */
    uint32_t ready_count, leased_count, filling_count, copied_count;
    uint64_t leased_bytes, leased_evictable_bytes; /* of leased experts; of those that the policy does not keep full */
};

static inline const struct efs_full *efs_full_of(const struct efs *fs, uint32_t expert)
{
    return &fs->full->at[expert];
}

/* ---- full.c ---- */
/* Without lock: before there are threads, and after. -ENOMEM. */
errint_t efs_full_build(struct efs *fs);
void efs_full_destroy(struct efs *fs);
void efs_full_unmap(struct efs *fs); /* in its place, in a forked process */
/* With lock held: the expert, which is READY, is copied from and stays until that has ended. */
void efs_full_copy_begin(struct efs *fs, uint32_t expert);
void efs_full_copy_end(struct efs *fs, uint32_t expert);
/* The same for a reader, if the expert is full: its bytes, until efs_full_copy_end(). Else NULL. */
const uint8_t *efs_full_pin(struct efs *fs, uint32_t expert);
/* With lock held: nobody has it leased: it can be evicted, now or when it was copied from. */
bool efs_full_may_go(const struct efs_full *full);
/* With lock held: a READY expert that nobody holds is in memory that cannot be used so, because it is the other kind.
 */
bool efs_full_must_leave(const struct efs_full *full, enum efs_memfile_kind use);
/* With lock held: an expert that is READY and nobody's is NONE; the cache state is not told. */
void efs_full_leave(struct efs *fs, uint32_t expert);
/* With lock held: if so, it leaves it; the cache state are not told. false: it stays. */
bool efs_full_leave_for(struct efs *fs, uint32_t expert, enum efs_memfile_kind use);
/* A lease on a READY expert begins, or ends: true: that was the last one, and a descriptor in *fd is to be closed. */
void efs_full_lease(struct efs *fs, uint32_t expert);
bool efs_full_unlease(struct efs *fs, uint32_t expert, int *fd);
bool efs_full_any_held(const struct efs *fs); /* leased, being filled, or copied from: its memory may come back */
bool efs_full_any_held_but(const struct efs *fs, uint32_t leased); /* by others than who has so many of them leased */
uint64_t efs_full_held_bytes(const struct efs *fs); /* of experts that are leased, being filled, or copied from */
/* A NONE expert is being filled for this waiter, in memory without pages if it is fresh; others that come for it wait,
 * too: who waited before. It is READY in this memory, or NONE again (NULL): who waited, the last first. */
void efs_full_fill(struct efs *fs, uint32_t expert, struct efs_full_waiter *waiter, bool fresh);
struct efs_full_waiter *efs_full_join(struct efs *fs, uint32_t expert, struct efs_full_waiter *waiter);
struct efs_full_waiter *efs_full_filled(struct efs *fs, uint32_t expert, struct efs_memfile *memfile, bool fresh);
void efs_full_stats(const struct efs *fs, struct efs_stats *stats);
/* Without lock: memory that nobody has counted yet; free these; the expert, which is leased, as a file or as a window.
 */
struct efs_memfile *efs_full_memfile_new(struct efs *fs, size_t bytes);
void efs_full_memfiles_free(struct efs *fs, struct efs_memfile *memfiles);
errint_t efs_full_show(struct efs *fs, uint32_t expert);
errint_t efs_full_make_window(struct efs *fs, uint32_t expert);
/* With lock held: the expert is, or is not any more, kept full by the cache state. */
void efs_full_keep(struct efs *fs, uint32_t expert, bool kept);
void efs_full_drop_free_memfiles(struct efs *fs, uint64_t bytes);
/* With lock held: is there memory of that size that the next expert can take over as it is, for that use? */
bool efs_full_has_free_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use);
size_t efs_memfile_bytes(const struct efs *fs, uint32_t expert); /* of its memory: whole pages */
/* With lock held: take a free one of that size for that use. NULL: there is none. */
struct efs_memfile *efs_full_take_free(struct efs *fs, size_t bytes, enum efs_memfile_kind use);
bool efs_full_has_free(const struct efs *fs);             /* of any size */
uint32_t efs_full_oldest_evictable(const struct efs *fs); /* EFS_NONE: none */
/* With lock held: an expert's memory is free again: for the next one, or for the kernel. */
void efs_full_give_back(struct efs *fs, struct efs_memfile *memfile);
/* The list of the kept or of the evictable that a READY expert stands in. */
struct efs_lru *efs_full_list(struct efs *fs, const struct efs_full *full);

#endif
