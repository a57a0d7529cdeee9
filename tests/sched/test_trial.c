/* SPDX-License-Identifier: Apache-2.0 */
/* test_trial.c - the faster mode is kept, the slower one left, and both are reversed when the speeds are. */
#include "test.h"
#include "cases.h"
#include "trial.h"

#include <math.h>

enum { STEPS = 4 };

/* Steps of 1000 ns without and `with` ns with the mode, plus uniform noise. Returns the number of steps with it. */
static unsigned play(struct efs_trial *t, unsigned steps, double with, double noise, uint64_t *random)
{
    unsigned count = 0;

    for (unsigned i = 0; i < steps; i++) {
        double ns = t->with ? with : 1000;

        count += t->with;
        *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ns *= 1 + noise * ((double)(*random >> 33) / (double)(UINT64_C(1) << 30) - 1);
        efs_trial_step(t, (uint64_t)ns, 1);
    }
    return count;
}

TEST(faster_mode_is_kept)
{
    struct efs_trial t;
    uint64_t random = 1;

    efs_trial_init(&t, STEPS);
    assert_false(t.with);
    play(&t, 400, 800, 0.3, &random);
    assert_true(play(&t, 4000, 800, 0.3, &random) > 3600);
    assert_true(fabs(efs_trial_ratio(&t) - 0.8) < 0.1);
}

TEST(slower_mode_is_rarely_tried)
{
    struct efs_trial t;
    uint64_t random = 2;

    efs_trial_init(&t, STEPS);
    play(&t, 400, 1200, 0.3, &random);
    assert_true(play(&t, 4000, 1200, 0.3, &random) < 200);
    assert_true(fabs(efs_trial_ratio(&t) - 1.2) < 0.15);
}

TEST(choice_follows_speed)
{
    struct efs_trial t;
    uint64_t random = 3;

    efs_trial_init(&t, STEPS);
    play(&t, 2000, 800, 0.2, &random);
    play(&t, 2000, 1200, 0.2, &random);
    assert_true(play(&t, 2000, 1200, 0.2, &random) < 200);
    play(&t, 2000, 800, 0.2, &random);
    assert_true(play(&t, 2000, 800, 0.2, &random) > 1800);
}

/* All steps get slower by the same factor, with and without: the ratio stays 1. */
TEST(drift_is_no_difference)
{
    struct efs_trial t;
    double ns = 1000;

    efs_trial_init(&t, STEPS);
    for (unsigned i = 0; i < 400; i++, ns *= 1.01)
        efs_trial_step(&t, (uint64_t)ns, 1);
    assert_true(fabs(efs_trial_ratio(&t) - 1) < 0.01);
}

/* Blocks interrupted by other work are not compared: here only that work makes those with the mode slow. */
TEST(interrupted_blocks_are_ignored)
{
    struct efs_trial t;

    efs_trial_init(&t, STEPS);
    for (unsigned i = 0; i < 400; i++) {
        efs_trial_step(&t, t.with ? 5000 : 1000, 1);
        if (i % STEPS == 1)
            efs_trial_discard_block(&t);
    }
    assert_true(fabs(efs_trial_ratio(&t) - 1) < 1e-9);
}

/* A step's time depends on its work, 1 to 9 units, and is 10 % shorter with the mode. */
TEST(varying_work)
{
    struct efs_trial t;
    uint64_t random = 4;

    efs_trial_init(&t, STEPS);
    for (unsigned i = 0; i < 100 * STEPS; i++) {
        uint64_t work = 1 + random % 9;
        double ns = (200 + 1000 * (double)work) * (t.with ? 0.9 : 1);

        if (i % STEPS == 0)
            random = (random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407)) >> 3;
        efs_trial_step(&t, (uint64_t)ns, work);
    }
    assert_true(t.decided && t.better);
    assert_true(fabs(efs_trial_ratio(&t) - 0.9) < 0.02);
}

/* As with another process that keeps the disk busy: the cost of prefetch is hidden in the variance of tokens, and must
 * cost less than 1 % in total. */
TEST(noise_costs_little)
{
    for (unsigned slower = 1050; slower <= 1300; slower += 50) {
        double lost = 0, all = 0;

        for (uint64_t seed = 1; seed <= 32; seed++) {
            struct efs_trial t;
            uint64_t random = seed << 32;

            efs_trial_init(&t, 1);
            lost += (slower - 1000.0) * play(&t, 1000, slower, 0.9, &random);
            all += 1000.0 * 1000;
        }
        assert_true(lost < 0.01 * all);
    }
}

TEST(no_difference_turns_mode_off)
{
    struct efs_trial t;
    uint64_t random = 5;

    efs_trial_init(&t, STEPS);
    play(&t, 4000, 1000, 0.3, &random);
    assert_true(t.decided && !t.better);
}

/* Another process starts to use the disk: blocks take longer, and the trial measures both modes again at once. */
TEST(change_of_speed_restarts_trial)
{
    struct efs_trial t;
    uint64_t random = 6;
    unsigned tokens = 0;

    efs_trial_init(&t, STEPS);
    play(&t, 4000, 800, 0.1, &random);
    assert_true(t.decided && t.better);
    for (; t.better && tokens < 1000; tokens++)
        efs_trial_step(&t, t.with ? 5000 : 3000, 1);
    assert_true(tokens < 16 * STEPS);
}

TEST_MAIN(NULL, NULL)
