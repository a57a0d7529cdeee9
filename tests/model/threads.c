/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c - see threads.h. */
#include "threads.h"

#include "snapshot.h"
#include "wrapped.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <cmocka.h>

#define STACK_BYTES (96u << 10)
#define USED_BYTES (16u << 10) /* no step uses more of its stack */
#define REGISTERS_BYTES 128u   /* below the frame of suspend(), where it saves registers */

struct thread {
    ucontext_t context;
    uint8_t *stack, *low; /* low: while it is suspended, the lowest address in use */
    bool is_running, is_suspended;
    unsigned locks; /* number of times that it has taken the lock */
    uint32_t owner;
    uint64_t name, heap_tag, arg;
    void (*run)(uint64_t arg);
};

struct threads {
    struct threads_options options;
    struct thread slots[THREADS_MAX + 1]; /* one that does not suspend */
};

/* Where steps begin: with the same content of registers, which they save on their stacks. */
static ucontext_t fresh;
static ucontext_t explorer; /* the context of threads_run() and threads_resume() */
static struct threads *all;
static struct thread *running;

struct threads *threads_new(const struct threads_options *options)
{
    assert_true(options->suspended_max <= THREADS_MAX);
    assert_int_equal(getcontext(&fresh), 0);
    all = calloc(1, sizeof(*all));
    all->options = *options;
    for (unsigned i = 0; i <= THREADS_MAX; i++)
        all->slots[i].stack = calloc(1, STACK_BYTES);
    return all;
}

void threads_free(struct threads *threads)
{
    for (unsigned i = 0; i <= THREADS_MAX; i++)
        free(threads->slots[i].stack);
    free(threads);
    all = NULL;
    running = NULL;
}

static void thread_main(void)
{
    struct thread *t = running;
    t->run(t->arg);
    t->is_running = false;
}

/* Zeroes the unused part of the stack, so that the content of uninitialised variables does not depend on the past. */
static void clear_stack(const struct thread *t, uint8_t *end)
{
    uint8_t *begin = t->stack + STACK_BYTES - USED_BYTES;
    assert_true(end >= begin);
    memset(begin, 0, (size_t)(end - begin));
}

static void thread_switch(struct thread *t)
{
    running = t;
    assert_int_equal(swapcontext(&explorer, &t->context), 0);
    running = NULL;
    if (t->is_suspended)
        clear_stack(t, t->low);
}

void threads_run(struct threads *threads, uint32_t owner, uint64_t name, void (*run)(uint64_t arg), uint64_t arg)
{
    struct thread *t = threads->slots;
    while (t->is_running)
        t++;
    t->locks = 0;
    t->owner = owner;
    t->name = name;
    t->run = run;
    t->arg = arg;
    t->is_running = true;
    t->context = fresh;
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = STACK_BYTES;
    t->context.uc_link = &explorer;
    clear_stack(t, t->stack + STACK_BYTES);
    makecontext(&t->context, thread_main, 0);
    thread_switch(t);
}

void threads_resume(struct threads *threads, unsigned slot)
{
    struct thread *t = &threads->slots[slot];
    t->is_suspended = false;
    heap_tag_set(t->heap_tag);
    thread_switch(t);
}

bool threads_is_suspended(const struct threads *threads, unsigned slot)
{
    return threads->slots[slot].is_suspended;
}

bool threads_has(const struct threads *threads, uint32_t owner)
{
    for (unsigned i = 0; i <= THREADS_MAX; i++)
        if (threads->slots[i].is_running && threads->slots[i].owner == owner)
            return true;
    return false;
}

uint64_t threads_hash(const struct threads *threads, uint64_t (*hash)(const void *words, size_t bytes))
{
    uint64_t sum = 0;
    for (unsigned i = 0; i <= THREADS_MAX; i++) {
        const struct thread *t = &threads->slots[i];
        const uint64_t state[] = {i, t->owner, t->name, t->locks};
        if (t->is_suspended)
            sum += hash(state, sizeof(state)) ^ hash(t->low, (size_t)(t->stack + STACK_BYTES - t->low)) << 1;
    }
    return sum;
}

/* Not inlined: its frame has all registers that the callers use. */
static __attribute__((noinline)) void suspend(struct thread *t)
{
    __builtin_unwind_init();
    t->low = (uint8_t *)__builtin_frame_address(0) - REGISTERS_BYTES;
    t->is_suspended = true;
    t->heap_tag = heap_tag_get();
    assert_int_equal(swapcontext(&t->context, &explorer), 0);
}

/* Suspends the running step, if fewer are suspended than may be. */
static void may_suspend(void)
{
    unsigned suspended = 0;
    for (unsigned i = 0; i <= THREADS_MAX; i++)
        suspended += all->slots[i].is_suspended;
    if (suspended < all->options.suspended_max)
        suspend(running);
}

WRAPPED(int, pthread_mutex_lock, (pthread_mutex_t * lock))
{
    bool counts = running && lock == all->options.lock;
    if (counts && running->locks++ > 0)
        may_suspend();
    return __real_pthread_mutex_lock(lock);
}

WRAPPED(int, pthread_mutex_unlock, (pthread_mutex_t * lock))
{
    int rc = __real_pthread_mutex_unlock(lock);
    if (running && lock == all->options.lock)
        may_suspend();
    return rc;
}
