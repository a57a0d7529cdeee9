/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulate_trace.h - simulates a trace: one request per layer, cache states from a policy, totals per token.
 *
 * simulate/ simulates a whole trace on one timeline. sim/ of moe-replay calls it, base/ of moe-replay uses its types.
 * It never allocates, and never calls a policy, a planner or a predictor except through the caller's functions.
 *
 * For each layer: the policy returns the state of each expert and the costs of its tensors; the simulator builds the
 * graph, schedules it, simulates it, and reports the experts used to the policy (which then moves experts between its
 * pools). Layers follow each other as in a forward pass: the next starts when the last expert of this one has run.
 * "Token" below is one such pass, for all the sequences of a batch.
 *
 * All layers and tokens are on one timeline: while experts run and between requests the disk is idle, and reads
 * predicted experts (struct efs_trace_prefetch). A request waits at most for the piece that is in flight when it
 * arrives.
 */
#ifndef EFS_SIMULATE_TRACE_H
#define EFS_SIMULATE_TRACE_H

#include "schedule_simulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor of an expert as described by the policy: its state, its times, and the bytes of its reads. */
struct efs_trace_tensor {
    struct efs_task_tensor task;
    uint64_t e_bytes;  /* all E-chunks of the tensor, as stored */
    uint64_t sm_bytes; /* its SM-chunk */
};

struct efs_trace_policy {
    void *arg;
    /* A layer requests these experts, each once. Called before describe, so that a policy can handle the request as a
     * whole. 0, or -errno, which ends the simulation. May be NULL. */
    int (*begin)(void *arg, uint32_t layer, const uint32_t *experts, uint32_t count);
    /* Fills tensors (room for EFS_TASK_MAX_TENSORS) for this expert in its current state and returns their number. */
    uint32_t (*describe)(void *arg, uint32_t layer, uint32_t expert, struct efs_trace_tensor *tensors);
    /* The layer has finished. May be NULL. */
    void (*used)(void *arg, uint32_t layer, const uint32_t *experts, uint32_t count);
};

/* Reads of the disk while no request needs it. */
struct efs_trace_prefetch {
    void *arg;
    /* The disk is idle at now_ns: starts the next piece and returns its time; 0: no piece before the next request.
     * NULL: no prefetch. */
    uint64_t (*next)(void *arg, uint64_t now_ns);
    /* That piece is in memory. Called before the next `next`; for a piece in flight when a request arrived, after the
     * request. NULL if and only if next is NULL. */
    void (*done)(void *arg);
};

/* State of the timeline between calls; initialise to zero. */
struct efs_trace_timeline {
    uint64_t request_ns; /* arrival of the last request: the current time in the policy's functions */
    uint64_t now_ns;     /* end of its experts */
    uint64_t disk_ns;    /* the disk is busy until then */
    bool piece;          /* with a prefetched piece */
};

struct efs_trace_config {
    struct efs_trace_policy policy;
    struct efs_trace_prefetch ahead;
    struct efs_trace_timeline *timeline;
    uint32_t workers;
    enum efs_task_recovery recovery;
    bool fused;
    enum efs_schedule_kind kind;
    uint64_t run_token_ns; /* p_n of a token */
    uint64_t layer_ns;     /* the rest of a layer (attention, router), before the request for its experts */
    uint32_t max_shards;   /* maximum number of shards that describe returns for a tensor */
};

/* One layer of one token. */
struct efs_trace_request {
    uint64_t token;          /* a change ends the totals of the token before */
    uint32_t layer, count;   /* 1..EFS_TASK_MAX_EXPERTS experts */
    const uint32_t *experts; /* their ids */
    const uint32_t *tokens;  /* number of tokens of each expert; NULL: one each */
};

struct efs_trace_totals {
    uint64_t token, requests;
    uint64_t time_ns;                /* all layers, including layer_ns: TPOT */
    uint64_t busy_ns[EFS_RESOURCES]; /* as in efs_sim_result */
    uint64_t ahead_ns;               /* disk time of prefetches */
    uint64_t read_bytes;             /* for requests */
    uint64_t hits[EFS_TASK_STATES];  /* requested experts, by the worst state of their tensors */
};

/* Adds a later part to sum; sets the token of sum to that of the part. */
void efs_trace_totals_add(struct efs_trace_totals *sum, const struct efs_trace_totals *part);

/* Called when a token is complete. */
typedef void efs_trace_token_fn(void *arg, const struct efs_trace_totals *totals);

/* Bytes of memory that a simulation with this configuration needs; 0: the configuration is not valid. */
size_t efs_trace_bytes(const struct efs_trace_config *config);

/*
 * Simulates count requests in order. memory: efs_trace_bytes(), aligned for uint64_t; the caller may free it
 * afterwards. each (may be NULL) is called after every token; all (may be NULL) receives the sums. -EINVAL: a request
 * or a description is out of bounds; -ENOSPC: too little memory; or an error of begin. After an error, all has the sums
 * of the requests before it.
 */
int efs_trace_simulate(const struct efs_trace_config *config, const struct efs_trace_request *requests, size_t count,
                       void *memory, size_t bytes, efs_trace_token_fn *each, void *arg, struct efs_trace_totals *all);

#ifdef __cplusplus
}
#endif
#endif
