/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_planner.c - Algorithm 4 against brute force over every split and every subset of experts; then each extension.
 */
#include "test.h"
#include "cases.h"
#include "ipf.h"
#include "planner_layer.h"

/* Algorithm 4, with the budget of the request. */
static int plan_layer(const struct efs_plan_request *request, struct efs_plan *plan)
{
    struct efs_plan_layer_state layer;
    int rc = efs_plan_open(&layer, request);

    if (rc == 0) {
        rc = efs_plan_search(&layer, request->budget_bytes, plan);
        efs_plan_close(&layer);
    }
    return rc;
}

static const uint64_t bytes[EFS_POOLS] = {1000, 667, 500, 167};
static const struct efs_cost cost = {
    .sm_read_ns = 100, .e_read_ns = 8, .decode_ns = 9, .threads = 2, .shards = 4, .tensors = 3};

/* Expected makespan of capacities, by all subsets of k experts under Eq. 22. */
static double expected_by_enumeration(const struct efs_plan_request *r, const double *q, const unsigned *capacity)
{
    double sum = 0, all = 0;

    for (uint32_t set = 0; set < 1u << r->experts; set++) {
        unsigned hits[EFS_POOLS] = {0}, first = 0;
        double p = 1;

        if ((unsigned)__builtin_popcount(set) != r->chosen)
            continue;
        for (unsigned i = 0; i < r->experts; i++)
            p *= set >> i & 1 ? q[i] : 1 - q[i];
        for (unsigned pool = 0; pool < EFS_POOLS; pool++)
            for (unsigned i = 0; i < capacity[pool]; i++)
                hits[pool] += set >> first++ & 1;
        sum += p * cases_makespan(&r->cost, r->chosen, hits);
        all += p;
    }
    return sum / all;
}

/* The best split by brute force, with the tie order that the header specifies. */
static double best_by_brute_force(const struct efs_plan_request *r, unsigned *best)
{
    unsigned steps = (unsigned)lround(1 / r->step), n = 0;
    double q[12], least = 0;

    assert_int_equal(efs_ipf_fit(r->inclusion, r->experts, r->chosen, q), 0);
    for (unsigned f = steps + 1; f-- > 0;)
        for (unsigned c = steps - f + 1; c-- > 0;)
            for (unsigned s = steps - f - c + 1; s-- > 0;) {
                unsigned part[EFS_POOLS] = {f, c, s, steps - f - c - s}, capacity[EFS_POOLS], left = r->experts;
                bool allowed = true;

                for (unsigned p = 0; p < EFS_POOLS; p++) {
                    uint64_t fits = r->budget_bytes * part[p] / steps / r->expert_bytes[p];

                    allowed = allowed && (!part[p] || r->pools & EFS_PLAN_POOL(p));
                    capacity[p] = fits < left ? (unsigned)fits : left;
                    left -= capacity[p];
                }
                if (!allowed)
                    continue;
                double ns = expected_by_enumeration(r, q, capacity);
                if (n++ == 0 || ns < least * (1 - 1e-11)) {
                    least = ns;
                    memcpy(best, capacity, EFS_POOLS * sizeof(*best));
                }
            }
    return least;
}

static struct efs_plan_request layer(const double *f, unsigned n, unsigned k, uint64_t budget)
{
    struct efs_plan_request r = {.inclusion = f,
                                 .experts = n,
                                 .chosen = k,
                                 .budget_bytes = budget,
                                 .pools = EFS_PLAN_ALL_POOLS,
                                 .step = 0.1,
                                 .cost = cost};

    memcpy(r.expert_bytes, bytes, sizeof(bytes));
    return r;
}

TEST(grid_search_is_brute_force)
{
    struct cases cases = {21};

    for (unsigned round = 0; round < 40; round++) {
        unsigned n = 4 + cases_below(&cases, 6), k = 1 + cases_below(&cases, 3), best[EFS_POOLS];
        double f[12], least;
        struct efs_plan plan;

        cases_inclusion(&cases, f, n, k, 2 * cases_uniform(&cases), false);
        struct efs_plan_request r = layer(f, n, k, (uint64_t)(cases_uniform(&cases) * n * 1000));
        r.pools = 1 + cases_below(&cases, 15);
        r.step = round % 2 ? 0.2 : 0.25;
        r.cost.extended = round % 3 == 0;
        r.cost.request_ns = 11;
        r.cost.decode_ns = round % 5 == 0 ? 60 : 9; /* one case in five is bound by decoding */
        least = best_by_brute_force(&r, best);
        assert_int_equal(plan_layer(&r, &plan), 0);
        assert_double_equal(plan.makespan_ns, least, 1e-9 * least);
        for (unsigned p = 0; p < EFS_POOLS; p++)
            assert_int_equal(plan.capacity[p], best[p]);

        uint64_t used = 0;
        for (unsigned p = 0; p < EFS_POOLS; p++) {
            used += plan.used_bytes[p];
            assert_int_equal(plan.used_bytes[p], plan.capacity[p] * bytes[p]);
            assert_true(plan.capacity[p] == 0 || r.pools & EFS_PLAN_POOL(p));
        }
        assert_true(used <= r.budget_bytes);
    }
}

