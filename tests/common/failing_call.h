/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failing_call.h - calls of the C library that fail in turn. Before it is included a test defines CALLS(X) as
 * X(name)..., after it call_is_spared() and a FAILING_CALL() each.
 */
#ifndef EFS_FAILING_CALL_H
#define EFS_FAILING_CALL_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "real_call.h"

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

/* Calls number nth to last, from 1, fail with this errno; nth 0: none does. */
static void call_plan(enum call call, unsigned nth, unsigned last, int error)
{
    call_plans[call].nth = call_plans[call].last = 0;
    call_plans[call].seen = call_plans[call].hits = 0;
    call_plans[call].error = error;
    call_plans[call].last = last;
    call_plans[call].nth = nth;
}

static bool call_is_spared(void); /* the calls of this thread work */

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
