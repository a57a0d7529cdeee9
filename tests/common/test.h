/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.h - included by every C test: cmocka, and macros that register tests with the program.
 *
 *     TEST(small_files)                       a test
 *     TEST_WITH(small_files, setup, teardown) a test with setup and teardown, either may be NULL
 *     TEST_MAIN(setup, teardown)              main(): runs all tests of the file in the order of their definition
 */
#ifndef EFS_TEST_H
#define EFS_TEST_H

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "patience.h"

/* true under ASan and TSan: slow tests do less, and no test forks while threads run, because the child may inherit a
 * sanitizer's lock in the locked state (gcc 12). The tests that fork run in the programs in SHIPPED of the Makefile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* Waits until the condition is true. */
#define WAIT_FOR(condition)                                                                                            \
    for (unsigned tries = 0; !(condition); tries++) {                                                                  \
        assert_true(tries < 200 * PATIENCE_SECONDS);                                                                   \
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);                                                       \
    }

#define TEST_MAX 64

static struct CMUnitTest test_list[TEST_MAX];
static size_t test_count;

/* Constructors run in the order of their priorities; those up to 100 are reserved for the implementation. */
#define TEST_WITH(name, setup, teardown)                                                                               \
    static void name(void **state);                                                                                    \
    __attribute__((constructor(200 + __COUNTER__))) static void name##_add(void)                                       \
    {                                                                                                                  \
        assert_true(test_count < TEST_MAX);                                                                            \
        test_list[test_count++] = (struct CMUnitTest){#name, name, setup, teardown, NULL};                             \
    }                                                                                                                  \
    static void name(__attribute__((unused)) void **state)
#define TEST(name) TEST_WITH(name, NULL, NULL)

#define TEST_RUN(setup, teardown) _cmocka_run_group_tests("tests", test_list, test_count, setup, teardown)
#define TEST_MAIN(setup, teardown)                                                                                     \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        return TEST_RUN(setup, teardown);                                                                              \
    }

#endif
