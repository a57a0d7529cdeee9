/* SPDX-License-Identifier: Apache-2.0 */
/* account.h - the numbers of the memory budget: bytes in use and bytes reserved. Guarded by efs.lock. */
#ifndef EFS_ACCOUNT_H
#define EFS_ACCOUNT_H

#include <stdatomic.h>
#include <stdint.h>

struct efs_account {
    uint64_t budget_bytes;        /* the effective budget: limit of all memory below; at most the requested budget */
    uint64_t fixed_bytes;         /* tables, threads, buffers; never evicted */
    uint64_t measuring_bytes;     /* part of fixed_bytes, while the machine is measured */
    uint64_t full_bytes;          /* memory files, including free ones */
    uint64_t freeing_bytes;       /* memory files that a thread is freeing */
    _Atomic uint64_t freed_bytes; /* freed, but still counted as in use; added to without lock */
    uint64_t untouched_bytes;     /* memory files that are being filled and have no pages yet */
    uint64_t allocated_bytes;     /* allocated since the start: segments, and memory files with pages */
    uint64_t coded_bytes;         /* coded experts that are handed out or being loaded for it */
    uint32_t coded_experts;       /* their number */
    uint32_t coded_retries;       /* of these, retries after -ENOMEM; meanwhile other readers bypass the chunk pool */
    uint64_t prefetch_bytes;      /* share of the chunk pool for prefetched experts */
    uint64_t floor_segments;      /* minimum of the chunk pool */
    uint64_t planned_segments;    /* size of the chunk pool by the plan */
    uint64_t segments_retiring;   /* segments that are being released */
};

#endif
