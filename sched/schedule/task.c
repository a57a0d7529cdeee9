/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.c - builds the task graph of a request (ZipMoE Figure 6).
 */
#include "task.h"

#include <errno.h>

struct sizes {
    uint32_t tasks, ops, reads, decodes;
};

static bool state_reads_e(enum efs_task_state state)
{
    return state == EFS_TASK_M || state == EFS_TASK_S;
}

static bool state_reads_sm(enum efs_task_state state)
{
    return state == EFS_TASK_M || state == EFS_TASK_E;
}

static bool tensor_valid(const struct efs_task_tensor *tensor)
{
    if ((unsigned)tensor->state >= EFS_TASK_STATES)
        return false;
    if (tensor->state == EFS_TASK_F)
        return true;
    return tensor->shards >= 1 && tensor->shards <= EFS_TASK_MAX_SHARDS && tensor->e_read_ns <= EFS_TASK_MAX_NS &&
           tensor->sm_read_ns <= EFS_TASK_MAX_NS && tensor->decode_ns <= EFS_TASK_MAX_NS &&
           tensor->recover_ns <= EFS_TASK_MAX_NS;
}

/* Checks the request against the limits of task.h and counts its operations. */
static bool request_measure(const struct efs_task_request *request, struct sizes *sizes)
{
    *sizes = (struct sizes){0};
    if (!request || !request->experts || request->expert_count < 1 || request->expert_count > EFS_TASK_MAX_EXPERTS ||
        !request->tensors || request->workers < 1 || request->workers > EFS_TASK_MAX_WORKERS ||
        (request->recovery != EFS_RECOVER_STREAM && request->recovery != EFS_RECOVER_WORKER))
        return false;
    uint32_t tensors = 0;
    for (uint32_t n = 0; n < request->expert_count; n++) {
        const struct efs_task_expert *expert = &request->experts[n];
        if (expert->tensors < 1 || expert->tensors > EFS_TASK_MAX_TENSORS || expert->run_ns > EFS_TASK_MAX_NS)
            return false;
        tensors += expert->tensors;
    }
    if (tensors != request->tensor_count)
        return false;
    for (uint32_t i = 0; i < tensors; i++) {
        const struct efs_task_tensor *tensor = &request->tensors[i];
        if (!tensor_valid(tensor))
            return false;
        if (tensor->state == EFS_TASK_F)
            continue;
        sizes->tasks++;
        sizes->reads += (state_reads_e(tensor->state) ? tensor->shards : 0) + (state_reads_sm(tensor->state) ? 1 : 0);
        sizes->decodes += tensor->shards;
    }
    sizes->ops = sizes->reads + sizes->decodes + sizes->tasks + request->expert_count;
    return true;
}

static size_t sizes_memory_bytes(const struct sizes *sizes)
{
    return sizes->tasks * sizeof(struct efs_task) + sizes->ops * sizeof(struct efs_op);
}

size_t efs_graph_bytes(const struct efs_task_request *request)
{
    struct sizes sizes;
    return request_measure(request, &sizes) ? sizes_memory_bytes(&sizes) : 0;
}

static void graph_add_op(struct efs_graph *graph, struct efs_op op)
{
    graph->ops[graph->op_count++] = op;
}

/* Adds the operations of one task, in the order E reads, SM read, decodes, recovery. */
static void graph_add_task(struct efs_graph *graph, const struct efs_task_tensor *tensor, uint32_t index,
                           uint32_t expert, uint64_t run_ns)
{
    bool has_e = state_reads_e(tensor->state), has_sm = state_reads_sm(tensor->state);
    uint32_t shards = tensor->shards, next = graph->op_count;
    uint16_t number = (uint16_t)graph->task_count;
    struct efs_task *task = &graph->tasks[graph->task_count++];
    *task = (struct efs_task){.expert = expert,
                              .tensor = index,
                              .state = tensor->state,
                              .shards = shards,
                              .read_e = EFS_OP_NONE,
                              .read_sm = EFS_OP_NONE,
                              .e_read_ns = has_e ? tensor->e_read_ns : 0,
                              .sm_read_ns = has_sm ? tensor->sm_read_ns : 0,
                              .decode_ns = tensor->decode_ns,
                              .recover_ns = tensor->recover_ns,
                              .run_ns = run_ns};
    if (has_e) {
        task->read_e = next;
        next += shards;
    }
    if (has_sm)
        task->read_sm = next++;
    task->decode = next;
    task->recover = next + shards;

    bool sm_to_decode = has_sm && graph->fused;
    for (uint32_t i = 0; has_e && i < shards; i++)
        graph_add_op(graph, (struct efs_op){.kind = EFS_OP_READ_E,
                                            .task = number,
                                            .shard = (uint16_t)i,
                                            .cost_ns = tensor->e_read_ns,
                                            .successor = task->decode + i,
                                            .successors = 1});
    if (has_sm)
        graph_add_op(graph, (struct efs_op){.kind = EFS_OP_READ_SM,
                                            .task = number,
                                            .cost_ns = tensor->sm_read_ns,
                                            .successor = sm_to_decode ? task->decode : task->recover,
                                            .successors = (uint16_t)(sm_to_decode ? shards : 1)});
    for (uint32_t i = 0; i < shards; i++)
        graph_add_op(graph, (struct efs_op){.kind = EFS_OP_DECODE,
                                            .task = number,
                                            .shard = (uint16_t)i,
                                            .needs = (uint16_t)(has_e + sm_to_decode),
                                            .cost_ns = tensor->decode_ns,
                                            .successor = task->recover,
                                            .successors = 1});
    graph_add_op(graph, (struct efs_op){.kind = EFS_OP_RECOVER,
                                        .task = number,
                                        .needs = (uint16_t)(shards + (has_sm && !sm_to_decode)),
                                        .cost_ns = tensor->recover_ns,
                                        .successor = graph->first_run + expert,
                                        .successors = 1});
}

int efs_graph_build(const struct efs_task_request *request, void *memory, size_t bytes, struct efs_graph *graph)
{
    struct sizes sizes;
    if (!request_measure(request, &sizes) || !memory || !graph)
        return -EINVAL;
    if (bytes < sizes_memory_bytes(&sizes))
        return -ENOSPC;
    *graph = (struct efs_graph){.tasks = memory,
                                .ops = (struct efs_op *)((struct efs_task *)memory + sizes.tasks),
                                .reads = sizes.reads,
                                .decodes = sizes.decodes,
                                .first_run = sizes.ops - request->expert_count,
                                .expert_count = request->expert_count,
                                .workers = request->workers,
                                .recovery = request->recovery,
                                .fused = request->fused};
    const struct efs_task_tensor *tensors = request->tensors;
    uint32_t index = 0;
    for (uint32_t n = 0; n < request->expert_count; n++) {
        const struct efs_task_expert *expert = &request->experts[n];
        uint16_t needs = 0;
        for (uint32_t i = 0; i < expert->tensors; i++, index++) {
            if (tensors[index].state == EFS_TASK_F)
                continue;
            graph_add_task(graph, &tensors[index], index, n, expert->run_ns);
            needs++;
        }
        graph->ops[graph->first_run + n] =
            (struct efs_op){.kind = EFS_OP_RUN, .task = (uint16_t)n, .needs = needs, .cost_ns = expert->run_ns};
    }
    graph->op_count = sizes.ops;
    return 0;
}
