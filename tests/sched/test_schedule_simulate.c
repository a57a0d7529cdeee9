/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The discrete-event model: charts by hand, and on random requests: every operation once, no precedence violated, no
 * lane with two operations at once, no idle lane with an operation ready for it, never a lower priority first.
 */
#include "test.h"
#include "request_random.h"
#include "schedule_simulate.h"

#define OPS 4096

static uint64_t graph_memory[1 << 16], schedule_memory[1 << 16], run_memory[1 << 12];
static struct efs_sim_op times[OPS];

static struct efs_sim_result simulate(const struct efs_task_request *request, enum efs_schedule_kind kind,
                                      struct efs_graph *graph, struct efs_schedule *schedule)
{
    struct efs_sim_result result;
    assert_int_equal(efs_graph_build(request, graph_memory, sizeof graph_memory, graph), 0);
    assert_int_equal(efs_schedule_make(graph, kind, schedule_memory, sizeof schedule_memory, schedule), 0);
    assert_in_range(efs_simulate_bytes(graph), 1, sizeof run_memory);
    assert_in_range(graph->op_count, 1, OPS);
    for (uint32_t op = 0; op < graph->op_count; op++)
        times[op] = (struct efs_sim_op){UINT64_MAX, UINT64_MAX, UINT32_MAX};
    efs_simulate(graph, schedule, 0, run_memory, times, &result);
    return result;
}

static void check_time(uint32_t op, uint64_t start, uint64_t end, uint32_t lane)
{
    assert_int_equal(times[op].start_ns, start);
    assert_int_equal(times[op].end_ns, end);
    assert_int_equal(times[op].lane, lane);
}

/* One M task: K = 2, reads 3, 3, 7, decodes 5, recovery 2, run 11, two workers. */
static const struct efs_task_expert missing_expert = {.tensors = 1, .run_ns = 11};
static const struct efs_task_tensor missing_tensor = {
    .state = EFS_TASK_M, .shards = 2, .e_read_ns = 3, .sm_read_ns = 7, .decode_ns = 5, .recover_ns = 2};
static const struct efs_task_request missing = {
    .experts = &missing_expert, .expert_count = 1, .tensors = &missing_tensor, .tensor_count = 1, .workers = 2};

TEST(one_missing_tensor)
{
    struct efs_task_request request = missing;
    struct efs_graph g;
    struct efs_schedule s;
    struct efs_sim_result r = simulate(&request, EFS_SCHEDULE_REQUEST, &g, &s);
    check_time(0, 0, 3, 0);
    check_time(1, 3, 6, 0);
    check_time(2, 6, 13, 0);
    check_time(3, 3, 8, 1);
    check_time(4, 6, 11, 2);
    check_time(5, 13, 15, 3); /* on the stream */
    check_time(6, 15, 26, 4);
    assert_int_equal(r.makespan_ns, 26);
    assert_int_equal(r.busy_ns[EFS_ON_IO], 13);
    assert_int_equal(r.busy_ns[EFS_ON_WORKER], 10);
    assert_int_equal(r.end_ns[EFS_ON_WORKER], 11);

    request.fused = true; /* the decodes wait for the SM-chunk */
    r = simulate(&request, EFS_SCHEDULE_REQUEST, &g, &s);
    check_time(3, 13, 18, 1);
    check_time(4, 13, 18, 2);
    check_time(5, 18, 20, 3);
    assert_int_equal(r.makespan_ns, 31);

    request.fused = false; /* recovery on the worker */
    request.recovery = EFS_RECOVER_WORKER;
    request.workers = 1;
    r = simulate(&request, EFS_SCHEDULE_REQUEST, &g, &s);
    check_time(3, 3, 8, 1);
    check_time(4, 8, 13, 1);
    check_time(5, 13, 15, 1);
    assert_int_equal(r.makespan_ns, 26);
    assert_int_equal(r.busy_ns[EFS_ON_STREAM], 0);
    assert_int_equal(r.busy_ns[EFS_ON_WORKER], 12);
}

/* A full expert runs at once; a compressed one is decoded while a missing one is read. */
TEST(overlap)
{
    struct efs_task_expert experts[] = {{1, 4}, {1, 4}, {1, 4}};
    struct efs_task_tensor tensors[] = {
        {.state = EFS_TASK_M, .shards = 1, .e_read_ns = 2, .sm_read_ns = 10, .decode_ns = 6},
        {.state = EFS_TASK_C, .shards = 1, .decode_ns = 6},
        {.state = EFS_TASK_F},
    };
    struct efs_task_request request = {
        .experts = experts, .expert_count = 3, .tensors = tensors, .tensor_count = 3, .workers = 1};
    struct efs_graph g;
    struct efs_schedule s;
    struct efs_sim_result r = simulate(&request, EFS_SCHEDULE_REQUEST, &g, &s);
    check_time(g.first_run + 2, 0, 4, 3);
    check_time(g.tasks[1].decode, 0, 6, 1);
    check_time(g.first_run + 1, 6, 10, 3);
    check_time(g.tasks[0].decode, 6, 12, 1);
    check_time(g.first_run, 12, 16, 3);
    assert_int_equal(r.makespan_ns, 16);
}

