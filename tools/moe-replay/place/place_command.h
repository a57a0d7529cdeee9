/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_command.h - moe-replay place.
 *
 * place/ is the command that places experts on servers by several rules and simulates serving requests, with each trace
 * as the task of the users of some servers. Only the main program of moe-replay calls it. It never opens a store.
 */
#ifndef MOE_REPLAY_PLACE_COMMAND_H
#define MOE_REPLAY_PLACE_COMMAND_H

#include "expertfs-private.h"
#include "route.h"
#include "place.h"
#include "servers.h"

#define REPLAY_TASKS_MAX 16u
#define REPLAY_PLACE_LOAD (1u << 30) /* rate at which a GPU loads experts, bytes per second */

/* main() of "moe-replay place". Returns the exit status. */
int replay_place_main(int argc, char **argv);

/* ---- tasks (place_tasks.c) ---- */

struct replay_task {
    char name[64];
    uint16_t *ids; /* [tokens][layers][chosen] */
    uint64_t tokens;
    struct replay_sequence {
        uint64_t first;
        uint32_t tokens;
    } * sequence;
    uint32_t sequences; /* of sufficient length; the first half is for planning, the second half is served */
    /* of the first half, means: calls of an expert per pass ([layers][experts]), and tokens per call */
    double *calls, call_tokens;
};
struct replay_tasks {
    uint32_t count, layers, experts, chosen, prompt, output;
    struct replay_task task[REPLAY_TASKS_MAX];
};
/* Reads traces as tasks. A request has `prompt` tokens in one pass, then `output` tokens one by one. shape: layers,
 * experts, chosen; 0: that of the first trace. */
errint_t replay_tasks_read(char *const *paths, uint32_t count, const uint32_t shape[3], uint32_t prompt,
                           uint32_t output, struct replay_tasks *tasks, struct efs_error *err);
void replay_tasks_free(struct replay_tasks *tasks);

/* Generates requests with Poisson arrivals at each server. With probability skew a request is of the task of its
 * server, which is n modulo tasks->count for server n (the next task from switch_s on), else of a random task.
 * planned_by: uses the first half of the sequences, else the second. The caller frees the array; NULL: no memory. */
struct efs_servers_request *replay_tasks_requests(const struct replay_tasks *tasks, uint32_t servers, double skew,
                                                  double arrival_s, double duration_s, double switch_s, bool planned_by,
                                                  uint64_t seed, size_t *count);

/* ---- runs (place_run.c) ---- */

enum { /* rows in addition to the rules */
       REPLAY_PLACE_OFFLOAD = EFS_PLACE_RULES,
       REPLAY_PLACE_REDIRECT,
       REPLAY_PLACE_ALL_LOCAL, /* the lower bound */
       REPLAY_PLACE_ROWS
};
const char *replay_place_name(unsigned row);

struct replay_place_setup {
    double memory; /* part of all experts that fits in a GPU's memory */
    uint64_t expert_bytes;
    double arrival_s, duration_s, review_s;
    bool switched;                     /* the servers change tasks at half time */
    struct efs_servers_config machine; /* times of operations; each run fills in sizes and rates */
};
struct replay_place_point { /* one combination of the variables */
    uint32_t servers;
    double mbps, skew;
};
/* The row "ours" uses the placement by time, by calls, or Prism's: the one with the least latency in a short run on the
 * planning half. */
struct replay_place_run {
    struct replay_place_point point;
    unsigned row;
    double plan_s, simulate_s, p95_s, remote_s; /* remote_s: extra time of a remote call */
    struct efs_servers_result result;
};
errint_t replay_place_run(const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                          const struct replay_place_point *point, unsigned row, double remote_s,
                          struct replay_place_run *run, struct efs_error *err);
/* Measures the extra time of a remote call in a short run of Prism's placement on the planning half. */
errint_t replay_place_measure(const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                              const struct replay_place_point *point, double *remote_s, struct efs_error *err);

/* ---- the report (place_report.c) ---- */

struct replay_place_report {
    const struct replay_place_setup *setup;
    const struct replay_tasks *tasks;
    struct replay_place_run runs[REPLAY_PLACE_ROWS]; /* of one point */
    size_t count;
};
void replay_place_print_head(const struct replay_place_report *report);
void replay_place_print_table(const struct replay_place_report *report);

#endif
