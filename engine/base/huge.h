/* SPDX-License-Identifier: Apache-2.0 */
/* huge.h - large tables get huge pages. */
#ifndef EFS_HUGE_H
#define EFS_HUGE_H

#include "sys.h"

#include <sys/mman.h>

/*
 * Ask for huge pages in memory that nobody has written yet: a table of tens of megabytes then has few page faults while
 * it is filled, and few misses in translation while it is walked. Only huge pages that lie in it whole: it takes no
 * more memory for that. A kernel that has none to give gives small ones.
 */
static inline void efs_ask_huge(void *memory, size_t bytes)
{
    const uintptr_t huge = (uintptr_t)2 << 20;
    uintptr_t begin = ((uintptr_t)memory + huge - 1) & ~(huge - 1), end = ((uintptr_t)memory + bytes) & ~(huge - 1);
    if (begin < end)
        efs_sys_madvise((char *)memory + (begin - (uintptr_t)memory), end - begin, MADV_HUGEPAGE);
}

#endif
