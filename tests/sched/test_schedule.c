/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules: Algorithm 1 by hand, invariants of every kind on random requests.
 */
#include "test.h"
#include "request_random.h"
#include "schedule.h"
#include "schedule_simulate.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t graph_memory[1 << 16], memory[1 << 16], other_memory[1 << 16];

static struct efs_graph build(const struct efs_task_request *request)
{
    struct efs_graph graph;
    assert_int_equal(efs_graph_build(request, graph_memory, sizeof graph_memory, &graph), 0);
    return graph;
}

/* Experts of one tensor and one shard: state and p_n of each; e = 2, u = 10, c = 3. */
static struct efs_graph build_small(const char *states, const uint64_t *run_ns, uint32_t workers)
{
    static struct efs_task_expert experts[16];
    static struct efs_task_tensor tensors[16];
    uint32_t count = (uint32_t)strlen(states);
    assert_in_range(count, 1, COUNT(experts));
    for (uint32_t n = 0; n < count; n++) {
        experts[n] = (struct efs_task_expert){.tensors = 1, .run_ns = run_ns[n]};
        tensors[n] = (struct efs_task_tensor){.state = (enum efs_task_state)(strchr("FCSEM", states[n]) - "FCSEM"),
                                              .shards = 1,
                                              .e_read_ns = 2,
                                              .sm_read_ns = 10,
                                              .decode_ns = 3};
    }
    struct efs_task_request request = {
        .experts = experts, .expert_count = count, .tensors = tensors, .tensor_count = count, .workers = workers};
    return build(&request);
}

/* "2 0 1|3": experts in order, blocks cut by |. */
static void check_order(const struct efs_graph *graph, enum efs_schedule_kind kind, const char *expected)
{
    struct efs_schedule s;
    char text[256] = "";
    assert_int_equal(efs_schedule_make(graph, kind, memory, sizeof memory, &s), 0);
    for (uint32_t i = 0; i < s.order.count; i++) {
        const char *gap = i == 0 ? "" : s.order.block[i] == s.order.block[i - 1] ? " " : "|";
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%u", gap, graph->tasks[s.order.task[i]].expert);
    }
    assert_string_equal(text, expected);
}

/*
 * L = 1, one M task and C tasks. The M task alone: reads until 12, decodes 2..5, charge 2. It is compute-dominant when
 * the decode thread ends at 14 or later. Each C task fits at the front without charge: the thread ends at 6, 9, 12, 15,
 * so four of them complete the block, and the fifth forms the last block.
 */
TEST(blocks_by_hand)
{
    const uint64_t run_ns[] = {1, 2, 9, 4, 3, 5};
    struct efs_graph g = build_small("CCMCCC", run_ns, 1);
    check_order(&g, EFS_SCHEDULE_PAPER, "1 4 3 5 2|0");
    check_order(&g, EFS_SCHEDULE_REQUEST, "0|1|2|3|4|5");
}

/* Two decode threads never catch up with the reads: all tasks join the first block. 1 reads no E-chunk, so it fits at
 * the front; 2 and 0 fit nowhere and follow those with p_i >= p_j. */
TEST(one_block_when_disk_bound)
{
    const uint64_t run_ns[] = {5, 7, 6, 8};
    struct efs_graph g = build_small("MEMM", run_ns, 2);
    check_order(&g, EFS_SCHEDULE_PAPER, "1 3 2 0");
    g = build_small("FFFF", run_ns, 2);
    check_order(&g, EFS_SCHEDULE_PAPER, "");
}

/* With no Type-I task the Type-II tasks form their own blocks, by falling p_n; equal ones in request order. */
TEST(type_two_alone)
{
    const uint64_t run_ns[] = {5, 7, 5, 8};
    struct efs_graph g = build_small("CCCC", run_ns, 1);
    check_order(&g, EFS_SCHEDULE_PAPER, "3|1|0|2"); /* each one alone is compute-dominant: it has no reads */
    g = build_small("SSSS", run_ns, 1);
    /* 3 alone: reads until 2, decodes 2..5, dominant from 4 on. The next one reads until 4 and decodes 5..8. */
    check_order(&g, EFS_SCHEDULE_PAPER, "3|1|0|2");
}

/* Checks that list is a permutation of the operations of kinds a and b. */
static void check_list(const struct efs_graph *graph, const struct efs_schedule *schedule, const uint32_t *list,
                       uint32_t count, enum efs_op_kind a, enum efs_op_kind b)
{
    uint32_t expected = 0;
    uint8_t seen[4096] = {0};
    for (uint32_t op = 0; op < graph->op_count; op++)
        expected += graph->ops[op].kind == a || graph->ops[op].kind == b;
    assert_int_equal(count, expected);
    for (uint32_t i = 0; i < count; i++) {
        assert_in_range(list[i], 0, graph->op_count - 1);
        assert_true(graph->ops[list[i]].kind == a || graph->ops[list[i]].kind == b);
        assert_false(seen[list[i]]);
        seen[list[i]] = 1;
        assert_int_equal(schedule->rank[list[i]], i);
    }
}

/* Checks that each task occurs once and blocks are in order, with all E-chunks of a block before its SM-chunks, both in
 * task order. */
