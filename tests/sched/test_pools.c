/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pools.c - efs_pools_plan(): the same numbers as by hand, within the budget, and different pools for a client
 * that computes on the coded form.
 */
#include "test.h"
#include "cases.h"
#include "pools.h"

static const struct efs_pools_costs costs = {.full_bytes = 9000,
                                             .coded_bytes = 6000,
                                             .sm_bytes = 4500,
                                             .e_bytes = 1500,
                                             .tensors = 3,
                                             .shards = 5,
                                             .workers = 2,
                                             .disk_bytes_per_second = 1e6,
                                             .read_latency_ns = 70,
                                             .decode_bytes_per_second = 3e6};

static struct efs_skew zipf(unsigned layers, unsigned experts, double chosen)
{
    struct efs_skew skew;

    assert_int_equal(efs_skew_learn(&skew, NULL, layers, experts, chosen), 0);
    return skew;
}

static void check_plan(const struct efs_pools_request *r, const struct efs_pools *plan)
{
    uint64_t sum = 0;
    double hits = 0, experts = 0;

    for (unsigned p = 0; p < EFS_POOLS; p++) {
        unsigned allowed = efs_pools_possible(&r->costs) & (r->pools ? r->pools : EFS_PLAN_ALL_POOLS);

        assert_true(plan->pool_bytes[p] == 0 || allowed & EFS_PLAN_POOL(p));
        assert_true(plan->hits[p] >= 0 && plan->experts[p] >= 0);
        assert_true((plan->ratio[p] > 0) == (plan->pool_bytes[p] > 0));
        sum += plan->pool_bytes[p];
        hits += plan->hits[p];
        experts += plan->experts[p];
    }
    assert_true(sum <= r->budget_bytes);
    assert_true(experts <= r->skew->experts + 1e-9);
    assert_true(plan->hits[EFS_POOL_M] >= 0);
    assert_double_equal(hits + plan->hits[EFS_POOL_M], r->skew->chosen, 1e-6);
    assert_true(plan->makespan_ns >= 0 && isfinite(plan->makespan_ns) && isfinite(plan->io_ns));
    assert_true(plan->makespan_ns >= plan->io_ns * (1 - 1e-9));
}

TEST(costs_by_hand)
{
    struct efs_pools_costs odd = costs;
    uint64_t bytes[EFS_POOLS];
    struct efs_cost cost = efs_pools_cost(&costs, bytes);

    assert_true(bytes[EFS_POOL_F] == 9000 && bytes[EFS_POOL_C] == 6000);
    assert_true(bytes[EFS_POOL_S] == 4500 && bytes[EFS_POOL_E] == 1500);
    assert_double_equal(cost.sm_read_ns, 1500e3, 1e-6); /* a third of 4500 bytes at a byte a microsecond */
    assert_double_equal(cost.e_read_ns, 100e3, 1e-6);   /* a fifteenth of 1500 */
    assert_double_equal(cost.decode_ns, 200e3, 1e-6);   /* 600 raw bytes, three a microsecond */
    assert_true(cost.threads == 2 && cost.shards == 5 && cost.tensors == 3 && cost.extended);
    assert_double_equal(cost.request_ns, 70, 0);
    assert_int_equal(efs_pools_possible(&costs), EFS_PLAN_ALL_POOLS);

    odd.e_bytes = 0;
    odd.tensors = -5;
    odd.shards = NAN;
    odd.workers = 1e9;
    odd.full_bytes = 1e30;
    cost = efs_pools_cost(&odd, bytes);
    assert_true(cost.tensors == 1 && cost.shards == 1 && cost.threads >= 1 && cost.threads <= 4096);
    assert_true(bytes[EFS_POOL_E] == 1 && bytes[EFS_POOL_F] == UINT64_C(1) << 40);
    assert_int_equal(efs_pools_possible(&odd), EFS_PLAN_POOL(EFS_POOL_F) | EFS_PLAN_POOL(EFS_POOL_C));
}

