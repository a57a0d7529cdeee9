/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hits.c - Algorithm 2 against the enumeration of all subsets.
 */
#include "test.h"
#include "cases.h"
#include "hits.h"

/* P(h[p] hits in pool p for all p | k in total); pools are consecutive ranges of experts. By enumeration of all 2^n
 * subsets. */
static double pattern_by_enumeration(const double *q, unsigned n, unsigned k, const unsigned *size, const unsigned *h,
                                     unsigned pools)
{
    double pattern = 0, all = 0;

    for (uint32_t set = 0; set < 1u << n; set++) {
        double p = 1;
        unsigned rank = 0;
        bool fits = true;

        if ((unsigned)__builtin_popcount(set) != k)
            continue;
        for (unsigned i = 0; i < n; i++)
            p *= set >> i & 1 ? q[i] : 1 - q[i];
        all += p;
        for (unsigned i = 0; i < pools; i++) {
            uint32_t mask = (uint32_t)(((UINT64_C(1) << size[i]) - 1) << rank);

            fits = fits && (unsigned)__builtin_popcount(set & mask) == h[i];
            rank += size[i];
        }
        pattern += fits ? p : 0;
    }
    return pattern / all;
}

TEST(distribution_is_the_enumeration)
{
    struct cases cases = {11};

    for (unsigned n = 1; n <= 12; n++) {
        double q[12], expected[15] = {0};

        for (unsigned i = 0; i < n; i++)
            q[i] = i == 3 ? 0 : i == 7 ? 1 : cases_uniform(&cases);
        for (uint32_t set = 0; set < 1u << n; set++) {
            double p = 1;

            for (unsigned i = 0; i < n; i++)
                p *= set >> i & 1 ? q[i] : 1 - q[i];
            expected[__builtin_popcount(set)] += p;
        }
        for (unsigned most = n; most > 0; most = most > 2 ? 2 : 0) { /* 2 is narrower than n: cut off, not folded */
            struct efs_hits_table *table = efs_hits_table_new(q, n, most);
            const double *phi = table ? efs_hits_range(table, 0, n) : NULL;

            assert_non_null(phi);
            for (unsigned h = 0; h <= most; h++)
                assert_double_equal(phi[h], expected[h], 1e-12);
            efs_hits_table_free(table);
        }
    }
}

TEST(patterns_are_the_enumeration)
{
    struct cases cases = {12};

    for (unsigned round = 0; round < 60; round++) {
        unsigned n = 5 + cases_below(&cases, 8), k = 1 + cases_below(&cases, 4), size[5], rank = 0;
        double q[12], total = 0;

        for (unsigned i = 0; i < n; i++)
            q[i] = 0.02 + 0.9 * cases_uniform(&cases);
        for (unsigned p = 0; p < 4; p++) {
            size[p] = cases_below(&cases, n - rank + 1) / 2;
            rank += size[p];
        }
        size[4] = n - rank;

        struct efs_hits_table *table = efs_hits_table_new(q, n, k);
        assert_non_null(table);
        for (unsigned code = 0; code < 625; code++) { /* hits of four pools, 0 .. 4 each; the fifth is the misses */
            unsigned h[5] = {code % 5, code / 5 % 5, code / 25 % 5, code / 125, 0};
            unsigned sum = h[0] + h[1] + h[2] + h[3];
            double p = 1;

            if (sum > k)
                continue;
            h[4] = k - sum;
            rank = 0;
            for (unsigned pool = 0; pool < 5; pool++) {
                p *= efs_hits_range(table, rank, size[pool])[h[pool]];
                rank += size[pool];
            }
            p /= efs_hits_range(table, 0, n)[k];
            assert_double_equal(p, pattern_by_enumeration(q, n, k, size, h, 5), 1e-12);
            total += p;
        }
        assert_double_equal(total, 1, 1e-12);
        efs_hits_table_free(table);
    }
}

TEST(limits)
{
    const double q[4] = {0.5, 0.5, 0.5, 0.5};

    efs_hits_table_free(NULL);
    assert_null(efs_hits_table_new(q, 0, 4));
    assert_null(efs_hits_table_new(q, EFS_HITS_MAX_EXPERTS + 1, 4));
    assert_null(efs_hits_table_new(NULL, 4, 4));
}

TEST_MAIN(NULL, NULL)
