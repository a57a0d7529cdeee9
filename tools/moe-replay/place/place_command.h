/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_command.h - moe-replay place: whole traces as the tasks of servers' users, experts placed by rules, requests
 * served in the simulator.
 */
#ifndef MOE_REPLAY_PLACE_COMMAND_H
#define MOE_REPLAY_PLACE_COMMAND_H

#include "expertfs-private.h"
#include "route.h"
#include "place.h"
#include "servers.h"

#define REPLAY_TASKS_MAX 16u
#define REPLAY_PLACE_LOAD (1u << 30) /* bytes a second that a graphics processor loads of experts */

/* The command line behind "moe-replay place"; returns the exit status. */
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
    uint32_t sequences; /* that are long enough; the first half is for planning, the other is served */
    /* of the first half, for a pass: how often an expert is called ([layers][experts]), and tokens of a call */
    double *calls, call_tokens;
};
struct replay_tasks {
    uint32_t count, layers, experts, chosen, prompt, output;
    struct replay_task task[REPLAY_TASKS_MAX];
};
/* Read traces as tasks of requests of that length; shape: layers, experts, chosen, or 0 for the first trace's. */
errint_t replay_tasks_read(char *const *paths, uint32_t count, const uint32_t shape[3], uint32_t prompt,
                           uint32_t output, struct replay_tasks *tasks, struct efs_error *err);
void replay_tasks_free(struct replay_tasks *tasks);

/* Poisson arrivals at each server. With probability skew a request is of the server's own task, server n's being n
 * modulo the tasks (after switch_s, the next one), else of any. planned_by: of the first half of the sequences, not of
 * the other. Freed by the caller; NULL: no memory. */
struct efs_servers_request *replay_tasks_requests(const struct replay_tasks *tasks, uint32_t servers, double skew,
                                                  double arrival_s, double duration_s, double switch_s, bool planned_by,
                                                  uint64_t seed, size_t *count);

/* ---- runs (place_run.c) ---- */

enum { /* rows beside the rules */
       REPLAY_PLACE_OFFLOAD = EFS_PLACE_RULES,
       REPLAY_PLACE_REDIRECT,
       REPLAY_PLACE_ALL_LOCAL, /* the lower bound */
       REPLAY_PLACE_ROWS
};
const char *replay_place_name(unsigned row);

struct replay_place_setup {
    double memory; /* part of all experts that a processor holds */
    uint64_t expert_bytes;
    double arrival_s, duration_s, review_s;
    bool switched;                     /* tasks change places at half time */
    struct efs_servers_config machine; /* what things take; sizes and rates are filled in */
};
struct replay_place_point { /* where on the axes */
    uint32_t servers;
    double mbps, skew;
};
/* The row "ours" is the placement by time, by calls or Prism's: what a short run on the planned half serves faster. */
struct replay_place_run {
    struct replay_place_point point;
    unsigned row;
    double plan_s, simulate_s, p95_s, remote_s; /* remote_s: of a call */
    struct efs_servers_result result;
};
errint_t replay_place_run(const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                          const struct replay_place_point *point, unsigned row, double remote_s,
                          struct replay_place_run *run, struct efs_error *err);
/* What a call elsewhere takes longer, measured in a short run of Prism's placement on what is planned by. */
errint_t replay_place_measure(const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                              const struct replay_place_point *point, double *remote_s, struct efs_error *err);

/* ---- what is told (place_report.c) ---- */

struct replay_place_report {
    const struct replay_place_setup *setup;
    const struct replay_tasks *tasks;
    struct replay_place_run runs[REPLAY_PLACE_ROWS]; /* of one point */
    size_t count;
};
void replay_place_print_head(const struct replay_place_report *report);
void replay_place_print_table(const struct replay_place_report *report);

#endif
