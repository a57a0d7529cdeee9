/* SPDX-License-Identifier: Apache-2.0 */
/* filter.c - CMOCKA_TEST_FILTER='*name*' runs those tests of a program alone: cmocka has a call for that, but no
 * variable. */
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
