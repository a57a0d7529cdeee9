/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_simulate.c - the discrete-event model: lanes, the time of the next completion, work-conserving dispatch.
 */
#include "schedule_simulate.h"

/* Reads in the order of the schedule: when they end by themselves, and when those end that are under way together. */
struct reads {
    const struct efs_sim_machine *machine;
    const struct efs_schedule *schedule;
    uint32_t begun;               /* of schedule->io */
    uint64_t serial_ns, group_ns; /* ends of the last begun one, and of its group, one after the other */
    uint64_t latencies_ns;        /* of all groups */
};

struct lanes {
    uint32_t count;
    struct reads reads;
    uint64_t free_ns[EFS_SIM_LANES]; /* since when it is idle; UINT64_MAX: it never worked */
    uint32_t op[EFS_SIM_LANES];      /* EFS_OP_NONE: idle */
    uint64_t end_ns[EFS_SIM_LANES];  /* UINT64_MAX: idle */
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

/* When the next read of the schedule ends. Reads are begun without a gap: they wait for nothing. */
static uint64_t reads_next_end_ns(struct reads *reads, const struct efs_op *ops)
{
    const struct efs_schedule *schedule = reads->schedule;
    if (reads->serial_ns == reads->group_ns) { /* nothing is under way: as many as there is a window for */
        uint64_t begin_ns = reads->group_ns + reads->machine->latency_ns;
        reads->serial_ns = reads->group_ns = begin_ns;
        reads->latencies_ns += reads->machine->latency_ns;
        for (uint32_t i = reads->begun;
             i < schedule->io_count && (i == reads->begun || reads->group_ns - begin_ns < reads->machine->window_ns);
             i++)
            reads->group_ns += ops[schedule->io[i]].cost_ns;
    }
    reads->serial_ns += ops[schedule->io[reads->begun++]].cost_ns;
    return reads->serial_ns + (uint64_t)(reads->machine->together * (double)(reads->group_ns - reads->serial_ns));
}

/* Give every idle lane the first operation available to it. */
static void lanes_dispatch(struct efs_run *run, struct lanes *lanes, uint64_t now_ns, struct efs_sim_op *times)
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
        uint64_t start_ns = now_ns;
        if (resource == EFS_ON_WORKER && lanes->free_ns[lane] != now_ns)
            start_ns += lanes->reads.machine->wake_ns;
        lanes->end_ns[lane] =
            resource == EFS_ON_IO ? reads_next_end_ns(&lanes->reads, ops) : start_ns + ops[op].cost_ns;
        if (times)
            times[op] = (struct efs_sim_op){.start_ns = start_ns, .end_ns = lanes->end_ns[lane], .lane = lane};
    }
}

void efs_simulate(const struct efs_graph *graph, const struct efs_schedule *schedule, void *memory,
                  struct efs_sim_op *times, struct efs_sim_result *result)
{
    efs_simulate_on(graph, schedule, NULL, memory, times, result);
}

void efs_simulate_on(const struct efs_graph *graph, const struct efs_schedule *schedule,
                     const struct efs_sim_machine *machine, void *memory, struct efs_sim_op *times,
                     struct efs_sim_result *result)
{
    static const struct efs_sim_machine ideal = {0};
    struct lanes lanes = {.count = graph->workers + 3,
                          .reads = {.machine = machine ? machine : &ideal, .schedule = schedule}};
    lanes.reads.serial_ns = lanes.reads.group_ns = lanes.reads.machine->busy_ns;
    for (uint32_t lane = 0; lane < lanes.count; lane++) {
        lanes.op[lane] = EFS_OP_NONE;
        lanes.end_ns[lane] = lanes.free_ns[lane] = UINT64_MAX;
    }
    *result = (struct efs_sim_result){0};
    struct efs_run run;
    efs_run_init(&run, graph, schedule, memory);
    uint64_t now_ns = 0;
    while (run.left) {
        lanes_dispatch(&run, &lanes, now_ns, times);
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
            lanes.free_ns[lane] = now_ns;
        }
    }
    result->busy_ns[EFS_ON_IO] += lanes.reads.latencies_ns;
    result->makespan_ns = now_ns;
}

double efs_sim_utilisation(const struct efs_graph *graph, const struct efs_sim_result *result,
                           enum efs_resource resource)
{
    double lanes = resource == EFS_ON_WORKER ? graph->workers : 1;
    return result->makespan_ns ? (double)result->busy_ns[resource] / (lanes * (double)result->makespan_ns) : 0;
}
