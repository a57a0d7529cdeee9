/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rank.c - the frequency list against sorting from scratch; its ageing, its profile, its drift.
 */
#include "cases.h"
#include "rank.h"

enum { LAYERS = 3, EXPERTS = 20 };

/* The list must be a permutation in falling order of count, and counts must be those of the model. */
static void check_order(const struct efs_rank *rank, unsigned layer, const uint32_t *counts)
{
    bool used[EXPERTS] = {false};

    for (unsigned r = 0; r < EXPERTS; r++) {
        unsigned expert = efs_rank_at(rank, layer, r);

        assert_true(expert < EXPERTS && !used[expert]);
        used[expert] = true;
        assert_int_equal(efs_rank_of(rank, layer, expert), r);
        assert_int_equal(efs_rank_count(rank, layer, expert), counts[expert]);
        if (r > 0)
            assert_true(counts[efs_rank_at(rank, layer, r - 1)] >= counts[expert]);
    }
}

static void order_follows_the_counts(void **state)
{
    struct cases cases = {31};
    uint32_t counts[LAYERS][EXPERTS] = {{0}};
    struct efs_rank *rank = efs_rank_new(LAYERS, EXPERTS, 0);

    (void)state;
    assert_non_null(rank);
    for (unsigned round = 0; round < 3000; round++) {
        unsigned layer = cases_below(&cases, LAYERS);
        uint32_t asked[4];

        for (unsigned i = 0; i < 4; i++) { /* skewed, without doubles */
            asked[i] = (uint32_t)(EXPERTS * pow(cases_uniform(&cases), 2));
            for (unsigned j = 0; j < i; j++)
                if (asked[j] == asked[i])
                    j = i--;
        }
        efs_rank_request(rank, layer, asked, 4);
        for (unsigned i = 0; i < 4; i++)
            counts[layer][asked[i]]++;
        check_order(rank, layer, counts[layer]);
    }
    efs_rank_free(rank);
    efs_rank_free(NULL);
}

static void first_to_a_count_ranks_first(void **state)
{
    struct efs_rank *rank = efs_rank_new(1, 5, 0);
    uint32_t asked[3] = {3, 1, 4};

    (void)state;
    assert_non_null(rank);
    efs_rank_request(rank, 0, asked, 3);
    assert_int_equal(efs_rank_of(rank, 0, 3), 0);
    assert_int_equal(efs_rank_of(rank, 0, 1), 1);
    assert_int_equal(efs_rank_of(rank, 0, 4), 2);
    efs_rank_request(rank, 0, &asked[2], 1);
    assert_int_equal(efs_rank_of(rank, 0, 4), 0);
    efs_rank_free(rank);
}

static void counts_age(void **state)
{
    struct efs_rank *rank = efs_rank_new(2, EXPERTS, 8);
    uint32_t seven = 7, two = 2, counts[EXPERTS] = {0};

    (void)state;
    assert_non_null(rank);
    for (unsigned i = 0; i < 7; i++)
        efs_rank_request(rank, 1, &seven, 1);
    assert_int_equal(efs_rank_count(rank, 1, 7), 7);
    efs_rank_request(rank, 1, &two, 1); /* the eighth request: 7 and 1 become 3 and 0 */
    counts[7] = 3;
    check_order(rank, 1, counts);
    for (unsigned i = 0; i < 8; i++) /* what was hot before is overtaken within two half-lives */
        efs_rank_request(rank, 1, &two, 1);
    assert_int_equal(efs_rank_of(rank, 1, 2), 0);
    assert_int_equal(efs_rank_count(rank, 1, 2), 4);
    assert_int_equal(efs_rank_count(rank, 1, 7), 1);
    assert_int_equal(efs_rank_count(rank, 0, 7), 0); /* another layer */
    efs_rank_free(rank);
}

static void seeding(void **state)
{
    struct cases cases = {32};
    struct efs_rank *rank = efs_rank_new(LAYERS, EXPERTS, 0);
    uint32_t counts[EXPERTS], one = 5;

    (void)state;
    assert_non_null(rank);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < EXPERTS; i++)
            counts[i] = cases_below(&cases, 6);
        efs_rank_seed(rank, 2, counts);
        check_order(rank, 2, counts);
        efs_rank_request(rank, 2, &one, 1);
        counts[5]++;
        check_order(rank, 2, counts);
    }
    for (unsigned i = 0; i < EXPERTS; i++)
        counts[i] = UINT32_MAX;
    efs_rank_seed(rank, 0, counts);
    efs_rank_request(rank, 0, &one, 1); /* stays at the top, does not wrap */
    check_order(rank, 0, counts);
    efs_rank_free(rank);
}

