/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predictions.h - moe-replay predict.
 *
 * predict/ is the command that compares predictors on a routing trace. The main program of moe-replay calls it; sim/
 * uses its lists of predictors. It never opens a store.
 */
#ifndef MOE_REPLAY_PREDICTIONS_H
#define MOE_REPLAY_PREDICTIONS_H

#include "expertfs-private.h"
#include "route.h"
#include "predict.h"

#include "options.h"

#define PREDICT_DISTANCES 4u /* distances in the table, layers ahead */
#define PREDICT_LIST_MAX 64
#define PREDICT_HISTORIES_MAX 16

/* The parts of the evaluated trace from which a predictor learns; it learns a layer after its prediction. */
enum predict_learn {
    PREDICT_LEARN_REQUEST, /* the current request only: its state is reset to that after the history at each request */
    PREDICT_LEARN_ALL,     /* all preceding tokens of the trace */
    PREDICT_LEARN_NO,      /* nothing, except the counts of the current request */
    PREDICT_LEARNS
};

/* One predictor of the list. */
struct predict_choice {
    char name[48];
    struct efs_predict_config config; /* without the shape of the trace */
    bool named;                       /* given by name, not by "all": fails if the trace lacks its inputs */
};

#define PREDICT_PERFECT "perfect" /* knows the future requests: its config.kind is EFS_PREDICTORS */

/* Parses a list of predictors, where "all" is allowed, into choices[PREDICT_LIST_MAX]. perfect: allows PREDICT_PERFECT.
 * Returns their number. An unknown name exits with status 2. */
uint32_t predict_choices_parse(const struct argp_state *state, const char *option, const struct tools_list *names,
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

/* Parses the command line; wrong usage exits with status 2. */
void predict_arguments_parse(int argc, char **argv, struct predict_arguments *arguments);

/* Slots: experts chosen, counted per token and layer. */
struct predict_result {
    struct predict_at {
        uint64_t slots, within_k, within_2k;
    } at[PREDICT_DISTANCES], start; /* start: layers predicted at the end of the previous token */
    uint64_t layers, whole;         /* one layer ahead: layers predicted; those with all experts within the first 2K */
    uint64_t picked, picked_right;  /* experts that the predictor would prefetch; of them, chosen */
    double squares;                 /* sum of (probability - chosen)^2 */
    uint64_t judged;                /* number of probabilities in that sum */
    uint64_t bytes, observe_ns, observed, predict_ns, predicted;
};

/* Trains a predictor on the histories, then evaluates it on the trace. 0; -ENOMEM; -E2BIG: memory_bytes is too small;
 * -ECANCELED: interrupted; -ENODATA: no history has the states that it is trained on. */
int predict_evaluate(const struct predict_arguments *arguments, const struct predict_choice *choice,
                     const struct efs_route *histories, const struct efs_route *trace, struct predict_result *result);

/* Trains a predictor that needs it (efs_predict_train()) on the histories with states; they have the shape and width of
 * its config. 0; -ENODATA: none has states; -ECANCELED: interrupted. */
int predict_train(struct efs_predictor *predictor, const struct efs_route *histories, uint32_t count);

void predict_report_head(const struct predict_arguments *arguments, const struct efs_route *histories,
                         const struct efs_route *trace);
void predict_report_row(const struct predict_choice *choice, const struct predict_result *result);

/* main() of "moe-replay predict". Returns the exit status. */
int predict_main(int argc, char **argv);

#endif
