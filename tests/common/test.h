/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.h - what every C test begins with: cmocka, and tests that add themselves to the program's list.
 *
 *     TEST(small_files)                       a test
 *     TEST_WITH(small_files, setup, teardown) the same between two fixtures, each may be NULL
 *     TEST_MAIN(setup, teardown)              main(): runs all of the file, in the order of their definition
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

#include <cmocka.h>

/* Under ASan or TSan: what takes them minutes does less, and no test forks while threads run, since the child may find
 * one of their locks taken (gcc 12). The Makefile's SHIPPED has the programs of those that fork. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

#define TEST_MOST 64

static struct CMUnitTest test_list[TEST_MOST];
static size_t test_count;

/* Constructors run in the order of their priorities; those below 101 are the compiler's. */
#define TEST_WITH(name, setup, teardown)                                                                               \
    static void name(void **state);                                                                                    \
    __attribute__((constructor(200 + __COUNTER__))) static void name##_add(void)                                       \
    {                                                                                                                  \
        assert_true(test_count < TEST_MOST);                                                                           \
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
