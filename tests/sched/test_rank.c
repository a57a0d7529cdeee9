/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rank.c - the frequency list against a full sort; its ageing.
 */
#include "test.h"
#include "cases.h"
#include "rank.h"

enum { LAYERS = 3, EXPERTS = 20 };

/* Ranks must be a permutation by falling count, and counts must be those of the model. */
static void check_order(const struct efs_rank *rank, unsigned layer, const uint32_t *counts)
{
    unsigned at[EXPERTS];

    memset(at, 0xff, sizeof(at));
    for (unsigned expert = 0; expert < EXPERTS; expert++) {
        unsigned r = efs_rank_of(rank, layer, expert);

        assert_true(r < EXPERTS && at[r] == UINT32_MAX);
        at[r] = expert;
        assert_int_equal(efs_rank_count(rank, layer, expert), counts[expert]);
    }
    for (unsigned r = 1; r < EXPERTS; r++)
        assert_true(counts[at[r - 1]] >= counts[at[r]]);
}

TEST(order_follows_the_counts)
{
    struct cases cases = {31};
    uint32_t counts[LAYERS][EXPERTS] = {{0}};
    struct efs_rank *rank = efs_rank_new(LAYERS, EXPERTS, 0);

    assert_non_null(rank);
    for (unsigned round = 0; round < 3000; round++) {
        unsigned layer = cases_below(&cases, LAYERS);
        uint32_t asked[4];

        for (unsigned i = 0; i < 4; i++) { /* skewed, without duplicates */
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

TEST(first_to_a_count_ranks_first)
{
    struct efs_rank *rank = efs_rank_new(1, 5, 0);
    uint32_t asked[3] = {3, 1, 4};

    assert_non_null(rank);
    efs_rank_request(rank, 0, asked, 3);
    assert_int_equal(efs_rank_of(rank, 0, 3), 0);
    assert_int_equal(efs_rank_of(rank, 0, 1), 1);
    assert_int_equal(efs_rank_of(rank, 0, 4), 2);
    efs_rank_request(rank, 0, &asked[2], 1);
    assert_int_equal(efs_rank_of(rank, 0, 4), 0);
    efs_rank_free(rank);
}

TEST(counts_age)
{
    struct efs_rank *rank = efs_rank_new(2, EXPERTS, 8);
    uint32_t seven = 7, two = 2, counts[EXPERTS] = {0};

    assert_non_null(rank);
    for (unsigned i = 0; i < 7; i++)
        efs_rank_request(rank, 1, &seven, 1);
    assert_int_equal(efs_rank_count(rank, 1, 7), 7);
    efs_rank_request(rank, 1, &two, 1); /* the eighth request: 7 and 1 become 3 and 0 */
    counts[7] = 3;
    check_order(rank, 1, counts);
    for (unsigned i = 0; i < 8; i++) /* a formerly hot expert is overtaken within two half-lives */
        efs_rank_request(rank, 1, &two, 1);
    assert_int_equal(efs_rank_of(rank, 1, 2), 0);
    assert_int_equal(efs_rank_count(rank, 1, 2), 4);
    assert_int_equal(efs_rank_count(rank, 1, 7), 1);
    assert_int_equal(efs_rank_count(rank, 0, 7), 0); /* another layer */
    efs_rank_free(rank);
}

TEST(seeding)
{
    struct cases cases = {32};
    struct efs_rank *rank = efs_rank_new(LAYERS, EXPERTS, 0);
    uint32_t counts[EXPERTS], one = 5;

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

TEST(limits)
{
    assert_null(efs_rank_new(0, 4, 0));
    assert_null(efs_rank_new(4, 0, 0));
    assert_null(efs_rank_new(EFS_RANK_MAX_LAYERS + 1, 4, 0));
    assert_null(efs_rank_new(4, EFS_RANK_MAX_EXPERTS + 1, 0));
    struct efs_rank *rank = efs_rank_new(1, EFS_RANK_MAX_EXPERTS, 0);
    assert_non_null(rank);
    assert_int_equal(efs_rank_of(rank, 0, EFS_RANK_MAX_EXPERTS - 1), EFS_RANK_MAX_EXPERTS - 1);
    efs_rank_free(rank);
}

TEST_MAIN(NULL, NULL)