TEST(numbers_of_a_plan)
{
    double f[6] = {0.9, 0.5, 0.3, 0.2, 0.06, 0.04};
    unsigned capacity[EFS_POOLS] = {1, 1, 1, 1};
    struct efs_plan_request r = layer(f, 6, 2, 5000);
    struct efs_plan plan;

    assert_int_equal(efs_plan_evaluate(&r, capacity, &plan), 0);
    for (unsigned p = 0; p < EFS_POOLS; p++)
        assert_double_equal(plan.hits[p], f[p], 1e-15);
    /* reads: an S hit 12 * 8 = 96, an E hit 300, a miss 396 */
    assert_double_equal(plan.io_ns, 0.3 * 96 + 0.2 * 300 + 0.1 * 396, 1e-9);

    unsigned too_many[EFS_POOLS] = {4, 4, 4, 4}; /* capped at the six experts that exist */
    assert_int_equal(efs_plan_evaluate(&r, too_many, &plan), 0);
    assert_int_equal(plan.capacity[EFS_POOL_F], 4);
    assert_int_equal(plan.capacity[EFS_POOL_C], 2);
    assert_int_equal(plan.capacity[EFS_POOL_S], 0);
    assert_double_equal(plan.io_ns, 0, 0);
}

TEST(nothing_and_everything)
{
    double f[8] = {0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2, 0.1};
    struct efs_plan_request r = layer(f, 8, 4, 0);
    struct efs_plan plan;

    assert_int_equal(plan_layer(&r, &plan), 0);
    assert_double_equal(plan.makespan_ns, 4 * 396, 1e-9); /* no memory: every request has four misses */
    r.budget_bytes = UINT64_C(1) << 62;
    assert_int_equal(plan_layer(&r, &plan), 0);
    assert_double_equal(plan.makespan_ns, 0, 0); /* all in F */
    assert_int_equal(plan.capacity[EFS_POOL_F], 8);
    r.pools = EFS_PLAN_POOL(EFS_POOL_C);
    assert_int_equal(plan_layer(&r, &plan), 0);
    assert_double_equal(plan.makespan_ns, 4 * 12 * 9 / 2.0, 1e-9);
    assert_int_equal(plan.capacity[EFS_POOL_C], 8);
}

TEST(remaining_budget_is_used)
{
    struct cases cases = {22};
    double f[32];

    cases_inclusion(&cases, f, 32, 4, 1, false);
    for (uint64_t budget = 500; budget < 20000; budget += 777) {
        struct efs_plan_request r = layer(f, 32, 4, budget);
        struct efs_plan plain, filled;
        uint64_t used = 0;

        assert_int_equal(plan_layer(&r, &plain), 0);
        r.fill = true;
        assert_int_equal(plan_layer(&r, &filled), 0);
        assert_true(filled.makespan_ns <= plain.makespan_ns * (1 + 1e-12));
        for (unsigned p = 0; p < EFS_POOLS; p++)
            used += filled.used_bytes[p];
        assert_true(used <= budget);
        if (filled.capacity[0] + filled.capacity[1] + filled.capacity[2] + filled.capacity[3] < 32)
            assert_true(budget - used < bytes[EFS_POOL_E]); /* not even one more E expert fits */
    }
}

/* By hand: only pool C, with memory for two and a half experts a layer. */
TEST(shared_pools_need_no_whole_experts)
{
    double f[6] = {0.7, 0.5, 0.3, 0.2, 0.2, 0.1};
    struct efs_plan_request r = layer(f, 6, 2, 0);
    struct efs_plan_shared plan;

    r.pools = EFS_PLAN_POOL(EFS_POOL_C);
    assert_int_equal(efs_plan_share(&r, 4, 10 * 667, &plan), 0);
    assert_double_equal(plan.experts[EFS_POOL_C], 2.5, 1e-9);
    assert_double_equal((double)plan.pool_bytes[EFS_POOL_C], 6670, 1);
    assert_double_equal(plan.io_ns, (0.8 + 0.5) / 2 * 396, 1e-9); /* half of the layers miss .8, half .5 */
    assert_int_equal(efs_plan_share(&r, 4, 0, &plan), 0);
    assert_double_equal(plan.io_ns, 2 * 396, 1e-9);
    assert_int_equal(efs_plan_share(&r, 4, UINT64_C(1) << 50, &plan), 0);
    assert_double_equal(plan.experts[EFS_POOL_C], 6, 1e-9);
    assert_int_equal(plan.pool_bytes[EFS_POOL_C], 4 * 6 * 667);
    assert_int_equal(efs_plan_share(&r, 0, 1000, &plan), -EINVAL);
    r.chosen = 1;
    assert_int_equal(efs_plan_share(&r, 4, 1000, &plan), -EDOM);
}

