/* SPDX-License-Identifier: Apache-2.0 */
/* test_view_index.c - the experts' index of names that take more room printed than they have bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"
#include "view.h"

#define ESCAPES 200u /* six bytes each: the first guess of the index's size is too small */

static void index_is(const char *name)
{
    const struct fixture_tensor tensor = {name, "BF16", 2, {64, 64}, 8192};
    struct fixture f;
    struct efs_store *store;
    struct efs_error err = {""};
    struct efs_view view;
    char want[2048];
    fixture_begin(&f);
    fixture_safetensors(&f, "model.safetensors", &tensor, 1, 3);
    fixture_pack(&f, NULL);
    assert_int_equal(efs_store_open(f.store, &store, &err), 0);
    assert_int_equal(efs_view_build(&view, store, &err), 0);
    int n = snprintf(want, sizeof(want),
                     "{\n  \"metadata\": {\"total_size\": 8192},\n  \"weight_map\": {\n    \"%s\": "
                     "\"dense.safetensors\"\n  }\n}\n",
                     name);
    assert_int_equal(view.index_bytes, n);
    assert_memory_equal(view.index_text, want, (size_t)n);
    efs_view_destroy(&view);
    efs_store_close(store);
    fixture_end(&f);
}

static void test_plain(void **state)
{
    (void)state;
    index_is("model.norm.weight");
}

static void test_escapes(void **state)
{
    (void)state;
    char name[6 * ESCAPES + 1] = "";
    for (unsigned i = 0; i < ESCAPES; i++)
        memcpy(name + 6 * (size_t)i, "\\u0001", 7);
    index_is(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_escapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