static void profile_is_the_rank_at_the_time(void **state)
{
    struct efs_rank *rank = efs_rank_new(2, 4, 0);
    uint32_t seed[4] = {40, 30, 20, 10}, asked[2] = {0, 2};
    double f[4], sum = 0;

    (void)state;
    assert_non_null(rank);
    assert_int_equal(efs_rank_profile(rank, 0, 2, f), 0);
    for (unsigned r = 0; r < 4; r++)
        assert_double_equal(f[r], 0.5, 1e-12); /* nothing seen: flat, and sums to chosen */
    efs_rank_seed(rank, 0, seed);
    for (unsigned i = 0; i < 8; i++)
        efs_rank_request(rank, 0, asked, 2); /* ranks 0 and 2: counts stay 48 and 28 */
    assert_int_equal(efs_rank_profile(rank, 0, 2, f), 8);
    /* seen 8.5 0.5 8.5 0.5, which scaled to a sum of 2 is 17/18 ... */
    assert_double_equal(f[0], 17 / 18.0, 1e-12);
    assert_double_equal(f[1], 1 / 18.0, 1e-12);
    assert_double_equal(f[2], 17 / 18.0, 1e-12);
    asked[0] = 1;
    efs_rank_request(rank, 1, asked, 2); /* ranks 1 and 2 of the other layer */
    assert_int_equal(efs_rank_profile(rank, EFS_RANK_ALL, 2, f), 9);
    assert_double_equal(f[1], 1.5 * 2 / 20, 1e-12);
    assert_int_equal(efs_rank_profile(rank, 0, 3, f), 8); /* of a larger choice: two are certain, the rest share one */
    for (unsigned r = 0; r < 4; r++)
        sum += f[r];
    assert_double_equal(sum, 3, 1e-12);
    assert_true(f[0] == 1 && f[2] == 1);
    assert_double_equal(f[1], 0.5, 1e-12);
    efs_rank_profile_clear(rank);
    assert_int_equal(efs_rank_profile(rank, EFS_RANK_ALL, 2, f), 0);
    assert_int_equal(efs_rank_count(rank, 0, 0), 48); /* counts stay */
    efs_rank_free(rank);
}

static void drift(void **state)
{
    double a[4] = {0.9, 0.6, 0.3, 0.2}, b[4] = {0.9, 0.6, 0.3, 0.2}, c[4] = {0.4, 0.6, 0.3, 0.7};

    (void)state;
    assert_double_equal(efs_rank_drift(a, b, 4), 0, 0);
    assert_double_equal(efs_rank_drift(a, c, 4), 1.0 / 4, 1e-12);
    double d[2] = {1, 0}, e[2] = {0, 1}, zero[2] = {0, 0};
    assert_double_equal(efs_rank_drift(d, e, 2), 1, 0);
    assert_double_equal(efs_rank_drift(zero, zero, 2), 0, 0);
}

static void limits(void **state)
{
    (void)state;
    assert_null(efs_rank_new(0, 4, 0));
    assert_null(efs_rank_new(4, 0, 0));
    assert_null(efs_rank_new(EFS_RANK_MAX_LAYERS + 1, 4, 0));
    assert_null(efs_rank_new(4, EFS_RANK_MAX_EXPERTS + 1, 0));
    struct efs_rank *rank = efs_rank_new(1, EFS_RANK_MAX_EXPERTS, 0);
    assert_non_null(rank);
    assert_int_equal(efs_rank_of(rank, 0, EFS_RANK_MAX_EXPERTS - 1), EFS_RANK_MAX_EXPERTS - 1);
    efs_rank_free(rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_follows_the_counts),
        cmocka_unit_test(first_to_a_count_ranks_first),
        cmocka_unit_test(counts_age),
        cmocka_unit_test(seeding),
        cmocka_unit_test(profile_is_the_rank_at_the_time),
        cmocka_unit_test(drift),
        cmocka_unit_test(limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
