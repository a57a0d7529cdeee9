/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulate_trace.c - layer by layer, on one timeline: describe, schedule, simulate, account.
 */
#include "simulate_trace.h"

#include <errno.h>

/* Input of one layer; at the start of the caller's memory, before the graph, schedule and run. */
struct layer {
    struct efs_task_expert experts[EFS_TASK_MAX_EXPERTS];
    struct efs_task_tensor tensors[EFS_TASK_MAX_TASKS];
    enum efs_task_state worst[EFS_TASK_MAX_EXPERTS];
    uint64_t read_bytes;
};

/* A graph at least as large as any that the configuration allows; used only for its counts. */
static struct efs_graph trace_largest_graph(const struct efs_trace_config *config)
{
    uint32_t tasks = EFS_TASK_MAX_TASKS;
    return (struct efs_graph){.task_count = tasks,
                              .reads = tasks * (config->max_shards + 1),
                              .decodes = tasks * config->max_shards,
                              .op_count = tasks * (2 * config->max_shards + 2) + EFS_TASK_MAX_EXPERTS,
                              .expert_count = EFS_TASK_MAX_EXPERTS,
                              .workers = config->workers};
}

static bool trace_config_valid(const struct efs_trace_config *config)
{
    const bool ahead = config && config->ahead.next; /* next and done are given, or neither */
    return config && config->policy.describe && config->timeline &&
           (ahead ? config->ahead.done != NULL : config->ahead.done == NULL) && config->workers >= 1 &&
           config->workers <= EFS_TASK_MAX_WORKERS && (unsigned)config->kind < EFS_SCHEDULE_KINDS &&
           config->max_shards >= 1 && config->max_shards <= EFS_TASK_MAX_SHARDS &&
           config->run_token_ns <= EFS_TASK_MAX_NS && config->layer_ns <= EFS_TASK_MAX_NS;
}

struct parts {
    size_t graph, schedule, run, end;
};

static struct parts trace_lay_out(const struct efs_trace_config *config)
{
    struct efs_graph graph = trace_largest_graph(config);
    struct parts parts;
    parts.graph = (sizeof(struct layer) + 7) / 8 * 8;
    parts.schedule = parts.graph + graph.task_count * sizeof(struct efs_task) + graph.op_count * sizeof(struct efs_op);
    parts.run = parts.schedule + efs_schedule_bytes(&graph);
    parts.end = parts.run + efs_simulate_bytes(&graph);
    return parts;
}

size_t efs_trace_bytes(const struct efs_trace_config *config)
{
    return trace_config_valid(config) ? trace_lay_out(config).end : 0;
}

/* Gets the states and costs of the experts of a request from the policy. */
static int layer_describe(const struct efs_trace_config *config, const struct efs_trace_request *request,
                          struct layer *layer, struct efs_task_request *out)
{
    struct efs_trace_tensor tensors[EFS_TASK_MAX_TENSORS];
    uint32_t next = 0;
    const struct efs_trace_policy *policy = &config->policy;
    layer->read_bytes = 0;
    if (request->count < 1 || request->count > EFS_TASK_MAX_EXPERTS || !request->experts)
        return -EINVAL;
    if (policy->begin) {
        int error = policy->begin(policy->arg, request->layer, request->experts, request->count);
        if (error)
            return error;
    }
    for (uint32_t i = 0; i < request->count; i++) {
        uint64_t tokens = request->tokens ? request->tokens[i] : 1, run_ns;
        if (__builtin_mul_overflow(tokens, config->run_token_ns, &run_ns))
            return -EINVAL;
        uint32_t count = policy->describe(policy->arg, request->layer, request->experts[i], tensors);
        if (count < 1 || count > EFS_TASK_MAX_TENSORS)
            return -EINVAL;
        layer->experts[i] = (struct efs_task_expert){.tensors = count, .run_ns = run_ns};
        layer->worst[i] = EFS_TASK_F;
        for (uint32_t t = 0; t < count; t++) {
            const struct efs_trace_tensor *tensor = &tensors[t];
            enum efs_task_state state = tensor->task.state;
            if ((unsigned)state >= EFS_TASK_STATES || (state != EFS_TASK_F && tensor->task.shards > config->max_shards))
                return -EINVAL;
            layer->tensors[next++] = tensor->task;
            layer->worst[i] = state > layer->worst[i] ? state : layer->worst[i];
            layer->read_bytes += state == EFS_TASK_M || state == EFS_TASK_S ? tensor->e_bytes : 0;
            layer->read_bytes += state == EFS_TASK_M || state == EFS_TASK_E ? tensor->sm_bytes : 0;
        }
    }
    *out = (struct efs_task_request){.experts = layer->experts,
                                     .expert_count = request->count,
                                     .tensors = layer->tensors,
                                     .tensor_count = next,
                                     .workers = config->workers,
                                     .recovery = config->recovery,
                                     .fused = config->fused};
    return 0;
}

