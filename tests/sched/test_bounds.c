/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lemma B.3 and Theorem 3.1 of ZipMoE against the optimum of small requests.
 */
#include "test.h"
#include "bounds.h"
#include "optimum.h"
#include "request_random.h"
#include "schedule_simulate.h"

static uint64_t graph_memory[1 << 12], schedule_memory[1 << 12], run_memory[1 << 10];

static const char *const kind_names[EFS_SCHEDULE_KINDS] = {"request order", "Algorithm 1"};

static struct efs_graph build(const struct efs_task_request *request)
{
    struct efs_graph graph;
    assert_int_equal(efs_graph_build(request, graph_memory, sizeof graph_memory, &graph), 0);
    return graph;
}

static uint64_t makespan(const struct efs_graph *graph, enum efs_schedule_kind kind)
{
    struct efs_schedule schedule;
    struct efs_sim_result result;
    assert_int_equal(efs_schedule_make(graph, kind, schedule_memory, sizeof schedule_memory, &schedule), 0);
    assert_in_range(efs_simulate_bytes(graph), 1, sizeof run_memory);
    efs_simulate(graph, &schedule, 0, run_memory, NULL, &result);
    return result.makespan_ns;
}

static struct efs_graph build_one(const struct efs_task_tensor *tensor, uint32_t workers, uint64_t run_ns, bool fused)
{
    static struct efs_task_expert expert;
    expert = (struct efs_task_expert){.tensors = 1, .run_ns = run_ns};
    struct efs_task_request request = {.experts = &expert,
                                       .expert_count = 1,
                                       .tensors = tensor,
                                       .tensor_count = 1,
                                       .workers = workers,
                                       .fused = fused};
    return build(&request);
}

TEST(bounds_by_hand)
{
    struct efs_task_expert experts[] = {{2, 9}, {1, 4}, {1, 5}};
    struct efs_task_tensor tensors[] = {
        {.state = EFS_TASK_M, .shards = 2, .e_read_ns = 3, .sm_read_ns = 10, .decode_ns = 7, .recover_ns = 1},
        {.state = EFS_TASK_S, .shards = 1, .e_read_ns = 3, .sm_read_ns = 10, .decode_ns = 7, .recover_ns = 1},
        {.state = EFS_TASK_E, .shards = 3, .e_read_ns = 3, .sm_read_ns = 10, .decode_ns = 20, .recover_ns = 1},
        {.state = EFS_TASK_F},
    };
    struct efs_task_request request = {
        .experts = experts, .expert_count = 3, .tensors = tensors, .tensor_count = 4, .workers = 2};
    struct efs_graph g = build(&request);
    struct bounds b;
    bounds_compute(&g, &b);
    assert_int_equal(b.io_ns, 16 + 3 + 10);
    assert_int_equal(b.decode_ns, (14 + 7 + 60 + 1) / 2); /* 81 / 2, rounded up */
    assert_int_equal(b.recover_ns, 3);
    assert_int_equal(b.run_ns, 18);
    assert_int_equal(b.path_ns, 2 * 20 + 1 + 4); /* the E task */
    assert_int_equal(b.lower_ns, 45);
    request.recovery = EFS_RECOVER_WORKER;
    g = build(&request);
    bounds_compute(&g, &b);
    assert_int_equal(b.decode_ns, 42);
    assert_int_equal(b.recover_ns, 0);
}

/* The published Z exceeds the optimum of one S task; the corrected one equals it. */
TEST(published_path_is_no_bound)
{
    struct efs_task_tensor tensor = {.state = EFS_TASK_S, .shards = 2, .e_read_ns = 5, .decode_ns = 8};
    struct efs_graph g = build_one(&tensor, 1, 1, false);
    struct bounds b;
    bounds_compute(&g, &b);
    uint64_t best_ns = optimum_search(&g, UINT64_MAX, 0, false, NULL);
    assert_int_equal(best_ns, 5 + 16 + 1);
    assert_int_equal(b.path_ns, best_ns);
    assert_int_equal(b.path_published_ns, 10 + 16 + 1);
    assert_int_equal(makespan(&g, EFS_SCHEDULE_PAPER), best_ns);
}

