/* SPDX-License-Identifier: Apache-2.0 */
/* predictions_arguments.c - the command line of moe-replay predict. */
#include "predictions.h"

#include "size.h"

#include <stdio.h>
#include <string.h>

static void take_history(const struct argp_state *state, const struct tools_option *option, char *value, void *into)
{
    struct predict_arguments *a = into;
    if (a->histories == PREDICT_HISTORIES_MAX)
        argp_error(state, "--%s: more than %d", option->name, PREDICT_HISTORIES_MAX);
    a->history[a->histories++] = value;
}

#define AT(field) .at = offsetof(struct predict_arguments, field)

static const struct tools_option options[] = {
    {"history", 0, "TRACE", "Learn from this trace first; may be given several times", TOOLS_CALL,
     .parse = take_history},
    {.name = "predictors",
     .argument = "NAME,...",
     .help =
         "all (default), or some of deepspeed, brainstorm, request, transition, edgemoe, moe-infinity, fmoe, mixed, "
         "and by hidden states mixtral-offloading, hybrimoe, dali, linear, promoe; fmoe:trajectory, "
         "fmoe:semantic, fmoe:topk and NAME:N with N maps or requests are what their papers compare",
     .kind = TOOLS_LIST,
     AT(names)},
    {"every", 0, "N", "Judge every Nth token (default: 1); all are learned from", TOOLS_NUMBER, AT(every), .least = 1,
     .most = UINT32_MAX},
    {"tokens", 0, "N", "Only the first N tokens of TRACE", TOOLS_NUMBER, AT(tokens), .least = 1},
    {"learn", 0, "KIND",
     "What is learned from TRACE: request (default; each begins with what the history taught), all, no", TOOLS_WORD,
     AT(learn), .words = "request|all|no"},
    {"memory", 0, "SIZE", "The most that a predictor may hold (default: 64M)", TOOLS_SIZE, AT(memory_bytes), .least = 1,
     .most = UINT64_C(1) << 40},
    {0}};

/* Parses NAME or NAME:VARIANT. false: unknown predictor or variant. */
static bool choice_parse(const char *text, struct predict_choice *choice)
{
    struct efs_predict_config *config = &choice->config;
    char *variant;
    uint64_t number = 0;
    *choice = (struct predict_choice){.named = true};
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

uint32_t predict_choices_parse(const struct argp_state *state, const char *option, const struct tools_list *names,
                               bool perfect, struct predict_choice *choices)
{
    static const struct predict_choice knows = {.name = PREDICT_PERFECT, .config.kind = EFS_PREDICTORS};
    uint32_t count = 0;
    for (uint32_t i = 0; i < names->count; i++) {
        bool all = strcmp(names->word[i], "all") == 0;
        if (count + EFS_PREDICTORS + 1 > PREDICT_LIST_MAX)
            argp_error(state, "--%s: more than %u predictors", option, count);
        for (unsigned kind = 0; all && kind < EFS_PREDICTORS; kind++)
            if (choice_parse(efs_predictor_name((enum efs_predictor_kind)kind), &choices[count]))
                choices[count++].named = false;
        if (perfect && (all || strcmp(names->word[i], PREDICT_PERFECT) == 0))
            choices[count++] = knows;
        else if (!all && !choice_parse(names->word[i], &choices[count++]))
            argp_error(state, "--%s %s: there is no such predictor", option, names->word[i]);
    }
    return count;
}

static void finish_options(const struct argp_state *state, void *into)
{
    static char all[] = "all";
    struct predict_arguments *a = into;
    if (a->names.count == 0)
        a->names = (struct tools_list){{all}, 1};
    a->count = predict_choices_parse(state, "predictors", &a->names, false, a->choices);
}

void predict_arguments_parse(int argc, char **argv, struct predict_arguments *a)
{
    static const struct tools_command command = {
        .options = options,
        .arguments = "TRACE",
        AT(trace),
        .help = "Judge predictors on a routing trace (.route): which experts the layers to come will choose, guessed "
                "from those that layers have chosen.\v"
                "Exit status: 0 all ran, 1 failed, 2 wrong usage, 130 interrupted.",
        .finish = finish_options};
    *a = (struct predict_arguments){.every = 1};
    tools_parse(&command, argc, argv, a);
}
