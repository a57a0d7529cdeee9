/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.h - the command line of moe-replay. */
#ifndef MOE_REPLAY_ARGUMENTS_H
#define MOE_REPLAY_ARGUMENTS_H

#include "compute.h"
#include "predictions.h"
#include "replay.h"

#include "options.h"

struct replay_arguments {
    struct tools_arguments trace;
    const char *store, *profile, *plan_from, *json; /* NULL: not given */
    const char *mount;                              /* a mount, or a store to open */
    const char *raw;
    unsigned peer; /* REPLAY_MMAP + peer is the runner; NO_PEER: none */
    struct tools_list budgets, policies, predict;
    struct tools_numbers batch;
    uint64_t tokens, layer_us, run_us; /* tokens 0: all */
    unsigned compute, schedule;
    struct replay_policy policy[TOOLS_LIST_MAX];
    struct predict_choice predictors[PREDICT_LIST_MAX];
    uint32_t predictor_count;
    struct replay_setup setup;
};

/* Parses the command line; wrong usage exits with status 2. */
void replay_arguments_parse(int argc, char **argv, struct replay_arguments *arguments);
/* Whether the run is on real files: --mount or --peer. */
bool replay_arguments_live(const struct replay_arguments *arguments);
/* main() of "moe-replay counts" (counts.c). Returns the exit status. */
int replay_counts_main(int argc, char **argv);

#endif
