/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libc_fault.h - fault injection into calls of the C library. Before the include, a test defines CALLS(X) as a list
 * of X(name); after it, the test defines call_is_spared() and one FAILING_CALL() for each name.
 */
#ifndef EFS_FAILING_CALL_H
#define EFS_FAILING_CALL_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "libc_symbol.h"

enum call {
#define CALL_NAME(name) CALL_##name,
    CALLS(CALL_NAME) CALL_COUNT
#undef CALL_NAME
};
static const char *const call_names[] = {
#define CALL_TEXT(name) #name,
    CALLS(CALL_TEXT)
#undef CALL_TEXT
};

static struct {
    _Atomic int error;
    _Atomic unsigned nth, last, seen, hits;
} call_plans[CALL_COUNT];

/* Calls number nth to last, counted from 1, fail with errno `error`. nth 0: no call fails. */
static void call_plan(enum call call, unsigned nth, unsigned last, int error)
{
    call_plans[call].nth = call_plans[call].last = 0;
    call_plans[call].seen = call_plans[call].hits = 0;
    call_plans[call].error = error;
    call_plans[call].last = last;
    call_plans[call].nth = nth;
}

static bool call_is_spared(void); /* true: no fault injection in the calling thread */

static bool call_fails(enum call call)
{
    if (!call_plans[call].nth || call_is_spared())
        return false;
    unsigned n = atomic_fetch_add(&call_plans[call].seen, 1) + 1;
    bool hit = n >= call_plans[call].nth && n <= call_plans[call].last;
    call_plans[call].hits += hit;
    if (hit)
        errno = call_plans[call].error;
    return hit;
}

#define FAILING_CALL(type, name, parameters, arguments)                                                                \
    type name parameters                                                                                               \
    {                                                                                                                  \
        type(*call) parameters;                                                                                        \
        *(void **)&call = real_call(#name);                                                                            \
        return call_fails(CALL_##name) ? -1 : call arguments;                                                          \
    }

#endif
