/* SPDX-License-Identifier: Apache-2.0 */
/* filter.c - CMOCKA_TEST_FILTER='*name*' runs only the matching tests of a program. cmocka has a function for this, but
 * no environment variable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void filter_tests(void)
{
    const char *filter = getenv("CMOCKA_TEST_FILTER");
    if (filter && *filter)
        cmocka_set_test_filter(filter);
}
