/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_simulate.h - times of all operations: a discrete-event model of one request under one schedule.
 *
 * One I/O thread, L workers, a recovery stream (if the graph has one) and a serial executor that runs an expert once
 * all its tensors are recovered (ZipMoE 3.3 and appendix A). A free resource immediately takes the first operation
 * available to it in priority order; it never idles while one is available. An operation takes its cost_ns.
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
    uint64_t start_ns, end_ns; /* relative to the start of the request */
    uint32_t lane;
};

struct efs_sim_result {
    uint64_t makespan_ns;            /* end of the last operation, and of the layer */
    uint64_t busy_ns[EFS_RESOURCES]; /* summed over the lanes of a resource */
    uint64_t end_ns[EFS_RESOURCES];  /* end of the resource's last operation */
};

/* Bytes of memory that a simulation of this graph needs. */
size_t efs_simulate_bytes(const struct efs_graph *graph);

/*
 * Simulates. busy_ns: time until the disk has finished an earlier read. memory: efs_simulate_bytes(), aligned for
 * uint64_t; the caller may free it afterwards. times: graph->op_count entries to fill, or NULL. Every operation of the
 * graph runs exactly once.
 */
void efs_simulate(const struct efs_graph *graph, const struct efs_schedule *schedule, uint64_t busy_ns, void *memory,
                  struct efs_sim_op *times, struct efs_sim_result *result);

#ifdef __cplusplus
}
#endif
#endif