/* For one task alone the critical path is exact, also when fused if only one kind of chunk is read. */
TEST(path_is_exact_for_one_task)
{
    uint64_t random = 5, published_too_large = 0;
    for (unsigned round = 0; round < 20000; round++) {
        struct efs_task_tensor tensor = {
            .state = (enum efs_task_state)random_between(&random, EFS_TASK_C, EFS_TASK_M),
            .shards = (uint32_t)random_between(&random, 1, 8),
            .e_read_ns = random_between(&random, 0, 9),
            .sm_read_ns = random_between(&random, 0, 40),
            .decode_ns = random_between(&random, 0, 20),
            .recover_ns = random_between(&random, 0, 5),
        };
        bool fused = round % 2;
        struct efs_graph g = build_one(&tensor, (uint32_t)random_between(&random, 1, 5), 3, fused);
        struct bounds b;
        bounds_compute(&g, &b);
        uint64_t end_ns = makespan(&g, EFS_SCHEDULE_REQUEST);
        if (fused && tensor.state == EFS_TASK_M) /* E-chunks first is not the best order here */
            assert_true(b.path_ns <= end_ns);
        else
            assert_int_equal(b.path_ns, end_ns);
        published_too_large += b.path_published_ns > end_ns;
    }
    assert_true(published_too_large > 0);
}

/* The pruned search finds the same optimum as the exhaustive search. */
TEST(search_prunes_nothing_good)
{
    static const struct random_limits limits[] = {{3, 2, 2, 3, 4, 12, 9, 0, 12, 0, false},
                                                  {2, 3, 2, 3, 4, 12, 9, 0, 12, 0, true},
                                                  {2, 3, 2, 3, 1, 3, 20, 0, 2, 1, true}};
    static struct random_request r;
    uint64_t random = 6;
    unsigned compared = 0;
    for (unsigned round = 0; round < 6000; round++) {
        random_request(&random, &limits[round % 3], &r);
        struct efs_graph g = build(&r.request);
        if (g.task_count > 3 || g.reads > 5 || g.decodes > 5)
            continue;
        struct bounds b;
        bounds_compute(&g, &b);
        uint64_t all_ns = optimum_search(&g, UINT64_MAX, 0, false, NULL);
        assert_int_equal(optimum_search(&g, UINT64_MAX, b.lower_ns, true, NULL), all_ns);
        assert_true(b.lower_ns <= all_ns);
        compared++;
    }
    assert_true(compared > 2000);
}

struct ratios {
    double worst, sum;
    unsigned optimal;
};

/* makespan <= (3 - 1/L) OPT, in integers. */
static bool within_theorem(uint64_t makespan_ns, uint64_t best_ns, uint64_t workers)
{
    return makespan_ns * workers <= (3 * workers - 1) * best_ns;
}

/* Compares every kind of schedule with the optimum, on requests of one regime. Adds to ratios, returns the number of
 * requests. */