static void check_schedule(const struct efs_graph *graph, const struct efs_schedule *s)
{
    uint8_t seen[EFS_TASK_MAX_TASKS] = {0};
    uint32_t place[EFS_TASK_MAX_TASKS] = {0};
    assert_int_equal(s->order.count, graph->task_count);
    for (uint32_t i = 0; i < s->order.count; i++) {
        assert_in_range(s->order.task[i], 0, graph->task_count - 1);
        assert_false(seen[s->order.task[i]]);
        seen[s->order.task[i]] = 1;
        place[s->order.task[i]] = i;
        assert_int_equal(i ? s->order.block[i] - s->order.block[i - 1] : s->order.block[i],
                         i && s->order.block[i] != s->order.block[i - 1]);
    }
    check_list(graph, s, s->io, s->io_count, EFS_OP_READ_E, EFS_OP_READ_SM);
    check_list(graph, s, s->worker, s->worker_count, EFS_OP_DECODE, EFS_OP_RECOVER);
    for (uint32_t i = 1; i < s->io_count; i++) {
        const struct efs_op *before = &graph->ops[s->io[i - 1]], *op = &graph->ops[s->io[i]];
        uint32_t block_before = s->order.block[place[before->task]], block = s->order.block[place[op->task]];
        assert_true(block_before <= block);
        if (block_before < block)
            continue;
        assert_true(before->kind <= op->kind);
        if (before->kind == op->kind)
            assert_true(place[before->task] <= place[op->task]);
    }
    for (uint32_t i = 1; i < s->worker_count; i++)
        assert_true(place[graph->ops[s->worker[i - 1]].task] <= place[graph->ops[s->worker[i]].task]);
    bool experts[EFS_TASK_MAX_EXPERTS] = {false};
    for (uint32_t i = 0; i < graph->expert_count; i++) {
        assert_in_range(s->run[i], 0, graph->expert_count - 1);
        assert_false(experts[s->run[i]]);
        experts[s->run[i]] = true;
        assert_int_equal(s->rank[graph->first_run + s->run[i]], i);
    }
}

TEST(every_kind_is_sound)
{
    uint64_t random = 2;
    const struct random_limits limits = {10, 4, 5, 5, 9, 30, 30, 9, 60, 0, false};
    static struct random_request r;
    for (unsigned round = 0; round < 2000; round++) {
        random_request(&random, &limits, &r);
        r.request.fused = round % 4 == 0;
        struct efs_graph g = build(&r.request);
        for (enum efs_schedule_kind kind = 0; kind < EFS_SCHEDULE_KINDS; kind++) {
            struct efs_schedule s, again;
            size_t bytes = efs_schedule_bytes(&g);
            memset((char *)memory + bytes, 0x5a, 64);
            assert_int_equal(efs_schedule_make(&g, kind, memory, bytes, &s), 0);
            for (size_t i = 0; i < 64; i++)
                assert_int_equal(((unsigned char *)memory)[bytes + i], 0x5a);
            check_schedule(&g, &s);
            /* the same result in other memory */
            memset(other_memory, 0xff, sizeof other_memory);
            assert_int_equal(efs_schedule_make(&g, kind, other_memory, sizeof other_memory, &again), 0);
            assert_memory_equal(s.io, again.io, s.io_count * sizeof *s.io);
            assert_memory_equal(s.worker, again.worker, s.worker_count * sizeof *s.worker);
            assert_memory_equal(s.rank, again.rank, g.op_count * sizeof *s.rank);
        }
    }
}

TEST(wrong_calls_are_refused)
{
    const uint64_t run_ns[] = {1, 2};
    struct efs_graph g = build_small("MC", run_ns, 2);
    struct efs_schedule s;
    assert_int_equal(efs_schedule_make(&g, EFS_SCHEDULE_KINDS, memory, sizeof memory, &s), -EINVAL);
    assert_int_equal(efs_schedule_make(&g, EFS_SCHEDULE_PAPER, NULL, sizeof memory, &s), -EINVAL);
    assert_int_equal(efs_schedule_make(&g, EFS_SCHEDULE_PAPER, memory, efs_schedule_bytes(&g) - 1, &s), -ENOSPC);
}

/* The maximum number of experts and tensors, all missing: a prefill over a layer of 512 experts. */
TEST(largest_request)
{
    static struct random_request r;
    for (uint32_t n = 0; n < EFS_TASK_MAX_EXPERTS; n++)
        r.experts[n] = (struct efs_task_expert){.tensors = EFS_TASK_MAX_TENSORS, .run_ns = 1000 + n};
    for (uint32_t i = 0; i < EFS_TASK_MAX_TASKS; i++)
        r.tensors[i] = (struct efs_task_tensor){
            .state = EFS_TASK_M, .shards = 16, .e_read_ns = 7, .sm_read_ns = 900, .decode_ns = 400, .recover_ns = 10};
    r.request = (struct efs_task_request){.experts = r.experts,
                                          .expert_count = EFS_TASK_MAX_EXPERTS,
                                          .tensors = r.tensors,
                                          .tensor_count = EFS_TASK_MAX_TASKS,
                                          .workers = 16};
    size_t bytes = efs_graph_bytes(&r.request);
    void *own = malloc(bytes);
    struct efs_graph g;
    assert_non_null(own);
    assert_int_equal(efs_graph_build(&r.request, own, bytes, &g), 0);
    size_t schedule_bytes = efs_schedule_bytes(&g);
    void *own_schedule = malloc(schedule_bytes), *run = malloc(efs_simulate_bytes(&g));
    assert_non_null(own_schedule);
    assert_non_null(run);
    struct efs_schedule s;
    struct efs_sim_result result;
    assert_int_equal(efs_schedule_make(&g, EFS_SCHEDULE_PAPER, own_schedule, schedule_bytes, &s), 0);
    efs_simulate(&g, &s, 0, run, NULL, &result);
    assert_int_equal(result.busy_ns[EFS_ON_IO], EFS_TASK_MAX_TASKS * (UINT64_C(7) * 16 + 900));
    free(run);
    free(own_schedule);
    free(own);
}

TEST_MAIN(NULL, NULL)
