/* SPDX-License-Identifier: Apache-2.0 */
/* Search for runs of free granules, by words, compared with a search by bits. */
#include "test.h"
#include "fixture.h"
#include "runs.h"

#define MOST 512

static bool bit(const uint64_t *taken, uint32_t g)
{
    return taken[g / 64] >> (g % 64) & 1;
}

static uint32_t find_slowly(const uint64_t *taken, uint32_t all, uint32_t need, bool from_high, uint32_t *longest)
{
    uint32_t run = 0, most = 0;
    for (uint32_t i = 0; i < all; i++) {
        uint32_t g = from_high ? all - 1 - i : i;
        run = bit(taken, g) ? 0 : run + 1;
        most = run > most ? run : most;
        if (run == need)
            return from_high ? g : g - need + 1;
    }
    *longest = most;
    return all;
}

/* Long and short runs: a bit differs from the one before it with a random probability. */
static void fill(uint64_t *taken, uint32_t all, uint64_t *rnd)
{
    uint64_t change_one_in = 1 + fixture_random(rnd) % 100;
    bool value = fixture_random(rnd) & 1;
    memset(taken, 0, all / 8);
    for (uint32_t g = 0; g < all; g++) {
        value ^= fixture_random(rnd) % change_one_in == 0;
        taken[g / 64] |= (uint64_t)value << (g % 64);
    }
}

TEST(test_find)
{
    uint64_t taken[MOST / 64], rnd = 7;
    unsigned found = 0, none = 0;
    for (int round = 0; round < 4000; round++) {
        uint32_t all = 64 * (1 + (uint32_t)(fixture_random(&rnd) % (MOST / 64)));
        fill(taken, all, &rnd);
        for (int i = 0; i < 20; i++) {
            uint32_t need = 1 + (uint32_t)(fixture_random(&rnd) % (i % 2 ? all : 20)), expected = 1234, longest = 1234;
            bool high = fixture_random(&rnd) & 1;
            uint32_t at = find_slowly(taken, all, need, high, &expected);
            assert_int_equal(efs_runs_find(taken, all, need, high, &longest), at);
            assert_int_equal(longest, expected); /* unchanged if a run was found */
            *(at < all ? &found : &none) += 1;
        }
    }
    assert_true(found > 1000 && none > 1000);
}

TEST(test_ends)
{
    uint64_t taken[2] = {0, 0};
    uint32_t longest = 0;
    assert_int_equal(efs_runs_find(taken, 128, 128, false, &longest), 0);
    assert_int_equal(efs_runs_find(taken, 128, 128, true, &longest), 0);
    assert_int_equal(efs_runs_find(taken, 128, 129, true, &longest), 128);
    assert_int_equal(longest, 128);
    efs_runs_mark(taken, 0, 128, true);
    assert_int_equal(efs_runs_find(taken, 128, 1, false, &longest), 128);
    assert_int_equal(longest, 0);
    efs_runs_mark(taken, 127, 1, false);
    assert_int_equal(efs_runs_find(taken, 128, 1, false, &longest), 127);
    assert_int_equal(efs_runs_find(taken, 128, 1, true, &longest), 127);
}

TEST(test_mark_and_around)
{
    uint64_t taken[MOST / 64], rnd = 3;
    for (int round = 0; round < 20000; round++) {
        fill(taken, MOST, &rnd);
        uint64_t before[MOST / 64];
        memcpy(before, taken, sizeof(before));
        uint32_t first = (uint32_t)(fixture_random(&rnd) % MOST);
        uint32_t count = 1 + (uint32_t)(fixture_random(&rnd) % (MOST - first));
        bool take = fixture_random(&rnd) & 1;
        efs_runs_mark(taken, first, count, take);
        for (uint32_t g = 0; g < MOST; g++)
            assert_int_equal(bit(taken, g), g >= first && g < first + count ? take : bit(before, g));
        if (take)
            continue;
        uint32_t low = first, high = first + count;
        while (low > 0 && !bit(taken, low - 1))
            low--;
        while (high < MOST && !bit(taken, high))
            high++;
        assert_int_equal(efs_runs_around(taken, MOST, first, count), high - low);
    }
}

TEST_MAIN(NULL, NULL)
