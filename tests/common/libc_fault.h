/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libc_fault.h - fault injection into calls of the C library. Before the include, a test defines CALLS(X) as a list
 * of X(name); after it, the test defines libc_fault_exempt() and one LIBC_FAULT() for each name.
 */
#ifndef EFS_LIBC_FAULT_H
#define EFS_LIBC_FAULT_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "libc_symbol.h"

enum call {
#define CALL_NAME(name) CALL_##name,
    CALLS(CALL_NAME) CALL_COUNT
#undef CALL_NAME
};
static const char *const libc_fault_names[] = {
#define CALL_TEXT(name) #name,
    CALLS(CALL_TEXT)
#undef CALL_TEXT
};

static struct {
    _Atomic int error;
    _Atomic unsigned nth, last, seen, hits;
} libc_fault_plans[CALL_COUNT];

/* Calls number nth to last, counted from 1, fail with errno `error`. nth 0: no call fails. */
static void libc_fault_plan(enum call call, unsigned nth, unsigned last, int error)
{
    libc_fault_plans[call].nth = libc_fault_plans[call].last = 0;
    libc_fault_plans[call].seen = libc_fault_plans[call].hits = 0;
    libc_fault_plans[call].error = error;
    libc_fault_plans[call].last = last;
    libc_fault_plans[call].nth = nth;
}

static bool libc_fault_exempt(void); /* true: no fault injection in the calling thread */

static bool libc_fault_due(enum call call)
{
    if (!libc_fault_plans[call].nth || libc_fault_exempt())
        return false;
    unsigned n = atomic_fetch_add(&libc_fault_plans[call].seen, 1) + 1;
    bool hit = n >= libc_fault_plans[call].nth && n <= libc_fault_plans[call].last;
    libc_fault_plans[call].hits += hit;
    if (hit)
        errno = libc_fault_plans[call].error;
    return hit;
}

#define LIBC_FAULT(type, name, parameters, arguments)                                                                  \
    type name parameters                                                                                               \
    {                                                                                                                  \
        type(*call) parameters;                                                                                        \
        *(void **)&call = libc_symbol(#name);                                                                          \
        return libc_fault_due(CALL_##name) ? -1 : call arguments;                                                      \
    }

#endif
