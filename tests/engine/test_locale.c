/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that links the library may have a locale with decimal commas: settings and descriptions of a store are the
 * same in it.
 */
#include <locale.h>

#include "test.h"
#include "expertfs-private.h"
#include "fixture.h"

#define MIB (1ull << 20)

static struct fixture model;

static bool has_comma(void)
{
    return strcmp(localeconv()->decimal_point, ",") == 0;
}

/* Sets an installed locale, or one built in the model's directory, which is removed with it. */
static bool set_comma(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8", "pt_BR.UTF-8"};
    char command[700];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (setlocale(LC_ALL, names[i]) && has_comma())
            return true;
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", model.directory);
    if (system(command) < 0 || setenv("LOCPATH", model.directory, 1) < 0)
        return false;
    return setlocale(LC_ALL, "de_DE.UTF-8") && has_comma();
}

/* Skips the test if no such locale is available. */
static void begin(void)
{
    if (has_comma() || set_comma())
        return;
    print_message("# SKIP: no locale with decimal commas is installed, and localedef can make none\n");
    skip();
}

TEST(test_settings)
{
    begin();
    static const char *const set[][3] = {{"plan", "F=12.5:C=50.25:S=0:E=0", "F=12.5:C=50.25:S=0:E=0"}};
    struct efs *fs = fixture_open(
        &model, (struct efs_options){.budget_bytes = 128 * MIB, .workers = 1, .full_pool = true, .no_state = true});
    for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++) {
        struct efs_error err = {""};
        char text[128];
        if (efs_set(fs, set[i][0], set[i][1], NULL, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(efs_get(fs, set[i][0], text, sizeof(text)), 0);
        assert_string_equal(text, set[i][2]);
        assert_null(strstr(err.text, "62,"));
    }
    char *text;
    size_t bytes;
    assert_int_equal(efs_describe(fs, "plan", &text, &bytes), 0);
    assert_non_null(strstr(text, "ratio_f: 0.1250\n"));
    free(text);
    assert_true(has_comma()); /* the program's locale is unchanged */
    efs_close(fs);
}

static int setup(void **state)
{
    (void)state;
    fixture_store(&model, 2, 4, 64, 256);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    setlocale(LC_ALL, "C");
    fixture_end(&model);
    return 0;
}

TEST_MAIN(setup, teardown)
