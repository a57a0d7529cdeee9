/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep.h - fault after fault of one kind, until an operation no longer meets one: the first call fails, the second,
 * ...
 */
#ifndef EFS_FAULT_SWEEP_H
#define EFS_FAULT_SWEEP_H

#include "test.h"
#include "fixture.h"
#include "sys_fault.h"

#define SWEEP_MOST 4000 /* calls of one kind in one operation: more is a loop that never ends */

struct sweep {
    const char *what;
    errint_t (*operation)(struct efs_error *err); /* meets the faults; it checks by itself what counts as success */
    /* Without faults, NULL for nothing: before each; and after each, where less than 0 is a failure that err tells. */
    void (*before)(void);
    errint_t (*after)(const struct sweep *sweep, struct efs_error *err);
};

/* An operation that fails has met a fault and says something, and no descriptor stays open, whatever came. Returns how
 * often it met a fault and succeeded nevertheless. */
static inline unsigned sweep_calls(const struct sweep *s, enum fault_call call, int error, bool forever)
{
    unsigned fds = fixture_open_fds(), failed = 0, nth = 1;
    for (bool hit = true; hit; nth += hit) {
        struct efs_error err = {""};
        assert_true(nth < SWEEP_MOST);
        if (s->before)
            s->before();
        fault_plan(call, nth, error, forever);
        errint_t rc = s->operation(&err);
        hit = fault_happened();
        fault_none();
        if (rc < 0 && !hit)
            fail_msg("%s: %s %u: failed without a fault: %s", s->what, fault_names[call], nth, err.text);
        if (rc < 0 && !err.text[0])
            fail_msg("%s: %s %u: error %d says nothing", s->what, fault_names[call], nth, rc);
        err.text[0] = '\0';
        if (s->after && s->after(s, &err) < 0)
            fail_msg("%s: %s %u: the fault is over, but: %s", s->what, fault_names[call], nth, err.text);
        if (fixture_open_fds() != fds)
            fail_msg("%s: %s %u: descriptors leak", s->what, fault_names[call], nth);
        failed += rc < 0;
    }
    print_message("%s: %s with %s: %u places, %u ended in an error\n", s->what, fault_names[call],
                  error ? strerror(error) : "a short transfer", nth - 1, failed);
    return nth - 1 - failed;
}

static inline unsigned sweep(const struct sweep *s, enum fault_call call, int error)
{
    return sweep_calls(s, call, error, false);
}

/* Every later call of the kind fails too. */
static inline unsigned sweep_forever(const struct sweep *s, enum fault_call call, int error)
{
    return sweep_calls(s, call, error, true);
}

#endif
