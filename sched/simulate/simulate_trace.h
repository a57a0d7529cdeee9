/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulate_trace.h - a whole trace in the simulator: one request a layer, cache states from a policy, totals a token.
 *
 * Layer after layer: ask the policy in which state each expert is and what its tensors cost, build the graph, schedule
 * it, simulate it, tell the policy what was used (it then moves experts between its pools). Layers follow each other
 * as in a forward pass: the next begins when the last expert of this one has run. "Token" below is one such pass, of
 * all the sequences of a batch.
 *
 * All layers and tokens are on one timeline: while experts run and between requests the disk is idle, and reads what is
 * guessed (struct efs_trace_ahead). A request waits for no more than the piece that is being read when it comes.
 */
#ifndef EFS_SIMULATE_TRACE_H
#define EFS_SIMULATE_TRACE_H

#include "schedule_simulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One tensor of an expert as the policy describes it: its state, its times, and what its reads weigh. */
struct efs_trace_tensor {
    struct efs_task_tensor task;
    uint64_t e_bytes;  /* all E-chunks of the tensor, as stored */
    uint64_t sm_bytes; /* its SM-chunk */
};

struct efs_trace_policy {
    void *arg;
    /* A layer asks for these experts, each once. Called first, so that a policy can take the request as a whole. 0 or
     * -errno, which ends the simulation. May be NULL. */
    int (*begin)(void *arg, uint32_t layer, const uint32_t *experts, uint32_t count);
    /* Fill tensors (room for EFS_TASK_MAX_TENSORS) for this expert as things are now and return their number. */
    uint32_t (*describe)(void *arg, uint32_t layer, uint32_t expert, struct efs_trace_tensor *tensors);
    /* The layer is done. May be NULL. */
    void (*used)(void *arg, uint32_t layer, const uint32_t *experts, uint32_t count);
};

/* What the disk reads while no request wants it. */
struct efs_trace_ahead {
    void *arg;
    /* It is idle at now_ns: how long the next piece takes, 0: there is none before the next request. NULL: never. */
    uint64_t (*next)(void *arg, uint64_t now_ns);
    /* That piece is in memory. Told before the next one, and after a request that came meanwhile. */
    void (*done)(void *arg);
};

/* Where simulations of one trace are, from one call to the next; zeroed at first. */
struct efs_trace_timeline {
    uint64_t asked_ns; /* when the last request came: now for the policy's functions */
    uint64_t now_ns;   /* its experts have run */
    uint64_t disk_ns;  /* until then the disk is busy */
    bool piece;        /* with a piece of what is guessed */
};

struct efs_trace_config {
    struct efs_trace_policy policy;
    struct efs_trace_ahead ahead;
    struct efs_trace_timeline *timeline;
    uint32_t workers;
    enum efs_task_recovery recovery;
    bool fused;
    enum efs_schedule_kind kind;
    uint64_t run_token_ns; /* p_n of a token */
    uint64_t layer_ns;     /* all else in a layer (attention, router), before its experts are asked for */
    uint32_t max_shards;   /* most shards that describe gives a tensor */
};

/* One layer of one token. */
struct efs_trace_request {
    uint64_t token;          /* a new number: the totals of the one before are complete */
    uint32_t layer, count;   /* 1..EFS_TASK_MAX_EXPERTS experts */
    const uint32_t *experts; /* ids */
    const uint32_t *tokens;  /* of each expert; NULL: one each */
};

struct efs_trace_totals {
    uint64_t token, requests;
    uint64_t time_ns;                /* all layers, their layer_ns included: TPOT */
    uint64_t busy_ns[EFS_RESOURCES]; /* as in efs_sim_result */
    uint64_t ahead_ns;               /* the disk, with what was guessed */
    uint64_t read_bytes;             /* for requests */
    uint64_t hits[EFS_TASK_STATES];  /* experts asked for, by the worst state of their tensors */
};

/* Add a part that comes after: its token is the last. */
void efs_trace_totals_add(struct efs_trace_totals *sum, const struct efs_trace_totals *part);

/* Called when a token is complete. */
typedef void efs_trace_token_fn(void *arg, const struct efs_trace_totals *totals);

/* Bytes of memory that a trace of this configuration needs; 0 when it is not valid. */
size_t efs_trace_bytes(const struct efs_trace_config *config);

/*
 * Simulate count requests in order. memory: efs_trace_bytes, aligned for uint64_t, free again afterwards. each is
 * called after every token (may be NULL); all (may be NULL) gets the sums. -EINVAL: a request or a description is out
 * of bounds; -ENOSPC: too little memory; or what begin returned. What came before is in all.
 */
int efs_trace_simulate(const struct efs_trace_config *config, const struct efs_trace_request *requests, size_t count,
                       void *memory, size_t bytes, efs_trace_token_fn *each, void *arg, struct efs_trace_totals *all);

#ifdef __cplusplus
}
#endif
#endif