TEST(shared_pools_are_no_worse)
{
    struct cases cases = {25};
    double f[32], before = INFINITY;

    cases_inclusion(&cases, f, 32, 4, 1, false);
    for (uint64_t budget = 0; budget <= 33000; budget += 611) {
        struct efs_plan_request r = layer(f, 32, 4, budget);
        struct efs_plan_shared shared;
        struct efs_plan alone;
        uint64_t sum = 0;

        r.fill = true;
        r.step = 0.25;
        assert_int_equal(plan_layer(&r, &alone), 0);
        assert_int_equal(efs_plan_share(&r, 24, 24 * budget, &shared), 0);
        assert_true(shared.makespan_ns <= alone.makespan_ns * (1 + 1e-9));
        for (unsigned p = 0; p < EFS_POOLS; p++)
            sum += shared.pool_bytes[p];
        assert_true(sum <= 24 * budget);
        assert_true(shared.makespan_ns <= before * 1.02); /* non-increasing, within the step of this coarse grid */
        before = shared.makespan_ns;
    }
}

TEST(io_goal)
{
    struct cases cases = {26};
    double f[32];

    cases_inclusion(&cases, f, 32, 4, 1, false);
    for (uint64_t budget = 0; budget <= 32000; budget += 1600) {
        struct efs_plan_request r = layer(f, 32, 4, budget);
        struct efs_plan makespan, io;

        r.fill = true;
        r.cost.decode_ns = 40; /* slow enough that the shortest makespan needs full experts */
        assert_int_equal(plan_layer(&r, &makespan), 0);
        r.goal = EFS_PLAN_IO;
        assert_int_equal(plan_layer(&r, &io), 0);
        assert_true(io.io_ns <= makespan.io_ns * (1 + 1e-9) + 1e-6);
        assert_true(io.makespan_ns >= makespan.makespan_ns * (1 - 1e-9));
        if (budget >= 32 * 667) /* no reads with any number of full experts, so the makespan decides */
            assert_double_equal(io.io_ns, 0, 1e-6);
        if (budget >= 24000)
            assert_true(io.capacity[EFS_POOL_F] > 0);
    }
}

TEST(large_layers_are_planned)
{
    struct cases cases = {24};
    double f[512];
    struct efs_plan plan, all_c;
    unsigned capacity[EFS_POOLS] = {0};

    cases_inclusion(&cases, f, 512, 16, 1, false);
    struct efs_plan_request r = layer(f, 512, 16, 128 * 1000);
    assert_int_equal(plan_layer(&r, &plan), 0);
    capacity[EFS_POOL_C] = 128 * 1000 / 667; /* one of the splits of the grid */
    assert_int_equal(efs_plan_evaluate(&r, capacity, &all_c), 0);
    assert_true(plan.makespan_ns <= all_c.makespan_ns * (1 + 1e-12));
    assert_true(plan.io_ns <= plan.makespan_ns * (1 + 1e-9));
}

TEST(invalid_arguments)
{
    double f[4] = {0.5, 0.5, 0.5, 0.5};
    const struct efs_plan_request good = layer(f, 4, 2, 1000);
    struct efs_plan_request r;
    struct efs_plan plan;

#define REFUSED(code, ...)                                                                                             \
    r = good;                                                                                                          \
    __VA_ARGS__;                                                                                                       \
    assert_int_equal(plan_layer(&r, &plan), code)
    REFUSED(0, );
    REFUSED(-EINVAL, r.experts = 0);
    REFUSED(-EINVAL, r.experts = EFS_PLAN_MAX_EXPERTS + 1);
    REFUSED(-EINVAL, r.chosen = 0);
    REFUSED(-EINVAL, r.chosen = 5);
    REFUSED(-EINVAL, r.inclusion = NULL);
    REFUSED(-EINVAL, r.step = 0);
    REFUSED(-EINVAL, r.step = 1.5);
    REFUSED(-EINVAL, r.step = NAN);
    REFUSED(-EINVAL, r.goal = EFS_PLAN_IO + 1);
    REFUSED(-EINVAL, r.pools = 0);
    REFUSED(-EINVAL, r.pools = 16);
    REFUSED(-EINVAL, r.expert_bytes[2] = 0);
    REFUSED(-EINVAL, r.expert_bytes[0] = UINT64_C(1) << 63);
    REFUSED(-EINVAL, r.cost.decode_ns = -1);
    REFUSED(-EINVAL, r.cost.sm_read_ns = INFINITY);
    REFUSED(-EDOM, r.chosen = 1);
}

TEST_MAIN(NULL, NULL)