/* Operations of cost 0 end at time 0. */
TEST(zero_cost_operations)
{
    struct efs_task_expert expert = {.tensors = 2};
    struct efs_task_tensor tensors[2] = {{.state = EFS_TASK_M, .shards = 3}, {.state = EFS_TASK_C, .shards = 1}};
    struct efs_task_request request = {
        .experts = &expert, .expert_count = 1, .tensors = tensors, .tensor_count = 2, .workers = 3};
    struct efs_graph g;
    struct efs_schedule s;
    struct efs_sim_result r = simulate(&request, EFS_SCHEDULE_REQUEST, &g, &s);
    assert_int_equal(r.makespan_ns, 0);
}

static uint64_t available_ns(const struct efs_graph *g, uint32_t op)
{
    uint64_t from = 0;
    for (uint32_t before = 0; before < op; before++)
        if (op - g->ops[before].successor < g->ops[before].successors && times[before].end_ns > from)
            from = times[before].end_ns;
    return from;
}

static bool lane_fits(const struct efs_graph *g, uint32_t op)
{
    uint32_t lane = times[op].lane;
    switch (efs_op_resource(g, op)) {
    case EFS_ON_IO:
        return lane == 0;
    case EFS_ON_WORKER:
        return lane >= 1 && lane <= g->workers;
    case EFS_ON_STREAM:
        return lane == g->workers + 1;
    default:
        return lane == g->workers + 2;
    }
}

/* The part of [from, to), in which an operation waits, that `other` occupies its lane. */
static uint64_t overlap_ns(const struct efs_sim_op *other, uint64_t from, uint64_t to)
{
    uint64_t start = other->start_ns > from ? other->start_ns : from;
    uint64_t end = other->end_ns < to ? other->end_ns : to;
    return end > start ? end - start : 0;
}

/* Checks the rules of the model from the times. strict: every operation takes time, so the order shows priorities. */
static void check_chart(const struct efs_graph *g, const struct efs_schedule *s, const struct efs_sim_result *r,
                        bool strict)
{
    uint64_t last = 0, busy[EFS_RESOURCES] = {0};
    for (uint32_t op = 0; op < g->op_count; op++) {
        const struct efs_sim_op *t = &times[op];
        enum efs_resource resource = efs_op_resource(g, op);
        uint64_t from = available_ns(g, op), waited_ns = 0, lanes = resource == EFS_ON_WORKER ? g->workers : 1;
        assert_true(lane_fits(g, op));
        assert_int_equal(t->end_ns - t->start_ns, g->ops[op].cost_ns);
        assert_true(t->start_ns >= from);
        last = t->end_ns > last ? t->end_ns : last;
        busy[resource] += g->ops[op].cost_ns;
        for (uint32_t other = 0; other < g->op_count; other++) {
            if (other == op || efs_op_resource(g, other) != resource)
                continue;
            if (times[other].lane == t->lane)
                assert_int_equal(overlap_ns(&times[other], t->start_ns, t->end_ns), 0);
            waited_ns += overlap_ns(&times[other], from, t->start_ns);
            if (strict && times[other].start_ns >= from && times[other].start_ns < t->start_ns)
                assert_true(s->rank[other] < s->rank[op]);
        }
        assert_int_equal(waited_ns, lanes * (t->start_ns - from)); /* all lanes were busy while it waited */
    }
    assert_int_equal(r->makespan_ns, last);
    for (unsigned i = 0; i < EFS_RESOURCES; i++)
        assert_int_equal(r->busy_ns[i], busy[i]);
}

static void check_random(uint64_t seed, const struct random_limits *limits, unsigned rounds)
{
    static struct random_request r;
    for (unsigned round = 0; round < rounds; round++) {
        random_request(&seed, limits, &r);
        r.request.fused = round % 4 == 0;
        for (enum efs_schedule_kind kind = 0; kind < EFS_SCHEDULE_KINDS; kind++) {
            struct efs_graph g;
            struct efs_schedule s;
            struct efs_sim_result result = simulate(&r.request, kind, &g, &s);
            check_chart(&g, &s, &result, limits->least > 0);
        }
    }
}

/* The task of one_missing_tensor with the disk busy for 5 ns: its reads and all that depend on them are 5 ns later. */
TEST(a_busy_disk)
{
    struct efs_graph g;
    struct efs_schedule s;
    struct efs_sim_result r = simulate(&missing, EFS_SCHEDULE_REQUEST, &g, &s);
    efs_simulate(&g, &s, 5, run_memory, times, &r);
    check_time(0, 5, 8, 0);
    check_time(2, 11, 18, 0);
    check_time(3, 8, 13, 1);
    check_time(5, 18, 20, 3);
    assert_int_equal(r.makespan_ns, 31);
    assert_int_equal(r.busy_ns[EFS_ON_IO], 13);
}

TEST(random_schedules_are_valid)
{
    const struct random_limits small = {4, 2, 2, 3, 9, 20, 20, 9, 30, 1, false};
    const struct random_limits usual = {8, 3, 3, 4, 9, 30, 30, 5, 60, 1, true};
    const struct random_limits zeros = {5, 3, 3, 4, 1, 2, 2, 1, 2, 0, false};
    check_random(11, &small, 3000);
    check_random(12, &usual, 300);
    check_random(13, &zeros, 1000);
}

TEST_MAIN(NULL, NULL)