/* The disk reads predicted experts until the next request arrives; the last read may end later. */
static void layer_fill_disk(const struct efs_trace_config *config, uint64_t until_ns, struct efs_trace_totals *totals)
{
    struct efs_trace_timeline *line = config->timeline;
    const struct efs_trace_prefetch *ahead = &config->ahead;
    if (line->piece)
        ahead->done(ahead->arg);
    line->piece = false;
    for (uint64_t ns; ahead->next && line->disk_ns < until_ns && (ns = ahead->next(ahead->arg, line->disk_ns)) > 0;) {
        line->disk_ns += ns;
        totals->ahead_ns += ns;
        line->piece = line->disk_ns > until_ns;
        if (!line->piece)
            ahead->done(ahead->arg);
    }
    if (line->disk_ns < until_ns)
        line->disk_ns = until_ns;
}

static int layer_simulate(const struct efs_trace_config *config, const struct efs_trace_request *request,
                          const struct parts *parts, uint8_t *memory, struct efs_trace_totals *totals)
{
    struct layer *layer = (struct layer *)memory;
    struct efs_task_request task_request;
    struct efs_graph graph;
    struct efs_schedule schedule;
    struct efs_sim_result result;
    struct efs_trace_timeline *line = config->timeline;
    line->request_ns = line->now_ns + config->layer_ns;
    layer_fill_disk(config, line->request_ns, totals);
    int error = layer_describe(config, request, layer, &task_request);
    if (!error)
        error = efs_graph_build(&task_request, memory + parts->graph, parts->schedule - parts->graph, &graph);
    if (!error)
        error =
            efs_schedule_make(&graph, config->kind, memory + parts->schedule, parts->run - parts->schedule, &schedule);
    if (error)
        return error;
    efs_simulate(&graph, &schedule, line->disk_ns - line->request_ns, memory + parts->run, NULL, &result);
    line->now_ns = line->request_ns + result.makespan_ns;
    if (graph.reads)
        line->disk_ns = line->request_ns + result.end_ns[EFS_ON_IO];
    totals->requests++;
    totals->time_ns += config->layer_ns + result.makespan_ns;
    totals->read_bytes += layer->read_bytes;
    for (unsigned i = 0; i < EFS_RESOURCES; i++)
        totals->busy_ns[i] += result.busy_ns[i];
    for (uint32_t i = 0; i < request->count; i++)
        totals->hits[layer->worst[i]]++;
    return 0;
}

void efs_trace_totals_add(struct efs_trace_totals *sum, const struct efs_trace_totals *part)
{
    sum->token = part->token;
    sum->requests += part->requests;
    sum->time_ns += part->time_ns;
    sum->ahead_ns += part->ahead_ns;
    sum->read_bytes += part->read_bytes;
    for (unsigned i = 0; i < EFS_RESOURCES; i++)
        sum->busy_ns[i] += part->busy_ns[i];
    for (unsigned i = 0; i < EFS_TASK_STATES; i++)
        sum->hits[i] += part->hits[i];
}

int efs_trace_simulate(const struct efs_trace_config *config, const struct efs_trace_request *requests, size_t count,
                       void *memory, size_t bytes, efs_trace_token_fn *each, void *arg, struct efs_trace_totals *all)
{
    struct efs_trace_totals sum = {0}, token = {0};
    int error = 0;
    if (!trace_config_valid(config) || !memory || (count && !requests))
        return -EINVAL;
    const struct parts parts = trace_lay_out(config);
    if (bytes < parts.end)
        return -ENOSPC;
    for (size_t i = 0; i < count && !error; i++) {
        const struct efs_trace_request *request = &requests[i];
        token.token = request->token;
        error = layer_simulate(config, request, &parts, memory, &token);
        if (!error && config->policy.used)
            config->policy.used(config->policy.arg, request->layer, request->experts, request->count);
        if (!error && i + 1 < count && requests[i + 1].token == request->token)
            continue;
        efs_trace_totals_add(&sum, &token);
        if (each && !error)
            each(arg, &token);
        token = (struct efs_trace_totals){0};
    }
    if (all)
        *all = sum;
    return error;
}