static unsigned compare(uint64_t seed, const struct random_limits *limits, unsigned rounds, struct ratios *ratios,
                        unsigned *published_too_large)
{
    static struct random_request r;
    unsigned count = 0;
    while (count < rounds) {
        random_request(&seed, limits, &r);
        r.request.recovery = EFS_RECOVER_STREAM;
        struct efs_graph g = build(&r.request);
        if (g.task_count < 1 || g.task_count > 4 || g.reads > 9)
            continue;
        struct bounds b;
        uint64_t ends_ns[EFS_SCHEDULE_KINDS], best_ns = UINT64_MAX;
        bounds_compute(&g, &b);
        if (b.lower_ns == 0)
            continue;
        for (enum efs_schedule_kind kind = 0; kind < EFS_SCHEDULE_KINDS; kind++) {
            ends_ns[kind] = makespan(&g, kind);
            best_ns = ends_ns[kind] < best_ns ? ends_ns[kind] : best_ns;
        }
        best_ns = optimum_search(&g, best_ns, b.lower_ns, true, NULL);
        assert_true(b.lower_ns <= best_ns);                                           /* Lemma B.3 */
        assert_true(within_theorem(ends_ns[EFS_SCHEDULE_PAPER], best_ns, g.workers)); /* Theorem 3.1 */
        *published_too_large += b.path_published_ns > best_ns;
        for (enum efs_schedule_kind kind = 0; kind < EFS_SCHEDULE_KINDS; kind++) {
            double ratio = (double)ends_ns[kind] / (double)best_ns;
            ratios[kind].worst = ratio > ratios[kind].worst ? ratio : ratios[kind].worst;
            ratios[kind].sum += ratio;
            ratios[kind].optimal += ends_ns[kind] == best_ns;
        }
        count++;
    }
    return count;
}

TEST(theorem_3_1)
{
    static const struct random_limits regimes[] = {
        /* experts, tensors, shards, workers; E read, SM read, decode, recover, run; least; alike */
        {4, 1, 2, 3, 5, 20, 10, 0, 20, 1, true},  /* as in the paper: all tensors alike */
        {4, 2, 2, 3, 2, 15, 20, 0, 5, 1, true},   /* bound by decoding */
        {4, 2, 2, 3, 5, 20, 10, 0, 60, 1, false}, /* bound by runs, tensors differ */
        {4, 2, 2, 3, 20, 20, 20, 0, 20, 0, false} /* mixed */
    };
    struct ratios ratios[EFS_SCHEDULE_KINDS] = {{0}};
    unsigned count = 0, published_too_large = 0;
    for (unsigned i = 0; i < sizeof regimes / sizeof regimes[0]; i++)
        count += compare(100 + i, &regimes[i], 5000, ratios, &published_too_large);
    assert_true(count >= 10000);
    print_message("%u requests; the published Z exceeds the optimum in %u\n", count, published_too_large);
    print_message("%-26s %12s %12s %10s   (makespan / optimum)\n", "schedule", "worst", "mean", "optimal");
    for (enum efs_schedule_kind kind = 0; kind < EFS_SCHEDULE_KINDS; kind++)
        print_message("%-26s %12.4f %12.4f %9.1f%%\n", kind_names[kind], ratios[kind].worst, ratios[kind].sum / count,
                      100.0 * ratios[kind].optimal / count);
}

/* The theorem requires that all tensors are alike. These differ, and Algorithm 1 takes more than (3 - 1/L) times the
 * optimum; found by a search for the worst case. */
TEST(unlike_tensors_break_theorem)
{
    struct efs_task_expert experts[] = {{1, 39}, {1, 67}, {2, 0}};
    struct efs_task_tensor tensors[] = {
        {.state = EFS_TASK_M, .shards = 1, .e_read_ns = 39, .sm_read_ns = 7, .decode_ns = 4},
        {.state = EFS_TASK_S, .shards = 2, .e_read_ns = 1},
        {.state = EFS_TASK_M, .shards = 2, .e_read_ns = 9, .sm_read_ns = 1, .decode_ns = 41},
        {.state = EFS_TASK_S, .shards = 1, .e_read_ns = 1, .decode_ns = 19},
    };
    struct efs_task_request request = {
        .experts = experts, .expert_count = 3, .tensors = tensors, .tensor_count = 4, .workers = 1};
    struct efs_graph g = build(&request);
    uint64_t best_ns = optimum_search(&g, UINT64_MAX, 0, true, NULL);
    assert_int_equal(best_ns, 108);
    assert_int_equal(makespan(&g, EFS_SCHEDULE_PAPER), 220);
    assert_false(within_theorem(220, best_ns, 1));
}

TEST_MAIN(NULL, NULL)
