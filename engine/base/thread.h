/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - threads of the engine, and how large their stacks are. The budget counts EFS_STACK_BYTES for each; the
 * deepest that runs there, to decode or code a shard, takes a quarter of it (tests/engine/test_stack.c).
 */
#ifndef EFS_THREAD_H
#define EFS_THREAD_H

#include "expertfs.h"

#define EFS_STACK_BYTES (512u << 10) /* of every thread of the engine */

/*
 * glibc takes a thread's TLS from its stack. ThreadSanitizer keeps three quarters of a MiB there, and where that is
 * more than the stack leaves us 128 KiB; the other sanitizers make frames larger. What they take is not ours to count.
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

/* Signals are blocked there; to be joined with pthread_join(). 0 or -errno. */
errint_t efs_thread_start(void *(*run)(void *), void *arg, const char *name, unsigned long *thread);

#endif
