/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - workload, setup, plan and results of a run.
 *
 * base/ reads routing traces, makes workloads and plans of them, and has the types that the rooms of moe-replay share.
 * All other rooms of moe-replay and its main program include it. It never prints and never calls another room of
 * moe-replay.
 *
 * A *pass* is one forward pass through all layers, with one token of each active sequence of the batch. A *request* is
 * the set of experts of one layer in one pass.
 */
#ifndef MOE_REPLAY_H
#define MOE_REPLAY_H

#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "governor.h"
#include "policy.h"
#include "pools.h"
#include "route.h"
#include "schedule.h"
#include "simulate_trace.h"
#include "tables.h"

#define REPLAY_COUNT_AGE 64u                    /* efs_policy_tuning.count_age */
#define REPLAY_REQUEST_MAX EFS_TASK_MAX_EXPERTS /* experts of a request */

/* ---- the requests (workload.c) ---- */

struct replay_workload {
    struct efs_tables tables;
    uint32_t layers, experts, batch;
    uint64_t passes, tokens;
    uint32_t *width;   /* [passes]: tokens */
    uint32_t *starts;  /* [passes]: tokens that are the first of their sequence */
    size_t *first;     /* [passes * layers + 1]: index of a request's first expert in ids and of_them */
    uint32_t *ids;     /* experts, each once in a request, in the order of the tokens */
    uint32_t *of_them; /* number of tokens that chose the expert */
    double chosen;     /* mean number of experts of a request */
    const struct efs_route *route;
    uint64_t *at; /* [tokens], pass by pass: index of the token in the trace */
};

/*
 * Turns the first `tokens` tokens (0: all) of a trace into requests, with `batch` sequences active at a time, for a
 * model of layers x experts: layer l of the model replays layer l modulo route->layers, and expert numbers are taken
 * modulo experts. 0; -ENOMEM; -E2BIG: a request could have more than REPLAY_REQUEST_MAX experts. The workload keeps a
 * pointer to the trace.
 */
int replay_workload_make(const struct efs_route *route, uint32_t layers, uint32_t experts, uint32_t batch,
                         uint64_t tokens, struct replay_workload *workload);
/* The same passes, but each request has all experts of its layer; of_them is 0 for those that no token chose. Keeps
 * pointers to workload, which must be freed last. 0; -ENOMEM; -E2BIG: a layer has more than REPLAY_REQUEST_MAX. */
int replay_workload_widen(const struct replay_workload *workload, struct replay_workload *wide);
void replay_workload_free(struct replay_workload *workload);

/* ---- costs and settings of a run ---- */

struct replay_setup {
    struct efs_profile profile;
    uint32_t layers, experts; /* of the model that is replayed */
    uint64_t bytes[EFS_POOLS];
    uint32_t tensors, shards, workers;
    enum efs_schedule_kind schedule;
    uint64_t run_token_ns, layer_ns;
    bool run_coded; /* simulator: experts run from the coded form, without decoding */
    uint32_t swaps; /* dali and dali-printed: most experts swapped at a time */
    struct efs_governor_config governor;
};

/* Computes bytes, tensors, shards and workers from the profile. */
void replay_setup_fill(struct replay_setup *setup);
struct efs_cost replay_cost(const struct replay_setup *setup);

/* ---- budgets, policies, runners (names.c) ---- */

/* How the budget is divided into pools: by a plan, or all for one pool. */
enum replay_pools {
    REPLAY_IO,       /* planned for the least I/O time, pools shared by all layers */
    REPLAY_MAKESPAN, /* planned for the least expected makespan */
    REPLAY_CODED,    /* all for pool C: experts are cached coded */
    REPLAY_EVEN,     /* the same, divided evenly between the layers */
    REPLAY_FULL,     /* all for pool F: experts are cached decoded, and read coded */
    REPLAY_RAW,      /* the same for files without coding: experts are read in full */
    REPLAY_POOLS
};

/* Replacement policies of the simulator that the engine does not have: they cache whole coded experts, those from
 * REPLAY_CACHE_ACCELERATE on whole layers that are not coded (sim/cache_sim.h). */
enum replay_cache_kind {
    REPLAY_CACHE_NONE, /* a policy of the engine */
    REPLAY_CACHE_ORACLE,
    REPLAY_CACHE_LEAST_STALE,
    REPLAY_CACHE_LAYER_LFU,
    REPLAY_CACHE_FMOE,
    REPLAY_CACHE_INFINITY,
    REPLAY_CACHE_DALI_PRINTED,
    REPLAY_CACHE_DALI,
    REPLAY_CACHE_ACCELERATE,
    REPLAY_CACHE_ZERO,
    REPLAY_CACHES
};

