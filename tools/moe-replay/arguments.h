/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.h - the command line of moe-replay. */
#ifndef MOE_REPLAY_ARGUMENTS_H
#define MOE_REPLAY_ARGUMENTS_H

#include "compute.h"
#include "predictions.h"
#include "replay.h"
#include "shared_options.h"

#include <argp.h>

#define REPLAY_LIST_MAX 32

struct replay_arguments {
    struct replay_shared shared;
    const char *trace, *profile, *json;
    const char *mount; /* a store or a mountpoint; NULL: no mount */
    const char *raw, *program;
    char *budgets[REPLAY_LIST_MAX], *policies[REPLAY_LIST_MAX], *peers[REPLAY_LIST_MAX];
    char *predict; /* NULL: nothing is guessed */
    struct predict_choice predictors[REPLAY_LIST_MAX];
    uint32_t predictor_count;
    uint32_t turns;      /* passes with guesses and without by turns; 0: none */
    const char *without; /* the option prefetch in the latter */
    uint32_t budget_count, policy_count, peer_count;
    bool simulate;
    enum replay_pools planned, single;
    enum replay_compute_kind compute;
    uint32_t threads;         /* that compute; 0: all cores */
    uint32_t workers;         /* as asked for; 0: not */
    bool open_given;          /* setup.open_ns was said */
    bool prealloc;            /* take all memory of a run before its first token */
    bool warm;                /* expertfs fills memory that is still empty while the disk rests */
    uint64_t allowance_bytes; /* of a memory cgroup, above the budget */
    struct replay_setup setup;
    struct replay_policy policy[REPLAY_LIST_MAX];
    enum replay_runner peer[REPLAY_LIST_MAX];
};

/* Of an entry of --budget, "8G" or "25%", the bytes, where all raw experts take raw_bytes. false: it is neither. */
bool replay_budget_parse(const char *text, double raw_bytes, uint64_t *bytes);
/* Read the command line; ends the program where it is wrong. */
void replay_arguments_parse(int argc, char **argv, struct replay_arguments *arguments);

#endif
