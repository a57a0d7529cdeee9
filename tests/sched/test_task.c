/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Task graphs: Figure 6 for each state, the limits, and invariants of random graphs.
 */
#include "test.h"
#include "request_random.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t memory[1 << 16];

static struct efs_graph build(const struct efs_task_request *request)
{
    struct efs_graph graph;
    size_t bytes = efs_graph_bytes(request);
    assert_in_range(bytes, 1, sizeof memory);
    assert_int_equal(efs_graph_build(request, memory, bytes, &graph), 0);
    return graph;
}

/* One expert of one tensor with 2 shards, E reads of 3, SM reads of 7, decodes of 5, recovery 2, run 11. */
static struct efs_graph build_one(enum efs_task_state state, bool fused)
{
    static struct efs_task_expert expert = {.tensors = 1, .run_ns = 11};
    static struct efs_task_tensor tensor;
    tensor = (struct efs_task_tensor){
        .state = state, .shards = 2, .e_read_ns = 3, .sm_read_ns = 7, .decode_ns = 5, .recover_ns = 2};
    struct efs_task_request request = {
        .experts = &expert, .expert_count = 1, .tensors = &tensor, .tensor_count = 1, .workers = 2, .fused = fused};
    return build(&request);
}

static void check_op(const struct efs_graph *graph, uint32_t op, enum efs_op_kind kind, uint64_t cost, unsigned needs,
                     uint32_t successor, unsigned successors)
{
    assert_in_range(op, 0, graph->op_count - 1);
    assert_int_equal(graph->ops[op].kind, kind);
    assert_int_equal(graph->ops[op].cost_ns, cost);
    assert_int_equal(graph->ops[op].needs, needs);
    assert_int_equal(graph->ops[op].successors, successors);
    if (successors)
        assert_int_equal(graph->ops[op].successor, successor);
}

TEST(figure_6)
{
    struct efs_graph g = build_one(EFS_TASK_M, false);
    assert_int_equal(g.op_count, 7);
    assert_int_equal(g.reads, 3);
    assert_int_equal(g.decodes, 2);
    check_op(&g, 0, EFS_OP_READ_E, 3, 0, 3, 1);
    check_op(&g, 1, EFS_OP_READ_E, 3, 0, 4, 1);
    check_op(&g, 2, EFS_OP_READ_SM, 7, 0, 5, 1);
    check_op(&g, 3, EFS_OP_DECODE, 5, 1, 5, 1);
    check_op(&g, 4, EFS_OP_DECODE, 5, 1, 5, 1);
    check_op(&g, 5, EFS_OP_RECOVER, 2, 3, 6, 1);
    check_op(&g, 6, EFS_OP_RUN, 11, 1, 0, 0);

    g = build_one(EFS_TASK_E, false);
    assert_int_equal(g.op_count, 5);
    assert_int_equal(g.tasks[0].read_e, EFS_OP_NONE);
    assert_int_equal(g.tasks[0].e_read_ns, 0);
    check_op(&g, 0, EFS_OP_READ_SM, 7, 0, 3, 1);
    check_op(&g, 1, EFS_OP_DECODE, 5, 0, 3, 1);
    check_op(&g, 3, EFS_OP_RECOVER, 2, 3, 4, 1);

    g = build_one(EFS_TASK_S, false);
    assert_int_equal(g.op_count, 6);
    assert_int_equal(g.tasks[0].read_sm, EFS_OP_NONE);
    assert_int_equal(g.tasks[0].sm_read_ns, 0);
    check_op(&g, 0, EFS_OP_READ_E, 3, 0, 2, 1);
    check_op(&g, 2, EFS_OP_DECODE, 5, 1, 4, 1);
    check_op(&g, 4, EFS_OP_RECOVER, 2, 2, 5, 1);

    g = build_one(EFS_TASK_C, false);
    assert_int_equal(g.op_count, 4);
    assert_int_equal(g.reads, 0);
    check_op(&g, 0, EFS_OP_DECODE, 5, 0, 2, 1);
    check_op(&g, 2, EFS_OP_RECOVER, 2, 2, 3, 1);

    g = build_one(EFS_TASK_F, false);
    assert_int_equal(g.op_count, 1);
    assert_int_equal(g.task_count, 0);
    check_op(&g, 0, EFS_OP_RUN, 11, 0, 0, 0);
}

TEST(fused_decodes_wait_for_sm)
{
    struct efs_graph g = build_one(EFS_TASK_M, true);
    check_op(&g, 0, EFS_OP_READ_E, 3, 0, 3, 1);
    check_op(&g, 2, EFS_OP_READ_SM, 7, 0, 3, 2);
    check_op(&g, 3, EFS_OP_DECODE, 5, 2, 5, 1);
    check_op(&g, 4, EFS_OP_DECODE, 5, 2, 5, 1);
    check_op(&g, 5, EFS_OP_RECOVER, 2, 2, 6, 1);
    g = build_one(EFS_TASK_E, true);
    check_op(&g, 0, EFS_OP_READ_SM, 7, 0, 1, 2);
    check_op(&g, 1, EFS_OP_DECODE, 5, 1, 3, 1);
    g = build_one(EFS_TASK_S, true);
    check_op(&g, 2, EFS_OP_DECODE, 5, 1, 4, 1);
}

