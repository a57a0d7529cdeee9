/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.h - steps that other steps interrupt. A step runs on its own stack, on the heap of snapshot.h; before it
 * takes the engine's lock for the second time and later, it is suspended, and the explorer chooses what runs next. So
 * the critical sections of several threads are executed in any order.
 */
#ifndef EFS_MODEL_THREADS_H
#define EFS_MODEL_THREADS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define THREADS_MAX 2u

struct threads;
struct threads_options {
    unsigned suspended_max; /* steps that are suspended at a time; further ones run to their end */
    pthread_mutex_t *lock;  /* a step is suspended before it takes this lock */
};

/* Allocates the stacks. Before snapshot_begin(). */
struct threads *threads_new(const struct threads_options *options);
void threads_free(struct threads *threads);
/* Calls run(arg), which must not return later than the last resume. owner: see threads_has(); name: of the step, for
 * threads_hash(). */
void threads_run(struct threads *threads, uint32_t owner, uint64_t name, void (*run)(uint64_t arg), uint64_t arg);
/* Continues the step of a slot that is suspended. */
void threads_resume(struct threads *threads, unsigned slot);
bool threads_is_suspended(const struct threads *threads, unsigned slot);
/* Whether a step of this owner is suspended. */
bool threads_has(const struct threads *threads, uint32_t owner);
/* The state of the suspended steps; hash() hashes words of a stack. */
uint64_t threads_hash(const struct threads *threads, uint64_t (*hash)(const void *words, size_t bytes));

#endif