struct replay_policy {
    char name[24]; /* "zipmoe", "published", "lru", ..., "oracle" */
    enum efs_policy_kind kind;
    enum replay_cache_kind cache;
    bool published;
    enum replay_pools pools;
};

enum replay_runner {
    REPLAY_SIMULATE,
    REPLAY_EXPERTFS,   /* a mount */
    REPLAY_MMAP,       /* the raw files, mapped */
    REPLAY_READ_LRU,   /* raw experts, read into an LRU */
    REPLAY_ACCELERATE, /* raw layers: the first ones stay in memory */
    REPLAY_ZERO,       /* raw layers, read one ahead of use */
    REPLAY_READ_LFU,   /* as REPLAY_READ_LRU; evicts the least frequently used */
    REPLAY_RUNNERS
};

const char *replay_runner_name(enum replay_runner runner); /* "simulate", "expertfs", "mmap", ... */
const char *replay_schedule_name(enum efs_schedule_kind kind);
const char *replay_pools_name(enum replay_pools pools); /* "io", "makespan", ... */
/* Parses NAME, or NAME:POOLS for a policy of the engine; the default of POOLS is io for zipmoe, else coded.
 * false: unknown. */
bool replay_policy_parse(const char *text, struct replay_policy *policy);
#define REPLAY_BUDGET_AUTO "auto" /* the engine's default, or the budget of the mount */
/* Parses "8G", or "25%" of raw_bytes, the decoded size of all experts. false: neither. */
bool replay_budget_parse(const char *text, double raw_bytes, uint64_t *bytes);

/* ---- planning (plan.c) ---- */

/* Statistics of a history. */
struct replay_history {
    struct efs_history seen; /* zeroed: no history */
    struct efs_skew skew;
    const struct replay_workload *workload; /* of the history; NULL: no history, the skew is a default */
};
/* history NULL: the default skew, for requests of that many experts. 0, -ENOMEM, -EINVAL. */
int replay_history_learn(const struct replay_setup *setup, const struct replay_workload *history, double chosen,
                         struct replay_history *learned);
void replay_history_free(struct replay_history *history);

struct replay_plan {
    uint64_t capacity[EFS_POOLS];
    double io_ns, makespan_ns; /* expected, as of struct efs_pools; 0: not planned */
};
int replay_plan_make(const struct replay_setup *setup, const struct replay_policy *policy,
                     const struct replay_history *history, uint64_t budget_bytes, struct replay_plan *plan);

/* ---- results of a run ---- */

/* Counters of prefetch: of the simulator, or those of the engine for a run on real files. */
struct replay_prefetch_counts {
    uint64_t missing;       /* live: requested experts that no cache held: prefetched, or not in memory */
    uint64_t missing_bytes; /* simulated: the same, in bytes */
    uint64_t used, late;    /* requested experts that were prefetched; whose prefetch was still in flight */
    uint64_t wasted, cancelled;
    uint64_t bytes, right_bytes; /* prefetched; of them, requested */
};

struct replay_result {
    uint64_t passes, tokens, requests;
    struct efs_trace_totals all; /* hits: by pool */
    uint64_t tpot_ns_median, tpot_ns_p99, ttft_ns_median, ttft_ns_p99;
    double policy_ns; /* mean per request */
    double recoded_bytes;
    double limit_ns; /* max(reads, computing, decoding): lower bound for any order of the same operations */
    struct replay_prefetch_counts prefetch;
};
/* Called after each pass on real files and every 32 passes in the simulator, with the number of tokens done. true:
 * stop; the result then covers the passes done. */
typedef bool replay_progress_fn(void *arg, uint64_t tokens);

/* ---- times (times.c) ---- */

/* Computes medians and 99th percentiles over the first r->passes passes. A token's time is that of its pass; the first
 * token of a sequence counts for TTFT, each other token for TPOT. 0 or -ENOMEM. */
int replay_compute_times(const struct replay_workload *workload, const uint64_t *pass_ns, struct replay_result *r);

/* ---- the record of a run ---- */

struct replay_run_record {
    enum replay_runner runner;
    struct replay_policy policy;
    const char *predictor; /* NULL: no prefetch */
    uint32_t batch, budget;
    uint64_t budget_bytes;
    struct replay_plan plan;
    struct replay_result result;
    /* of runs on real files: */
    const char *compute; /* NULL: simulated */
    uint64_t check;      /* checksum of the bytes touched or of the numbers computed (compute.h) */
};

#endif
