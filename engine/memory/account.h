/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.h - the account of the memory budget: bytes in use by kind, and the limits. Only this file and account.c
 * write it; other files may read every field. The owner's lock guards all of it.
 */
#ifndef EFS_ACCOUNT_H
#define EFS_ACCOUNT_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

enum efs_account_kind {
    /* Memory in use: the sum of these kinds is used_bytes. */
    EFS_ACCOUNT_FIXED,     /* tables, threads, buffers; never evicted */
    EFS_ACCOUNT_MEASURING, /* while the machine is measured */
    EFS_ACCOUNT_SEGMENTS,  /* segments of the chunk pool */
    EFS_ACCOUNT_FULL,      /* memory files, including free ones */
    EFS_ACCOUNT_RETURNING, /* memory files that a thread is freeing */
    EFS_ACCOUNT_USED_KINDS,
    /* Parts of these. */
    EFS_ACCOUNT_RETIRING = EFS_ACCOUNT_USED_KINDS, /* of SEGMENTS: are being released */
    EFS_ACCOUNT_RETIRING_HELD,                     /* of RETIRING: clients hold blocks in them */
    EFS_ACCOUNT_UNTOUCHED,                         /* of FULL: are being filled and have no pages yet */
    EFS_ACCOUNT_FULL_PINNED,                       /* of FULL: leased, being filled or copied from */
    EFS_ACCOUNT_FULL_COPIED,  /* of FULL_PINNED: copied from and not leased: evictable when that ends */
    EFS_ACCOUNT_CODED_PINNED, /* coded experts that clients hold or that are being loaded for it */
    EFS_ACCOUNT_KINDS,
    EFS_ACCOUNT_LIMITS = EFS_ACCOUNT_KINDS /* a bit of efs_account.changed */
};

struct efs_account {
    uint64_t used_bytes;
    uint64_t bytes[EFS_ACCOUNT_KINDS];
    uint64_t allocated_bytes, returned_bytes; /* allocated and returned to the system since the start: segments and
                                                 memory files */
    /* limits */
    uint64_t budget_bytes;     /* the effective budget: limit of used_bytes; at most the requested budget */
    uint64_t prefetch_bytes;   /* share of the chunk pool for prefetched experts */
    uint64_t floor_segments;   /* minimum of the chunk pool */
    uint64_t planned_segments; /* size of the chunk pool by the plan */
    uint64_t unplanned_bytes;  /* part of the budget that the plan gives to no pool: a store has more than experts */
    /* What waiters for memory may depend on has changed: bits of the kinds that were released, and of FIXED and
     * RETIRING_HELD if they were charged; of LIMITS. efs_account_take_changed() clears them. */
    unsigned changed;
};

/* For this file: adds bytes, which may be negative, to a kind. */
static inline void efs_account_add(struct efs_account *account, enum efs_account_kind kind, uint64_t bytes,
                                   bool changed)
{
    account->bytes[kind] += bytes;
    account->used_bytes += kind < EFS_ACCOUNT_USED_KINDS ? bytes : 0;
    account->changed |= (unsigned)changed << kind;
}
/* MEASURING, SEGMENTS and FULL are admitted to the budget: the caller has checked that used_bytes stays within it. */
static inline void efs_account_charge(struct efs_account *account, enum efs_account_kind kind, uint64_t bytes)
{
    bool admitted = kind == EFS_ACCOUNT_MEASURING || kind == EFS_ACCOUNT_SEGMENTS || kind == EFS_ACCOUNT_FULL;
    efs_account_add(account, kind, bytes, kind == EFS_ACCOUNT_FIXED || kind == EFS_ACCOUNT_RETIRING_HELD);
    assert(!admitted || account->used_bytes <= account->budget_bytes);
    (void)admitted;
}
static inline void efs_account_release(struct efs_account *account, enum efs_account_kind kind, uint64_t bytes)
{
    assert(account->bytes[kind] >= bytes);
    efs_account_add(account, kind, -bytes, true);
}
/* Memory files that are not used any more are returned to the system. */
static inline void efs_account_begin_return(struct efs_account *account, uint64_t bytes)
{
    assert(account->bytes[EFS_ACCOUNT_FULL] >= bytes);
    efs_account_add(account, EFS_ACCOUNT_FULL, -bytes, false);
    efs_account_add(account, EFS_ACCOUNT_RETURNING, bytes, false);
}
unsigned efs_account_take_changed(struct efs_account *account);
/* Counts pages allocated to memory that is charged. */
void efs_account_add_allocated(struct efs_account *account, uint64_t bytes);
/* Releases bytes that were returned to the system. */
void efs_account_return(struct efs_account *account, enum efs_account_kind kind, uint64_t bytes);

/* Limits: set by the budget only. */
void efs_account_set_budget(struct efs_account *account, uint64_t budget_bytes, uint64_t floor_segments);
void efs_account_set_planned(struct efs_account *account, uint64_t segments, uint64_t unplanned_bytes);
void efs_account_set_prefetch(struct efs_account *account, uint64_t bytes);

/* Assertions, true whenever the lock is released. */
/* The kinds add up, no part exceeds its whole, and the chunk pool has this many bytes. */
bool efs_account_adds_up(const struct efs_account *account, uint64_t segments_bytes);
/* used_bytes is within the budget, or all above it is being released, pinned, fixed, or the minimum of the chunk
 * pool. */
bool efs_account_is_within_budget(const struct efs_account *account, uint64_t segment_bytes);

static inline uint64_t efs_account_fixed(const struct efs_account *account)
{
    return account->bytes[EFS_ACCOUNT_FIXED] + account->bytes[EFS_ACCOUNT_MEASURING];
}
/* The budget less fixed memory. */
static inline uint64_t efs_account_available(const struct efs_account *account)
{
    uint64_t fixed = efs_account_fixed(account);
    return account->budget_bytes > fixed ? account->budget_bytes - fixed : 0;
}

#endif
