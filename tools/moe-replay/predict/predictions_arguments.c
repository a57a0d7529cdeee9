/* SPDX-License-Identifier: Apache-2.0 */
/* predictions_arguments.c - the command line of moe-replay predict. */
#include "predictions.h"

#include "options.h"
#include "size.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

enum { OPT_HISTORY = 256, OPT_PREDICTORS, OPT_EVERY, OPT_LEARN, OPT_MEMORY };

static const struct argp_option options[] = {
    {"history", OPT_HISTORY, "TRACE", 0, "Learn from this trace first; may be given several times", 0},
    {"predictors", OPT_PREDICTORS, "NAME,...", 0,
     "all (default), or some of deepspeed, brainstorm, request, transition, edgemoe, moe-infinity, fmoe, "
     "mixed, and by hidden states mixtral-offloading, hybrimoe, dali, linear; fmoe:trajectory, fmoe:semantic, "
     "fmoe:topk and NAME:N with N maps or requests are what their papers "
     "compare",
     0},
    {"every", OPT_EVERY, "N", 0, "Judge every Nth token (default: 1); all are learned from", 0},
    {"tokens", REPLAY_OPT_TOKENS, "N", 0, "Only the first N tokens of TRACE", 0},
    {"learn", OPT_LEARN, "KIND", 0,
     "What is learned from TRACE: request (default; each begins with what the history taught), all, no", 0},
    {"memory", OPT_MEMORY, "SIZE", 0, "The most that a predictor may hold (default: 64M)", 0},
    {0}};

static const char *const learn_names[PREDICT_LEARNS] = {
    [PREDICT_LEARN_REQUEST] = "request", [PREDICT_LEARN_ALL] = "all", [PREDICT_LEARN_NO] = "no"};

bool predict_choice_parse(const char *text, struct predict_choice *choice)
{
    struct efs_predict_config *config = &choice->config;
    char *variant;
    uint64_t number = 0;
    *choice = (struct predict_choice){.named = false};
    snprintf(choice->name, sizeof(choice->name), "%s", text);
    variant = strchr(choice->name, ':');
    if (variant)
        *variant = '\0';
    config->kind = efs_predictor_by_name(choice->name);
    if (!variant)
        return config->kind < EFS_PREDICTORS;
    *variant++ = ':';
    if (config->kind == EFS_PREDICT_FMOE && strcmp(variant, "trajectory") == 0)
        config->tuning.match = EFS_MATCH_TRAJECTORY;
    else if (config->kind == EFS_PREDICT_FMOE && strcmp(variant, "semantic") == 0)
        config->tuning.match = EFS_MATCH_SEMANTIC;
    else if (config->kind == EFS_PREDICT_FMOE && strcmp(variant, "topk") == 0)
        config->tuning.no_delta = true;
    else if (!tools_number_parse(variant, 1, 10000000, &number))
        return false;
    if (number > 0 && config->kind == EFS_PREDICT_INFINITY)
        config->tuning.requests = (unsigned)number;
    else if (number > 0 && (config->kind == EFS_PREDICT_FMOE || config->kind == EFS_PREDICT_MIXED))
        config->tuning.maps = (unsigned)number;
    else
        return number == 0;
    return true;
}

static void add_choice(const struct argp_state *state, struct predict_arguments *a, const char *name, bool named)
{
    struct predict_choice *choice = &a->choices[a->count];
    if (a->count == PREDICT_LIST_MAX)
        argp_error(state, "--predictors: more than %d", PREDICT_LIST_MAX);
    if (!predict_choice_parse(name, choice))
        argp_error(state, "--predictors %s: there is no such predictor", name);
    choice->named = named;
    a->count++;
}

static void add_all(const struct argp_state *state, struct predict_arguments *a)
{
    for (enum efs_predictor_kind kind = 0; kind < EFS_PREDICTORS; kind++)
        add_choice(state, a, efs_predictor_name(kind), false);
}

static void add_list(const struct argp_state *state, struct predict_arguments *a, char *list)
{
    char *names[PREDICT_LIST_MAX];
    uint32_t count = tools_option_words(state, "predictors", list, names, PREDICT_LIST_MAX);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(names[i], "all") == 0)
            add_all(state, a);
        else
            add_choice(state, a, names[i], true);
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
        if (a->histories == PREDICT_HISTORIES_MAX)
            argp_error(state, "--history: more than %d", PREDICT_HISTORIES_MAX);
        a->history[a->histories++] = value;
        return 0;
    case OPT_PREDICTORS:
        a->count = 0;
        add_list(state, a, value);
        return 0;
    case OPT_EVERY:
        a->every = tools_option_number(state, "every", value, 1, UINT32_MAX);
        return 0;
    case OPT_LEARN:
        a->learn = learn_by_name(state, value);
        return 0;
    case OPT_MEMORY:
        a->memory_bytes = tools_option_size(state, "memory", value, 1, UINT64_C(1) << 40);
        return 0;
    case ARGP_KEY_SUCCESS:
        if (a->count == 0)
            add_all(state, a);
        return 0;
    default:
        return replay_shared_parse(state, key, value, &a->shared) == 0
                   ? 0
                   : tools_option_argument(state, key, value, "TRACE", &a->trace);
    }
}

void predict_arguments_parse(int argc, char **argv, struct predict_arguments *a)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "TRACE",
                                     .doc = "Judge predictors on a routing trace (.route): which experts the layers to "
                                            "come will choose, guessed from those that layers have chosen.\v"
                                            "Exit status: 0 all ran, 1 failed, 2 wrong usage, 130 interrupted."};
    static char name[] = "moe-replay predict";
    *a = (struct predict_arguments){.every = 1};
    argv[0] = name;
    argp_parse(&argp, argc, argv, 0, NULL, a);
}
