/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that links the library may have a locale with decimal commas: settings, descriptions of a store and hints
 * in a mount's file are the same in it.
 */
#include <locale.h>

#include "test.h"
#include "expertfs-private.h"
#include "fixture_mount.h"

#define MIB (1ull << 20)

static struct fixture model;
static struct fixture_mount mount;

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

TEST(test_hint)
{
    begin();
    const uint32_t experts[] = {3, 1};
    const float weights[] = {0.25f, 0.5f};
    const struct efs_routing hint = {.layer = 1, .count = 2, .experts = experts, .weights = weights};
    const struct efs_client_options options = {.threads = 1};
    struct efs_error err = {""};
    char path[400], text[64] = "";
    fixture_mount_file(&mount, ".expertfs/hint", "", 0);
    struct efs_client *client = fixture_client(mount.directory, &options);
    if (efs_hint(client, &hint, &err) < 0)
        fail_msg("%s", err.text);
    efs_client_close(client);
    snprintf(path, sizeof(path), "%s/.expertfs/hint", mount.directory);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    fclose(file);
    assert_string_equal(text, "1: 3?0.2500 1?0.5000\n");
}

static int setup(void **state)
{
    (void)state;
    fixture_mount_begin_moe(&mount, &model, 2, 4);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    setlocale(LC_ALL, "C");
    fixture_mount_end_moe(&mount, &model);
    return 0;
}

TEST_MAIN(setup, teardown)
