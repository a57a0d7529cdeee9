/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tsan.h - reports memory accesses of kernels/ to ThreadSanitizer. The kernels are compiled without it, because it
 * would dominate the time of their inner loops. Empty in other builds.
 */
#ifndef EFS_TSAN_H
#define EFS_TSAN_H

#include <stddef.h>

#ifdef __SANITIZE_THREAD__
void __tsan_read_range(void *begin, long bytes);
void __tsan_write_range(void *begin, long bytes);
static inline void efs_tsan_reads(const void *begin, size_t bytes)
{
    __tsan_read_range((void *)(size_t)begin, (long)bytes);
}
static inline void efs_tsan_writes(void *begin, size_t bytes)
{
    __tsan_write_range(begin, (long)bytes);
}
#else
static inline void efs_tsan_reads(const void *begin, size_t bytes)
{
    (void)begin, (void)bytes;
}
static inline void efs_tsan_writes(void *begin, size_t bytes)
{
    (void)begin, (void)bytes;
}
#endif

#endif