TEST(shared_is_the_planner)
{
    struct efs_skew skew = zipf(24, 32, 4);
    struct efs_plan_shared shared;
    struct efs_pools plan;

    for (unsigned round = 0; round < 12; round++) {
        struct efs_pools_request r = {.costs = costs,
                                      .skew = &skew,
                                      .budget_bytes = (uint64_t)(0.08 * (round + 1) * 24 * 32 * 9000),
                                      .pools = round % 3 == 2 ? 3 : 0,
                                      .goal = round % 2 ? EFS_PLAN_IO : EFS_PLAN_MAKESPAN,
                                      .step = 0.1};
        struct efs_plan_request direct = {.inclusion = skew.mean,
                                          .experts = 32,
                                          .chosen = 4,
                                          .pools = r.pools ? r.pools : EFS_PLAN_ALL_POOLS,
                                          .step = 0.1,
                                          .goal = r.goal,
                                          .fill = true};

        direct.cost = efs_pools_cost(&costs, direct.expert_bytes);
        assert_int_equal(efs_pools_plan(&r, &plan), 0);
        check_plan(&r, &plan);
        assert_int_equal(efs_plan_share(&direct, 24, r.budget_bytes, &shared), 0);
        assert_memory_equal(plan.pool_bytes, shared.pool_bytes, sizeof(plan.pool_bytes));
        assert_double_equal(plan.io_ns, 24 * shared.io_ns, 1e-6);
        assert_double_equal(plan.makespan_ns, 24 * shared.makespan_ns, 1e-6);
    }
    efs_skew_free(&skew);
}

TEST(ratios_as_said)
{
    struct efs_skew skew = zipf(10, 16, 3);
    struct efs_pools plan, more;
    struct efs_pools_request r = {.costs = costs, .skew = &skew, .how = EFS_POOLS_RATIO, .ratio = {0, 1, 0, 0}};
    struct efs_plan_request direct = {
        .inclusion = skew.mean, .experts = 16, .chosen = 3, .pools = EFS_PLAN_ALL_POOLS, .step = 1};
    struct efs_plan by_hand;
    double before = INFINITY;

    direct.cost = efs_pools_cost(&costs, direct.expert_bytes);
    for (unsigned n = 0; n <= 16; n++) { /* n whole coded experts a layer */
        r.budget_bytes = (uint64_t)10 * n * 6000;
        assert_int_equal(efs_pools_plan(&r, &plan), 0);
        assert_int_equal(efs_plan_evaluate(&direct, (const unsigned[]){0, n, 0, 0}, &by_hand), 0);
        check_plan(&r, &plan);
        assert_double_equal(plan.io_ns, 10 * by_hand.io_ns, 1e-6 * by_hand.io_ns + 1e-3);
        assert_double_equal(plan.makespan_ns, 10 * by_hand.makespan_ns, 1e-6 * by_hand.makespan_ns);
        assert_double_equal(plan.hits[EFS_POOL_C], by_hand.hits[EFS_POOL_C], 1e-9);
        assert_double_equal(plan.experts[EFS_POOL_C], n, 1e-9);
        assert_true(plan.io_ns < before);
        before = plan.io_ns;
        r.budget_bytes += n < 16 ? 10 * 6000 / 4 : 10 * 6000; /* a quarter of the next expert, or more than all */
        assert_int_equal(efs_pools_plan(&r, &more), 0);
        check_plan(&r, &more);
        assert_double_equal(more.hits[EFS_POOL_C], plan.hits[EFS_POOL_C] + (n < 16 ? skew.mean[n] / 4 : 0), 1e-9);
        assert_true(more.makespan_ns <= plan.makespan_ns * (1 + 1e-9));
    }
    r.budget_bytes = 100003;
    memcpy(r.ratio, (const double[]){0.5, 0.2, 0.2, 0.1}, sizeof(r.ratio));
    assert_int_equal(efs_pools_plan(&r, &plan), 0);
    check_plan(&r, &plan);
    assert_true(plan.pool_bytes[EFS_POOL_F] == 50001 && plan.pool_bytes[EFS_POOL_C] == 20000);
    memcpy(r.ratio, (const double[]){0.5, 0.2, 0.2, 0.2}, sizeof(r.ratio));
    assert_int_equal(efs_pools_plan(&r, &plan), -EINVAL);
    memcpy(r.ratio, (const double[]){-0.5, 0.2, 0.2, 0.2}, sizeof(r.ratio));
    assert_int_equal(efs_pools_plan(&r, &plan), -EINVAL);
    memcpy(r.ratio, (const double[]){0, NAN, 0, 0}, sizeof(r.ratio));
    assert_int_equal(efs_pools_plan(&r, &plan), -EINVAL);
    memcpy(r.ratio, (const double[]){0.5, 0, 0, 0.5}, sizeof(r.ratio));
    r.pools = EFS_PLAN_POOL(EFS_POOL_F); /* a share for a pool that is not allowed */
    assert_int_equal(efs_pools_plan(&r, &plan), -EINVAL);
    efs_skew_free(&skew);
}

