/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h - shared by the tests of the planner and the policies: a random stream, inclusion probabilities.
 */
#ifndef EFS_TEST_SCHED_CASES_H
#define EFS_TEST_SCHED_CASES_H

#include <math.h>

#include "test.h"
#include "makespan.h"
#include "random.h"

#undef assert_double_equal
#define assert_double_equal(a, b, tolerance)                                                                           \
    do {                                                                                                               \
        double cases_a = (a), cases_b = (b), cases_t = (tolerance);                                                    \
        if (!(fabs(cases_a - cases_b) <= cases_t))                                                                     \
            fail_msg("%s = %.17g, %s = %.17g, further apart than %g", #a, cases_a, #b, cases_b, cases_t);              \
    } while (0)

/* Makespan of a request for `chosen` experts: hits[p] of them are in pool p, the rest are missing. */
static inline double cases_makespan(const struct efs_cost *cost, unsigned chosen, const unsigned hits[EFS_POOLS])
{
    unsigned missing = chosen - hits[EFS_POOL_F] - hits[EFS_POOL_C] - hits[EFS_POOL_S] - hits[EFS_POOL_E];
    struct efs_share sum = {0};

    for (unsigned pool = 0; pool <= EFS_POOLS; pool++) {
        struct efs_share share = efs_makespan_share(cost, (enum efs_pool)pool);
        unsigned count = pool == EFS_POOL_M ? missing : hits[pool];

        sum.io_ns += count * share.io_ns;
        sum.cpu_ns += count * share.cpu_ns;
    }
    return efs_makespan_of(cost, sum, missing || hits[EFS_POOL_S] || hits[EFS_POOL_E]);
}

/* A stream of random numbers (splitmix64), the same on every machine. */
struct cases {
    uint64_t seed;
};

static inline uint64_t cases_next(struct cases *cases)
{
    return efs_random(&cases->seed);
}

/* In [0, 1). */
static inline double cases_uniform(struct cases *cases)
{
    return (double)(cases_next(cases) >> 11) * 0x1p-53;
}

/* In 0 .. n - 1. */
static inline uint32_t cases_below(struct cases *cases, uint32_t n)
{
    return (uint32_t)(cases_next(cases) % n);
}

/*
 * Inclusion probabilities of n experts that sum to k: proportional to rank^-skew, or random with exponent skew. They
 * are feasible by construction: w / (1 + w) of scaled weights.
 */
static inline void cases_inclusion(struct cases *cases, double *f, unsigned n, unsigned k, double skew, bool random)
{
    double low = -2000, high = 2000;

    for (unsigned i = 0; i < n; i++)
        f[i] = skew * (random ? log(1e-3 + cases_uniform(cases)) : -log(i + 1.0));
    for (unsigned round = 0; round < 200; round++) {
        double middle = (low + high) / 2, sum = 0;

        for (unsigned i = 0; i < n; i++)
            sum += 1 / (1 + exp(-f[i] - middle));
        if (sum > k)
            high = middle;
        else
            low = middle;
    }
    for (unsigned i = 0; i < n; i++)
        f[i] = 1 / (1 + exp(-f[i] - low));
}

#endif
