/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ipf.c - iterative proportional fitting against its constraints (C2 and C3 of Eq. 15), and edge cases: certain
 * and impossible experts, ties, sums with rounding errors.
 */
#include "test.h"
#include "cases.h"
#include "ipf.h"

#define CHOSEN_MOST 16

/* Inclusion probabilities from fitted weights (Eq. 24), O(n^2 k): for each expert, the distribution of hits among the
 * rest. */
static void inclusion_by_counting(const double *q, unsigned n, unsigned k, double *f)
{
    double all = 0;

    for (unsigned out = 0; out <= n; out++) { /* out == n leaves out no expert, which gives the sum over all subsets */
        double phi[CHOSEN_MOST + 1] = {1};

        for (unsigned i = 0; i < n; i++) {
            for (unsigned h = k; i != out && h > 0; h--)
                phi[h] = phi[h] * (1 - q[i]) + phi[h - 1] * q[i];
            phi[0] *= i != out ? 1 - q[i] : 1;
        }
        if (out < n)
            f[out] = q[out] * phi[k - 1];
        else
            all = phi[k];
    }
    for (unsigned i = 0; i < n; i++)
        f[i] /= all;
}

static void check_fit(const double *f, unsigned n, unsigned k)
{
    double q[512], got[512], sum = 0, sum_q = 0;
    int rc = efs_ipf_fit(f, n, k, q);

    if (rc)
        fail_msg("%d for n %u k %u f %g %g %g", rc, n, k, f[0], f[1], f[n - 1]);
    inclusion_by_counting(q, n, k, got);
    for (unsigned i = 0; i < n; i++) {
        assert_double_equal(got[i], f[i], 1e-9); /* C2 */
        sum += got[i];
        sum_q += q[i];
    }
    assert_double_equal(sum, k, 1e-9); /* with C2: P sums to 1 (C3), because every subset that counts has k experts */
    assert_double_equal(sum_q, k, 1e-9);
}

TEST(random_layers_meet_c2_and_c3)
{
    static const unsigned experts[] = {8, 32, 64, 128, 256, 512}, chosen[] = {1, 2, 4, 8, 16};
    struct cases cases = {2};

    for (unsigned e = 0; e < 6; e++)
        for (unsigned c = 0; c < 5; c++)
            for (unsigned skew = 0; skew < 8; skew++) {
                double f[512];

                if (chosen[c] >= experts[e])
                    continue;
                cases_inclusion(&cases, f, experts[e], chosen[c], 0.4 * skew, skew % 2 == 1);
                check_fit(f, experts[e], chosen[c]);
            }
}

TEST(extreme_skew_converges)
{
    double f[512];
    struct cases cases = {3};

    for (unsigned skew = 3; skew <= 12; skew += 3) {
        cases_inclusion(&cases, f, 512, 16, skew, false);
        check_fit(f, 512, 16);
        cases_inclusion(&cases, f, 512, 16, skew, true);
        check_fit(f, 512, 16);
    }
}

TEST(corners)
{
    double q[8], w[4], uniform[8], f[8] = {1, 0, 0.5, 0.5, 0.5, 0.5, 0, 1};

    check_fit(f, 8, 4);
    assert_int_equal(efs_ipf_fit(f, 8, 4, q), 0);
    assert_true(q[0] == 1 && q[7] == 1 && q[1] == 0 && q[6] == 0);
    for (unsigned i = 2; i < 6; i++) /* equal inputs give equal outputs */
        assert_true(q[i] == q[2]);

    for (unsigned i = 0; i < 8; i++)
        uniform[i] = 3.0 / 8;
    assert_int_equal(efs_ipf_fit(uniform, 8, 3, q), 0);
    for (unsigned i = 0; i < 8; i++)
        assert_double_equal(q[i], 3.0 / 8, 1e-12);

    double all[3] = {1, 1, 1}, two[3] = {1, 0, 1}, one[1] = {1};
    check_fit(all, 3, 3);
    check_fit(two, 3, 2);
    check_fit(one, 1, 1);

    double crumbs[3] = {1, 1e-13, 1 - 1e-13}, near[3] = {1 - 1e-9, 1 - 1e-9, 2e-9};
    check_fit(crumbs, 3, 2);
    check_fit(near, 3, 2);
    double nearly_all[2] = {1 - 1e-10, 1 - 1e-10}, nearly_one[2] = {1, 1e-10};
    check_fit(nearly_all, 2, 2);
    check_fit(nearly_one, 2, 1);

    double rounded[4] = {0.7000001, 0.6, 0.4, 0.3}; /* off by 1e-7: corrected, and then met */
    double sum = 0;
    assert_int_equal(efs_ipf_fit(rounded, 4, 2, q), 0);
    inclusion_by_counting(q, 4, 2, w);
    for (unsigned i = 0; i < 4; i++) {
        sum += w[i];
        assert_double_equal(w[i], rounded[i], 1e-7);
    }
    assert_double_equal(sum, 2, 1e-12);
}

TEST(invalid_arguments)
{
    double f[4] = {0.5, 0.5, 0.5, 0.5}, q[4], bad[4] = {0.5, NAN, 0.5, 0.5}, big[4] = {1.2, 0.3, 0.3, 0.2};

    assert_int_equal(efs_ipf_fit(f, 0, 2, q), -EINVAL);
    assert_int_equal(efs_ipf_fit(f, 4, 0, q), -EINVAL);
    assert_int_equal(efs_ipf_fit(f, 4, 5, q), -EINVAL);
    assert_int_equal(efs_ipf_fit(f, EFS_IPF_MAX_EXPERTS + 1, 2, q), -EINVAL);
    assert_int_equal(efs_ipf_fit(NULL, 4, 2, q), -EINVAL);
    assert_int_equal(efs_ipf_fit(f, 4, 1, q), -EDOM); /* sums to 2 */
    assert_int_equal(efs_ipf_fit(f, 4, 3, q), -EDOM);
    assert_int_equal(efs_ipf_fit(bad, 4, 2, q), -EDOM);
    assert_int_equal(efs_ipf_fit(big, 4, 2, q), -EDOM);
}

TEST_MAIN(NULL, NULL)
