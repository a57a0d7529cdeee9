/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_simulate.h - when everything happens: a discrete-event model of one request under one schedule.
 *
 * One I/O thread, L workers, a recovery stream (where the graph has one) and a serial executor that runs an expert
 * once all its tensors are recovered (ZipMoE 3.3 and appendix A). Each takes the first operation available to it in
 * priority order the moment it is free; it never idles while there is one. The time of an operation is its cost_ns.
 */
#ifndef EFS_SIMULATE_H
#define EFS_SIMULATE_H

#include "schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lanes of a chart: 0 is the I/O thread, 1 .. L the workers, L + 1 the recovery stream, L + 2 the executor. */
#define EFS_SIM_LANES (EFS_TASK_MAX_WORKERS + 3u)

struct efs_sim_op {
    uint64_t start_ns, end_ns; /* from the request's start */
    uint32_t lane;
};

struct efs_sim_result {
    uint64_t makespan_ns;            /* end of the last operation: the layer is done */
    uint64_t ready_ns;               /* all experts recovered */
    uint64_t busy_ns[EFS_RESOURCES]; /* summed over the lanes of a resource */
    uint64_t end_ns[EFS_RESOURCES];  /* when it did its last operation */
};

/* Bytes of memory that a simulation of this graph needs. */
size_t efs_simulate_bytes(const struct efs_graph *graph);

/*
 * Simulate. memory: efs_simulate_bytes, aligned for uint64_t, free again afterwards. times: graph->op_count entries to
 * fill, or NULL. Every operation of the graph is done exactly once.
 */
void efs_simulate(const struct efs_graph *graph, const struct efs_schedule *schedule, void *memory,
                  struct efs_sim_op *times, struct efs_sim_result *result);

/*
 * What a real machine adds to the times of operations; all 0: nothing, as in the paper.
 *
 * How a disk ends reads that it has at the same time: the I/O thread submits all reads of a request at once, up to
 * window_ns of them (as long as they take by themselves); a disk with one queue ends them one after the other, one that
 * serves all alike ends all with the last. together: 0 for the former, 1 for the latter, between for between. What
 * is taken by all of them is the same. And a worker that found nothing to do begins wake_ns after there is something.
 */
struct efs_sim_machine {
    double together;
    uint64_t latency_ns; /* before the first of those that are submitted at once */
    uint64_t window_ns;  /* 0: one read at a time, whatever together says */
    uint64_t wake_ns;
    uint64_t busy_ns; /* the disk is with a read of somebody else's at first, and for that long */
};
/* The same on such a machine; NULL: nothing is added. The lane of the I/O thread shows a read from the end of the one
 * before it. */
void efs_simulate_on(const struct efs_graph *graph, const struct efs_schedule *schedule,
                     const struct efs_sim_machine *machine, void *memory, struct efs_sim_op *times,
                     struct efs_sim_result *result);

/* Share of the makespan that a resource worked, 0..1 (of all its lanes); 0 when nothing took any time. */
double efs_sim_utilisation(const struct efs_graph *graph, const struct efs_sim_result *result,
                           enum efs_resource resource);

#ifdef __cplusplus
}
#endif
#endif
