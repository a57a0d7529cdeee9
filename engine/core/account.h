/* SPDX-License-Identifier: Apache-2.0 */
/* account.h - what of the one budget is taken, and what is set aside. Guarded by efs.lock. */
#ifndef EFS_ACCOUNT_H
#define EFS_ACCOUNT_H

#include <stdatomic.h>
#include <stdint.h>

struct efs_account {
    uint64_t budget_bytes;       /* what can be had of the budget that was asked for: the limit of all that follows */
    uint64_t fixed_bytes;        /* never given back: tables, threads, buffers */
    uint64_t measuring_bytes;    /* of fixed_bytes: for a moment, while the machine is measured */
    uint64_t full_bytes;         /* memory files, free ones included */
    uint64_t freeing_bytes;      /* memory files that a thread gives back just now */
    _Atomic uint64_t gone_bytes; /* of what is counted as held, the system's again; added to without lock */
    uint64_t fresh_bytes;        /* of memory files that are being filled and have no pages yet */
    uint64_t taken_bytes;        /* since the start: segments, and memory files that have got their pages */
    uint64_t coded_bytes;        /* of coded experts that are handed out or on their way */
    uint32_t coded_experts;      /* that these are of */
    uint32_t coded_again;        /* of them, those begun again for want of memory: others leave them the pool */
    uint64_t guess_bytes;        /* of the chunk pool: left to experts that are guessed to be asked for */
    uint64_t floor_segments;     /* of the chunk pool: always left to it */
    uint64_t planned_segments;   /* of the chunk pool: what the plan needs */
    uint64_t segments_leaving;   /* retiring */
};

#endif
