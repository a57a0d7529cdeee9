/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - the stack size of all threads that efs_thread_start() starts. Without it a thread's stack would have the
 * size of RLIMIT_STACK, or 128 KiB with musl. The kernel gives a stack the pages that were written: the budget counts
 * EFS_STACK_TOUCHED_BYTES for each thread of the engine. Decoding or encoding a shard takes less than 48 KiB
 * (tests/engine/test_stack_usage.c); no thread of a daemon has taken more (tests/e2e/test_fixed_memory.py).
 */
#ifndef EFS_THREAD_H
#define EFS_THREAD_H

#include "expertfs-private.h" /* efs_thread_start() */

/* A number of the calling thread, 1 or more, that no other thread of this process has, or had. */
uint64_t efs_thread_number(void);

#define EFS_STACK_BYTES (512u << 10)
#define EFS_STACK_TOUCHED_BYTES (64u << 10)

/*
 * glibc allocates a thread's TLS from its stack. ThreadSanitizer uses 768 KiB of TLS; if TLS does not fit, glibc leaves
 * only 128 KiB of stack. The other sanitizers enlarge stack frames. The budget does not count this memory.
 */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define EFS_STACK_SANITIZER_BYTES (2u << 20)
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define EFS_STACK_SANITIZER_BYTES (2u << 20)
#endif
#endif
#ifndef EFS_STACK_SANITIZER_BYTES
#define EFS_STACK_SANITIZER_BYTES 0u
#endif

#endif
