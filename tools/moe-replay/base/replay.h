/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - a routing trace played through the cache policies, planner and scheduler, in the simulator.
 *
 * A *pass* is one forward pass: the tokens of all sequences of the batch that are under way, through all layers. What a
 * layer asks for in a pass, each expert once, is a *request*.
 */
#ifndef MOE_REPLAY_H
#define MOE_REPLAY_H

#include "expertfs-private.h"
#include "governor.h"
#include "policy.h"
#include "pools.h"
#include "route.h"
#include "schedule.h"
#include "simulate_trace.h"
#include "tables.h"

#define REPLAY_COUNT_AGE 64u                    /* efs_policy_tuning.count_age */
#define REPLAY_REQUEST_MAX EFS_TASK_MAX_EXPERTS /* experts of a request */

/* ---- what is asked for (workload.c) ---- */

struct replay_workload {
    struct efs_tables tables;
    uint32_t layers, experts, batch;
    uint64_t passes, tokens;
    uint32_t *width;   /* [passes]: tokens in it */
    uint32_t *starts;  /* [passes]: of these, the first of their sequence */
    size_t *first;     /* [passes * layers + 1]: where a request begins in: */
    uint32_t *ids;     /* experts, each once in a request, as they were asked for */
    uint32_t *of_them; /* how many tokens ask for it */
    double chosen;     /* experts of a request, mean */
    const struct efs_route *route;
    uint64_t *at; /* [tokens]: which of the trace they are, pass by pass */
};

/*
 * Deal the first tokens (0: all) of a trace out to batch sequences at a time, for a model of layers x experts: its
 * layer l takes the trace's layer l modulo those that it has, an expert is taken modulo experts. 0, -ENOMEM, -E2BIG: a
 * request could have more than REPLAY_REQUEST_MAX experts. The trace is to live as long.
 */
int replay_workload_make(const struct efs_route *route, uint32_t layers, uint32_t experts, uint32_t batch,
                         uint64_t tokens, struct replay_workload *workload);
void replay_workload_free(struct replay_workload *workload);

/* ---- what things cost, and what is to be tried ---- */

struct replay_setup {
    struct efs_profile profile;
    uint32_t layers, experts; /* of the model that is replayed */
    uint64_t bytes[EFS_POOLS];
    uint32_t tensors, shards, workers;
    enum efs_schedule_kind schedule;
    uint64_t run_token_ns, layer_ns;
    bool run_coded; /* of the simulator: experts are run from the coded form, and nothing is decoded */
    uint32_t swaps; /* of dali and dali-printed: experts exchanged at once */
    struct efs_governor_config governor;
};

/* Fill in sizes and counts from the profile. */
void replay_setup_fill(struct replay_setup *setup);
struct efs_cost replay_cost(const struct replay_setup *setup);

/* ---- budgets, policies, runners (names.c) ---- */

/* How the budget is split: planned, or one pool of everything. */
enum replay_pools {
    REPLAY_IO,       /* planned for the least I/O time, pools shared by all layers */
    REPLAY_MAKESPAN, /* planned for the least expected makespan */
    REPLAY_CODED,    /* all C: experts are kept coded */
    REPLAY_EVEN,     /* the same, each layer with its part */
    REPLAY_FULL,     /* all F: experts are kept full, and read coded */
    REPLAY_RAW,      /* the same from files that are not coded: what is missing is read in full */
    REPLAY_POOLS
};

/* Replacement by rules that the engine has not: whole coded experts, of the simulator (sim/keeper.h). */
enum replay_keeper_kind {
    REPLAY_KEEP_NONE, /* a policy of the engine */
    REPLAY_KEEP_ORACLE,
    REPLAY_KEEP_LEAST_STALE,
    REPLAY_KEEP_LAYER_LFU,
    REPLAY_KEEP_FMOE,
    REPLAY_KEEP_INFINITY,
    REPLAY_KEEP_DALI_PRINTED,
    REPLAY_KEEP_DALI,
    REPLAY_KEEPERS
};

