/* SPDX-License-Identifier: Apache-2.0 */
/* predictions_arguments.c - the command line of moe-replay predict. */
#include "predictions.h"

#include "options.h"
#include "size.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

enum { OPT_HISTORY = 256, OPT_PREDICTORS, OPT_EVERY, OPT_TOKENS, OPT_LEARN, OPT_MEMORY };

static const struct argp_option options[] = {
    {"history", OPT_HISTORY, "TRACE", 0, "Learn from this trace first (default: begin with nothing)", 0},
    {"predictors", OPT_PREDICTORS, "NAME,...", 0,
     "all (default), or some of deepspeed, brainstorm, request, transition, edgemoe", 0},
    {"every", OPT_EVERY, "N", 0, "Judge every Nth token (default: 1); all are learned from", 0},
    {"tokens", OPT_TOKENS, "N", 0, "Only the first N tokens of TRACE", 0},
    {"learn", OPT_LEARN, "KIND", 0,
     "What is learned from TRACE: request (default; each begins with what the history taught), all, no", 0},
    {"memory", OPT_MEMORY, "SIZE", 0, "The most that a predictor may hold (default: 64M)", 0},
    {0}};

static const char *const learn_names[PREDICT_LEARNS] = {
    [PREDICT_LEARN_REQUEST] = "request", [PREDICT_LEARN_ALL] = "all", [PREDICT_LEARN_NO] = "no"};

static void add_choice(const struct argp_state *state, struct predict_arguments *a, const char *name)
{
    enum efs_predictor_kind kind = efs_predictor_by_name(name);
    struct predict_choice *choice = &a->choices[a->count];
    if (kind == EFS_PREDICTORS)
        argp_error(state, "--predictors %s: there is no such predictor", name);
    if (a->count == PREDICT_LIST_MAX)
        argp_error(state, "--predictors: more than %d", PREDICT_LIST_MAX);
    *choice = (struct predict_choice){.config = {.kind = kind}};
    snprintf(choice->name, sizeof(choice->name), "%s", name);
    a->count++;
}

static void add_all(const struct argp_state *state, struct predict_arguments *a)
{
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++)
        add_choice(state, a, efs_predictor_name(kind));
}

static void add_list(const struct argp_state *state, struct predict_arguments *a, char *list)
{
    char *rest = NULL;
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (strcmp(name, "all") == 0)
            add_all(state, a);
        else
            add_choice(state, a, name);
}

static enum predict_learn learn_by_name(const struct argp_state *state, const char *value)
{
    enum predict_learn learn = 0;
    while (learn < PREDICT_LEARNS && strcmp(learn_names[learn], value) != 0)
        learn++;
    if (learn == PREDICT_LEARNS)
        argp_error(state, "--learn %s: request, all or no", value);
    return learn;
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct predict_arguments *a = state->input;
    switch (key) {
    case OPT_HISTORY:
        a->history = value;
        return 0;
    case OPT_PREDICTORS:
        a->count = 0;
        add_list(state, a, value);
        return 0;
    case OPT_EVERY:
        a->every = tools_option_number(state, "every", value, 1, UINT32_MAX);
        return 0;
    case OPT_TOKENS:
        a->tokens = tools_option_number(state, "tokens", value, 1, UINT32_MAX);
        return 0;
    case OPT_LEARN:
        a->learn = learn_by_name(state, value);
        return 0;
    case OPT_MEMORY:
        if (!tools_size_parse(value, &a->memory_bytes) || a->memory_bytes == 0)
            argp_error(state, "--memory %s: a size such as 64M", value);
        return 0;
    case ARGP_KEY_SUCCESS:
        if (a->count == 0)
            add_all(state, a);
        return 0;
    default:
        return tools_option_argument(state, key, value, "TRACE", &a->trace);
    }
}

void predict_arguments_parse(int argc, char **argv, struct predict_arguments *a)
{
    static const struct argp argp = {
        options,
        parse_option,
        "TRACE",
        "Judge predictors on a routing trace (.route): which experts the layers to come will choose, guessed from "
        "those that layers have chosen.\v"
        "Exit status: 0 all ran, 1 failed, 2 wrong usage, 130 interrupted.",
        NULL,
        NULL,
        NULL};
    static char name[] = "moe-replay predict";
    *a = (struct predict_arguments){.every = 1};
    argv[0] = name;
    argp_parse(&argp, argc, argv, 0, NULL, a);
}
