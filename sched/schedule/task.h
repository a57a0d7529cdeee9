/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.h - the operations before the experts of one request can run: reads, decodes and recoveries, as a graph.
 *
 * ZipMoE 3.2 and Figure 6. A task is one tensor of one requested expert. By its compression state it has
 *
 *      M   K E-chunk reads, one SM-chunk read, K decodes, one recovery
 *      E   one SM-chunk read, K decodes, one recovery           (the E-chunks are in memory)
 *      S   K E-chunk reads, K decodes, one recovery             (the SM-chunk is in memory)
 *      C   K decodes, one recovery                              (both are)
 *      F   nothing
 *
 * with the edges: read of E-chunk i -> decode i -> recovery -> run of the expert, read of the SM-chunk -> recovery. In
 * a fused graph a decode merges in the same pass, so it needs the SM-chunk first: read of SM -> every decode.
 *
 * Pure: no I/O, clock, threads or allocation. All times are nanoseconds of the caller's cost model (profiled u, rho, c,
 * p_n of the paper), in integers, so that the same input gives the same output on every machine.
 */
#ifndef EFS_TASK_H
#define EFS_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_TASK_MAX_EXPERTS 512u
#define EFS_TASK_MAX_TENSORS 8u  /* of one expert */
#define EFS_TASK_MAX_SHARDS 256u /* of one tensor */
#define EFS_TASK_MAX_WORKERS 64u
#define EFS_TASK_MAX_TASKS (EFS_TASK_MAX_EXPERTS * EFS_TASK_MAX_TENSORS)
#define EFS_TASK_MAX_NS (UINT64_C(1) << 40) /* of one operation: 18 minutes; so sums over a request do not overflow */

/* The states of a tensor (ZipMoE 3.2): full, compressed (both chunks), SM only, E only, missing. */
enum efs_task_state { EFS_TASK_F, EFS_TASK_C, EFS_TASK_S, EFS_TASK_E, EFS_TASK_M, EFS_TASK_STATES };

/* One tensor of a requested expert. Times that its state does not need are ignored (but checked). */
struct efs_task_tensor {
    enum efs_task_state state;
    uint32_t shards;     /* K, 1..EFS_TASK_MAX_SHARDS; ignored for F */
    uint64_t e_read_ns;  /* read of one E-chunk: rho/K * u */
    uint64_t sm_read_ns; /* read of the SM-chunk: u */
    uint64_t decode_ns;  /* one shard: c */
    uint64_t recover_ns; /* join E and SM of the whole tensor; 0 if the decodes do it */
};

struct efs_task_expert {
    uint32_t tensors; /* 1..EFS_TASK_MAX_TENSORS; stored after those of the expert before */
    uint64_t run_ns;  /* p_n: run all its tokens */
};

/* Resource of the recoveries. */
enum efs_task_recovery {
    EFS_RECOVER_STREAM, /* a separate serial stream (the paper's CUDA stream) */
    EFS_RECOVER_WORKER  /* the decode workers, each before decodes of lower priority */
};

/* One request: the experts that a layer needs, in the order of the request. The caller owns it; no function keeps
 * it. */
struct efs_task_request {
    const struct efs_task_expert *experts;
    uint32_t expert_count; /* 1..EFS_TASK_MAX_EXPERTS */
    const struct efs_task_tensor *tensors;
    uint32_t tensor_count; /* the sum of experts[].tensors */
    uint32_t workers;      /* L, 1..EFS_TASK_MAX_WORKERS */
    enum efs_task_recovery recovery;
    bool fused; /* decodes also need the SM-chunk */
};

enum efs_op_kind { EFS_OP_READ_E, EFS_OP_READ_SM, EFS_OP_DECODE, EFS_OP_RECOVER, EFS_OP_RUN };

/* One operation. Its successors, the operations that wait for it, are a range of the graph's operations. */
struct efs_op {
    uint64_t cost_ns;
    uint32_t successor;  /* the first */
    uint16_t successors; /* their number */
    uint16_t needs;      /* number of operations that it waits for */
    uint16_t task;       /* for EFS_OP_RUN: the expert's index in the request */
    uint16_t shard;      /* of READ_E and DECODE */
    uint8_t kind;        /* enum efs_op_kind */
    uint8_t unused[3];
};

#define EFS_OP_NONE UINT32_MAX

/* One task: a tensor that is not F. Its decodes are the operations decode .. decode + shards - 1, in shard order; its
 * E-chunk reads, if any, are read_e .. read_e + shards - 1. */
struct efs_task {
    uint32_t expert;           /* index in the request */
    uint32_t tensor;           /* index in the request's tensors */
    enum efs_task_state state; /* C, S, E or M */
    uint32_t shards;
    uint32_t read_e;  /* the first, or EFS_OP_NONE */
    uint32_t read_sm; /* or EFS_OP_NONE */
    uint32_t decode;
    uint32_t recover;
    uint64_t e_read_ns, sm_read_ns, decode_ns, recover_ns; /* read times are 0 if the task has no such read */
    uint64_t run_ns;                                       /* p_n of its expert */
};

/* The graph of a request. The arrays are in the memory given to efs_graph_build. */
struct efs_graph {
    struct efs_task *tasks;
    struct efs_op *ops;
    uint32_t task_count, op_count;
    uint32_t reads, decodes; /* numbers of I/O operations and of decodes */
    uint32_t first_run;      /* the run of expert n is operation first_run + n */
    uint32_t expert_count, workers;
    enum efs_task_recovery recovery;
    bool fused;
};

/* Bytes of memory for the graph of a request; 0: the request is not valid (see the limits above). */
size_t efs_graph_bytes(const struct efs_task_request *request);

/*
 * Builds the graph of a request in memory (bytes long, aligned for uint64_t). The caller owns it, and keeps it valid
 * while it uses the graph. -EINVAL: not valid; -ENOSPC: less than efs_graph_bytes(). Linear time.
 */
int efs_graph_build(const struct efs_task_request *request, void *memory, size_t bytes, struct efs_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
