/*
 * simulate.c - the discrete-event model: lanes, the time of the next completion, work-conserving dispatch.
 */
#include "simulate.h"

struct lanes {
    uint32_t count;
    uint32_t op[EFS_SIM_LANES];     /* EFS_OP_NONE: idle */
    uint64_t end_ns[EFS_SIM_LANES]; /* UINT64_MAX: idle */
};

static enum efs_resource lane_resource(uint32_t lane, uint32_t workers)
{
    if (lane == 0)
        return EFS_ON_IO;
    if (lane <= workers)
        return EFS_ON_WORKER;
    return lane == workers + 1 ? EFS_ON_STREAM : EFS_ON_EXECUTOR;
}

size_t efs_simulate_bytes(const struct efs_graph *graph)
{
    return efs_run_bytes(graph);
}

/* Give every idle lane the first operation available to it. */
static void dispatch(struct efs_run *run, struct lanes *lanes, uint64_t now_ns, struct efs_sim_op *times)
{
    const struct efs_op *ops = run->graph->ops;
    uint32_t workers = run->graph->workers;
    bool none[EFS_RESOURCES] = {false};
    for (uint32_t lane = 0; lane < lanes->count; lane++) {
        enum efs_resource resource = lane_resource(lane, workers);
        if (lanes->op[lane] != EFS_OP_NONE || none[resource])
            continue;
        uint32_t op = efs_run_take(run, resource);
        none[resource] = op == EFS_OP_NONE;
        if (op == EFS_OP_NONE)
            continue;
        lanes->op[lane] = op;
        lanes->end_ns[lane] = now_ns + ops[op].cost_ns;
        if (times)
            times[op] = (struct efs_sim_op){.start_ns = now_ns, .end_ns = lanes->end_ns[lane], .lane = lane};
    }
}

void efs_simulate(const struct efs_graph *graph, const struct efs_schedule *schedule, void *memory,
                  struct efs_sim_op *times, struct efs_sim_result *result)
{
    struct lanes lanes = {.count = graph->workers + 3};
    for (uint32_t lane = 0; lane < lanes.count; lane++) {
        lanes.op[lane] = EFS_OP_NONE;
        lanes.end_ns[lane] = UINT64_MAX;
    }
    *result = (struct efs_sim_result){0};
    struct efs_run run;
    efs_run_init(&run, graph, schedule, memory);
    uint64_t now_ns = 0;
    while (run.left) {
        dispatch(&run, &lanes, now_ns, times);
        now_ns = UINT64_MAX;
        for (uint32_t lane = 0; lane < lanes.count; lane++)
            now_ns = lanes.end_ns[lane] < now_ns ? lanes.end_ns[lane] : now_ns;
        for (uint32_t lane = 0; lane < lanes.count; lane++) {
            if (lanes.end_ns[lane] != now_ns)
                continue;
            uint32_t op = lanes.op[lane];
            enum efs_resource resource = lane_resource(lane, graph->workers);
            result->busy_ns[resource] += graph->ops[op].cost_ns;
            result->end_ns[resource] = now_ns;
            if (graph->ops[op].kind == EFS_OP_RECOVER)
                result->ready_ns = now_ns;
            efs_run_done(&run, op);
            lanes.op[lane] = EFS_OP_NONE;
            lanes.end_ns[lane] = UINT64_MAX;
        }
    }
    result->makespan_ns = now_ns;
}

double efs_sim_utilisation(const struct efs_graph *graph, const struct efs_sim_result *result,
                           enum efs_resource resource)
{
    double lanes = resource == EFS_ON_WORKER ? graph->workers : 1;
    return result->makespan_ns ? (double)result->busy_ns[resource] / (lanes * (double)result->makespan_ns) : 0;
}
