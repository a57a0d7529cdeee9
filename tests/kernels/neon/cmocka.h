/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmocka.h - the part of cmocka that the kernels' tests use, so that they build with a cross compiler only.
 *
 * A failed assertion prints its place and ends the program with status 1.
 */
#ifndef EFS_TESTS_NEON_CMOCKA_H
#define EFS_TESTS_NEON_CMOCKA_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
    int (*setup)(void **state);
    int (*teardown)(void **state);
    void *initial;
};
#define _cmocka_run_group_tests(name, tests, count, setup, teardown) shim_run(tests, count)

static inline int shim_run(const struct CMUnitTest *tests, size_t count)
{
    void *state = NULL;

    for (size_t i = 0; i < count; i++) {
        printf("%s\n", tests[i].name);
        fflush(stdout);
        tests[i].run(&state);
    }
    return 0;
}

static inline void shim_assert(int good, const char *what, const char *file, int line)
{
    if (!good) {
        printf("%s:%d: failed: %s\n", file, line, what);
        exit(1);
    }
}

#define print_message printf
#define assert_true(c) shim_assert((c) ? 1 : 0, #c, __FILE__, __LINE__)
#define assert_false(c) shim_assert((c) ? 0 : 1, "not " #c, __FILE__, __LINE__)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) shim_assert((uint64_t)(a) == (uint64_t)(b), #a " == " #b, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n) shim_assert((n) == 0 || memcmp(a, b, n) == 0, #a " == " #b, __FILE__, __LINE__)
#define assert_string_equal(a, b) shim_assert(strcmp(a, b) == 0, #a " == " #b, __FILE__, __LINE__)

#endif
