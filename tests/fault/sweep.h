/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep.h - repeats an operation with its first, second, ... call of one kind failing, until the operation makes no
 * call that fails.
 */
#ifndef EFS_FAULT_SWEEP_H
#define EFS_FAULT_SWEEP_H

#include "test.h"
#include "fixture.h"
#include "sys_fault.h"

#define FAULT_SWEEP_MAX 4000 /* more calls of one kind in one operation mean an endless loop */

struct sweep {
    const char *what;
    errint_t (*operation)(struct efs_error *err); /* runs with the faults; checks itself that a success is correct */
    /* Both run without faults and may be NULL: before() precedes each run, after() follows it; a negative return of
     * after() is a failure, described in err. */
    void (*before)(void);
    errint_t (*after)(const struct sweep *sweep, struct efs_error *err);
};

/* Checks that an operation fails only with a fault and with a message, and that no descriptor leaks. Returns the number
 * of runs that succeeded in spite of a fault. */
static inline unsigned sweep_calls(const struct sweep *s, enum fault_call call, int error, bool forever)
{
    unsigned fds = fixture_open_fds(), failed = 0, nth = 1;
    for (bool hit = true; hit; nth += hit) {
        struct efs_error err = {""};
        assert_true(nth < FAULT_SWEEP_MAX);
        if (s->before)
            s->before();
        fault_plan(call, nth, error, forever);
        errint_t rc = s->operation(&err);
        hit = fault_triggered();
        fault_clear();
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

/* As sweep(), but all later calls of the kind fail too. */
static inline unsigned sweep_forever(const struct sweep *s, enum fault_call call, int error)
{
    return sweep_calls(s, call, error, true);
}

#endif
