/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning while a store is served: the planner keeps a plan that is nearly as good as the best one, and replaces it by
 * a clearly better one or by the user's.
 */
#include <unistd.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-private.h"

#define LAYERS 3
#define EXPERTS 8
#define MIB (1ull << 20)

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024);
    return 0;
}

static double number_of(struct efs *fs, const char *name)
{
    char *text, *line;
    size_t bytes;
    assert_int_equal(efs_describe(fs, "plan", &text, &bytes), 0);
    line = strstr(text, name);
    assert_non_null(line);
    double number = strtod(line + strlen(name), NULL);
    free(text);
    return number;
}

static void leave_mib(struct efs *fs, double mib)
{
    char text[32];
    struct efs_stats s;
    efs_stats(fs, &s);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)(s.fixed_bytes + (uint64_t)(mib * MIB)));
    fixture_set_and_plan(fs, "budget", text);
}

static struct efs *open_with(uint64_t budget_bytes, const char *goal)
{
    return fixture_open(&model, (struct efs_options){.budget_bytes = budget_bytes,
                                                     .workers = 2,
                                                     .full_pool = true,
                                                     .prealloc = true,
                                                     .goal = goal,
                                                     .no_state = true});
}

/* With no reads left, only decoding can be saved. */
TEST(test_io)
{
    struct efs *fs = open_with(512 * MIB, "io");
    double all = number_of(fs, "hits_f: ");
    leave_mib(fs, 64);
    assert_true(number_of(fs, "hits_f: ") < all);
    leave_mib(fs, 400);
    assert_float_equal(number_of(fs, "hits_f: "), all, 1e-3);
    efs_close(fs);
}

TEST(test_hysteresis)
{
    struct efs *fs = open_with(512 * MIB, NULL);
    double all = number_of(fs, "hits_f: ");
    assert_float_equal(number_of(fs, "misses: "), 0, 1e-3); /* all experts fit */
    leave_mib(fs, 48);
    double f = number_of(fs, "ratio_f: "), c = number_of(fs, "ratio_c: ");
    assert_true(number_of(fs, "hits_f: ") < all && f + c > 0);
    for (double mib = 48.25; mib < 50.5; mib += 0.25) { /* under 5 % more: too little to gain */
        leave_mib(fs, mib);
        print_message("# %.2f: F %.4f C %.4f\n", mib, number_of(fs, "ratio_f: "), number_of(fs, "ratio_c: "));
        assert_float_equal(number_of(fs, "ratio_f: "), f, 1e-3);
        assert_float_equal(number_of(fs, "ratio_c: "), c, 1e-3);
    }
    leave_mib(fs, 400); /* clearly better: no decoding */
    assert_float_equal(number_of(fs, "hits_f: "), all, 1e-3);
    fixture_set_and_plan(fs, "plan", "C=100");
    assert_float_equal(number_of(fs, "ratio_c: "), 1, 1e-3);
    efs_close(fs);
}

/* With no_state, the engine creates neither a state directory nor a profile. */
TEST(test_no_state)
{
    const struct efs_need need = {.expert = 1, .tokens = 1};
    char path[400];
    snprintf(path, sizeof(path), "%s/state", model.directory);
    setenv("EXPERTFS_STATE", path, 1);
    for (int no_state = 1; no_state >= 0; no_state--) {
        struct efs *fs = fixture_open(
            &model, (struct efs_options){.budget_bytes = 2048 * MIB, .workers = 2, .no_state = no_state != 0});
        assert_int_equal(fixture_prefetch(fs, 0, &need, 1, NULL), 0);
        efs_close(fs);
        assert_int_equal(access(path, F_OK) == 0, !no_state);
    }
    unsetenv("EXPERTFS_STATE");
}

TEST_MAIN(setup, fixture_teardown)
