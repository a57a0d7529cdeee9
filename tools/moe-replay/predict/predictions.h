/* SPDX-License-Identifier: Apache-2.0 */
/* predictions.h - moe-replay predict: predictors side by side on a routing trace. */
#ifndef MOE_REPLAY_PREDICTIONS_H
#define MOE_REPLAY_PREDICTIONS_H

#include "expertfs-private.h"
#include "route.h"
#include "predict.h"

#include "options.h"

#define PREDICT_DISTANCES 4u /* that the table has */
#define PREDICT_LIST_MAX 64
#define PREDICT_HISTORIES_MAX 16

/* What a predictor may learn from the trace that it is judged on, each guess before what it is about. */
enum predict_learn {
    PREDICT_LEARN_REQUEST, /* of the same request alone: each begins with what the history taught */
    PREDICT_LEARN_ALL,     /* of all that came before in the trace */
    PREDICT_LEARN_NO,      /* nothing but a request's own counts */
    PREDICT_LEARNS
};

/* One predictor of the list, as it was asked for. */
struct predict_choice {
    char name[48];
    struct efs_predict_config config; /* but for the trace's shape */
    bool named;                       /* not by "all": a trace that lacks what it needs is an error */
};

#define PREDICT_PERFECT "perfect" /* knows what will be asked for: its config.kind is EFS_PREDICTORS */

/* The predictors of a list, "all" among them, in choices[PREDICT_LIST_MAX]; with `perfect` that one is known, too. How
 * many there are. Ends the program where a name is unknown. */
uint32_t predict_choices_take(const struct argp_state *state, const char *option, const struct tools_list *names,
                              bool perfect, struct predict_choice *choices);

struct predict_arguments {
    struct tools_arguments trace;
    const char *history[PREDICT_HISTORIES_MAX];
    uint32_t histories;
    struct tools_list names;
    struct predict_choice choices[PREDICT_LIST_MAX];
    uint32_t count;
    uint64_t tokens, every, memory_bytes;
    enum predict_learn learn;
};

/* Read the command line; ends the program where it is wrong. */
void predict_arguments_parse(int argc, char **argv, struct predict_arguments *arguments);

/* Slots: an expert of a layer of a token. */
struct predict_result {
    struct predict_at {
        uint64_t slots, within_k, within_2k;
    } at[PREDICT_DISTANCES], start; /* start: of the layers that are guessed from the token before */
    uint64_t layers, whole;         /* one layer ahead: all experts within 2K */
    uint64_t picked, picked_right;  /* what the predictor would fetch */
    double squares;                 /* sum of (probability - chosen)^2 */
    uint64_t judged;                /* probabilities */
    uint64_t bytes, observe_ns, observed, ask_ns, asked;
};

/* Play the histories, then the trace. 0, -ENOMEM, -E2BIG: the memory is too little; -ECANCELED. */
int predict_play(const struct predict_arguments *arguments, const struct predict_choice *choice,
                 const struct efs_route *histories, const struct efs_route *trace, struct predict_result *result);

void predict_report_head(const struct predict_arguments *arguments, const struct efs_route *histories,
                         const struct efs_route *trace);
void predict_report_row(const struct predict_choice *choice, const struct predict_result *result);

/* The program, with the command's name as argv[0]; its exit status. */
int predict_main(int argc, char **argv);

#endif