TEST(limits_are_refused)
{
    struct efs_task_expert experts[EFS_TASK_MAX_EXPERTS + 1];
    struct efs_task_tensor tensors[2 * EFS_TASK_MAX_TASKS];
    const struct efs_task_tensor tensor = {.state = EFS_TASK_M, .shards = 1, .e_read_ns = 1};
    for (size_t i = 0; i < COUNT(experts); i++)
        experts[i] = (struct efs_task_expert){.tensors = 1};
    for (size_t i = 0; i < COUNT(tensors); i++)
        tensors[i] = tensor;
    const struct efs_task_request good = {
        .experts = experts, .expert_count = 2, .tensors = tensors, .tensor_count = 2, .workers = 1};
    struct efs_graph graph;
    assert_int_not_equal(efs_graph_bytes(&good), 0);
    assert_int_equal(efs_graph_build(&good, memory, efs_graph_bytes(&good) - 1, &graph), -ENOSPC);

    struct efs_task_request bad[9];
    for (size_t i = 0; i < COUNT(bad); i++)
        bad[i] = good;
    bad[0].expert_count = 0;
    bad[1].expert_count = bad[1].tensor_count = EFS_TASK_MAX_EXPERTS + 1;
    bad[2].tensor_count = 1;
    bad[3].tensor_count = 3;
    bad[4].workers = 0;
    bad[5].workers = EFS_TASK_MAX_WORKERS + 1;
    bad[6].experts = NULL;
    bad[7].tensors = NULL;
    bad[8].recovery = (enum efs_task_recovery)2;
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(efs_graph_bytes(&bad[i]), 0);
        assert_int_equal(efs_graph_build(&bad[i], memory, sizeof memory, &graph), -EINVAL);
    }
    assert_int_equal(efs_graph_bytes(NULL), 0);

    struct efs_task_tensor broken[7];
    for (size_t i = 0; i < COUNT(broken); i++)
        broken[i] = tensor;
    broken[0].shards = 0;
    broken[1].shards = EFS_TASK_MAX_SHARDS + 1;
    broken[2].e_read_ns = EFS_TASK_MAX_NS + 1;
    broken[3].sm_read_ns = UINT64_MAX;
    broken[4].decode_ns = EFS_TASK_MAX_NS + 1;
    broken[5].recover_ns = EFS_TASK_MAX_NS + 1;
    broken[6].state = EFS_TASK_STATES;
    for (size_t i = 0; i < COUNT(broken); i++) {
        tensors[1] = broken[i];
        assert_int_equal(efs_graph_bytes(&good), 0);
    }
    tensors[1] = tensor;
    experts[1].run_ns = EFS_TASK_MAX_NS + 1;
    assert_int_equal(efs_graph_bytes(&good), 0);
    experts[1] = (struct efs_task_expert){.tensors = 0};
    assert_int_equal(efs_graph_bytes(&good), 0);
    struct efs_task_request many = good;
    experts[0].tensors = EFS_TASK_MAX_TENSORS + 1;
    many.expert_count = 1;
    many.tensor_count = EFS_TASK_MAX_TENSORS + 1;
    assert_int_equal(efs_graph_bytes(&many), 0);
    experts[0].tensors = EFS_TASK_MAX_TENSORS;
    many.tensor_count = EFS_TASK_MAX_TENSORS;
    assert_int_not_equal(efs_graph_bytes(&many), 0);
}

/* Edges lead forward only, every operation has as many incoming edges as it needs, and the counts are correct. */
TEST(random_graphs_are_sound)
{
    uint64_t random = 1;
    const struct random_limits limits = {8, 4, 6, 4, 9, 9, 9, 9, 9, 0, false};
    static struct random_request r;
    for (unsigned round = 0; round < 5000; round++) {
        random_request(&random, &limits, &r);
        r.request.fused = round % 3 == 0;
        size_t bytes = efs_graph_bytes(&r.request);
        memset((char *)memory + bytes, 0xa5, 64);
        struct efs_graph g = build(&r.request);
        for (size_t i = 0; i < 64; i++)
            assert_int_equal(((unsigned char *)memory)[bytes + i], 0xa5);
        uint32_t incoming[1024] = {0}, kinds[EFS_OP_RUN + 1] = {0};
        for (uint32_t op = 0; op < g.op_count; op++) {
            kinds[g.ops[op].kind]++;
            for (uint32_t i = 0; i < g.ops[op].successors; i++) {
                assert_in_range(g.ops[op].successor + i, op + 1, g.op_count - 1);
                incoming[g.ops[op].successor + i]++;
            }
        }
        for (uint32_t op = 0; op < g.op_count; op++)
            assert_int_equal(incoming[op], g.ops[op].needs);
        uint32_t tasks = 0, reads_e = 0, reads_sm = 0, decodes = 0;
        for (uint32_t i = 0; i < r.request.tensor_count; i++) {
            const struct efs_task_tensor *t = &r.tensors[i];
            if (t->state == EFS_TASK_F)
                continue;
            const struct efs_task *task = &g.tasks[tasks++];
            assert_int_equal(task->tensor, i);
            assert_int_equal(task->run_ns, r.experts[task->expert].run_ns);
            reads_e += t->state == EFS_TASK_M || t->state == EFS_TASK_S ? t->shards : 0;
            reads_sm += t->state == EFS_TASK_M || t->state == EFS_TASK_E;
            decodes += t->shards;
        }
        assert_int_equal(g.task_count, tasks);
        assert_int_equal(kinds[EFS_OP_READ_E], reads_e);
        assert_int_equal(kinds[EFS_OP_READ_SM], reads_sm);
        assert_int_equal(g.reads, reads_e + reads_sm);
        assert_int_equal(kinds[EFS_OP_DECODE], decodes);
        assert_int_equal(g.decodes, decodes);
        assert_int_equal(kinds[EFS_OP_RECOVER], tasks);
        assert_int_equal(kinds[EFS_OP_RUN], r.request.expert_count);
    }
}

TEST_MAIN(NULL, NULL)