TEST(refuses)
{
    struct efs_skew skew = zipf(4, 8, 2), empty = {0}, wide = zipf(EFS_PLAN_MAX_LAYERS + 1, 2, 1);
    const struct efs_pools_request good = {.costs = costs, .skew = &skew, .budget_bytes = 50000};
    struct efs_pools_request bad;
    struct efs_pools plan;

    assert_int_equal(efs_pools_plan(&good, &plan), 0);
#define REFUSED(rc, change)                                                                                            \
    bad = good;                                                                                                        \
    bad.change;                                                                                                        \
    assert_int_equal(efs_pools_plan(&bad, &plan), rc)
    REFUSED(-EINVAL, skew = NULL);
    REFUSED(-EINVAL, skew = &empty);
    REFUSED(-E2BIG, skew = &wide);
    REFUSED(-EINVAL, pools = 16);
    REFUSED(-EINVAL, step = 2);
    REFUSED(-EINVAL, step = 0.001);
    REFUSED(-EINVAL, how = (enum efs_pools_how)9);
    REFUSED(-EINVAL, goal = (enum efs_plan_goal)9);
    REFUSED(-EINVAL, costs.full_bytes = NAN);
    REFUSED(-EINVAL, costs.coded_bytes = 0);
    REFUSED(-EINVAL, costs.disk_bytes_per_second = 0);
    REFUSED(-EINVAL, costs.decode_bytes_per_second = -1);
    REFUSED(-EINVAL, costs.read_latency_ns = INFINITY);
    bad = good;
    bad.costs.e_bytes = 0;
    bad.pools = EFS_PLAN_POOL(EFS_POOL_S) | EFS_PLAN_POOL(EFS_POOL_E);
    assert_int_equal(efs_pools_plan(&bad, &plan), -EINVAL);
    efs_skew_free(&wide);
    efs_skew_free(&skew);
}

TEST(any_request)
{
    struct cases cases = {99};

    for (unsigned round = 0; round < 150; round++) {
        unsigned layers = 1 + cases_below(&cases, 6), n = 1 + cases_below(&cases, 24), most = n < 6 ? n : 6;
        struct efs_skew skew = zipf(layers, n, 1 + cases_below(&cases, most));
        struct efs_pools_request r = {.costs = costs,
                                      .skew = &skew,
                                      .budget_bytes = cases_below(&cases, layers * n * 11000),
                                      .pools = cases_below(&cases, 16),
                                      .goal = (enum efs_plan_goal)cases_below(&cases, 2),
                                      .step = 0.25,
                                      .how = EFS_POOLS_SHARED};
        struct efs_pools plan;
        int rc;

        r.costs.e_bytes = round % 5 == 0 ? 0 : 1500;
        rc = efs_pools_plan(&r, &plan);
        if (round % 5 == 0 && r.pools && !(r.pools & 3)) {
            assert_int_equal(rc, -EINVAL);
        } else {
            assert_int_equal(rc, 0);
            check_plan(&r, &plan);
        }
        efs_skew_free(&skew);
    }
}

TEST_MAIN(NULL, NULL)