struct replay_policy {
    char name[24]; /* "zipmoe", "published", "lru", ..., "oracle" */
    enum efs_policy_kind kind;
    enum replay_keeper_kind keeper;
    bool published;
    enum replay_pools pools;
};

enum replay_runner {
    REPLAY_SIMULATE,
    REPLAY_EXPERTFS, /* a mount */
    REPLAY_MMAP,     /* the raw files, mapped */
    REPLAY_READ_LRU, /* raw experts, read into an LRU */
    REPLAY_RUNNERS
};

const char *replay_runner_name(enum replay_runner runner); /* "simulate", "expertfs", "mmap", "read-lru" */
const char *replay_schedule_name(enum efs_schedule_kind kind);
const char *replay_pools_name(enum replay_pools pools); /* "io", "makespan", ... */
/* NAME, or NAME:POOLS of the engine's policies; without POOLS io where a plan splits the budget, else coded.
 * false: not known. */
bool replay_policy_parse(const char *text, struct replay_policy *policy);
#define REPLAY_BUDGET_AUTO "auto" /* what the engine takes, or the mount has */
/* "8G", or "25%" of raw_bytes, which all experts take in full. false: it is neither. */
bool replay_budget_parse(const char *text, double raw_bytes, uint64_t *bytes);

/* ---- planning (plan.c) ---- */

/* What the history says. */
struct replay_history {
    struct efs_history seen; /* zeroed: no history */
    struct efs_skew skew;
    const struct replay_workload *workload; /* it; NULL: none, the skew is assumed */
};
/* history NULL: the default skew, for requests of that many experts. 0, -ENOMEM, -EINVAL. */
int replay_history_learn(const struct replay_setup *setup, const struct replay_workload *history, double chosen,
                         struct replay_history *learned);
void replay_history_free(struct replay_history *history);

struct replay_plan {
    uint64_t capacity[EFS_POOLS];
    double io_ns, makespan_ns; /* expected of a pass; 0: not planned */
};
int replay_plan_make(const struct replay_setup *setup, const struct replay_policy *policy,
                     const struct replay_history *history, uint64_t budget_bytes, struct replay_plan *plan);

/* ---- what came of a run ---- */

/* What was read ahead, by predictions: of a simulated run, or of a live one as the engine counts it. */
struct replay_guesses {
    uint64_t missing;       /* live: experts asked for that only reading ahead had brought into memory, or nothing */
    uint64_t missing_bytes; /* simulated: the same, in bytes */
    uint64_t used, late;    /* experts read ahead; being read when they were asked for */
    uint64_t wasted, cancelled;
    uint64_t bytes, right_bytes; /* read ahead; of them, asked for */
    uint64_t requests, on;       /* simulated; on: something was predicted */
};

struct replay_result {
    uint64_t passes, tokens, requests;
    struct efs_trace_totals all; /* hits by where the experts were found */
    uint64_t tpot_ns_median, tpot_ns_p99, ttft_ns_median, ttft_ns_p99;
    double policy_ns; /* of a request, mean */
    double recoded_bytes;
    double limit_ns; /* max(reads, computing, decoding): no order of the same operations ends sooner */
    struct replay_guesses guesses;
    double guesses_ratio; /* simulated: time with them over time without, as the trial measures it */
};
/* Called now and then with the tokens that are done; true ends the run, which then has what is known so far. */
typedef bool replay_progress_fn(void *arg, uint64_t tokens);

/* ---- times (times.c) ---- */

/* Fill in medians and 99th percentiles of the r->passes passes that were played. A token's time is that of its pass;
 * the first of a sequence counts for TTFT, the others for TPOT. -ENOMEM. */
int replay_take_times(const struct replay_workload *workload, const uint64_t *pass_ns, struct replay_result *r);

/* ---- a run as it is kept ---- */

struct replay_run_record {
    enum replay_runner runner;
    struct replay_policy policy;
    const char *predictor; /* NULL: nothing is guessed */
    uint32_t batch, budget;
    uint64_t budget_bytes;
    struct replay_plan plan;
    struct replay_result result;
    /* of runs on real files: */
    const char *compute; /* NULL: simulated */
    uint64_t check;      /* sum over what was loaded, or what was computed */
};

#endif
