/* SPDX-License-Identifier: Apache-2.0 */
/* prediction_list.h - all predictions that a predictor makes during a workload. They depend on the requests only, so
 * the same predictions serve all budgets and policies. */
#ifndef MOE_REPLAY_PREDICTION_LIST_H
#define MOE_REPLAY_PREDICTION_LIST_H

#include "predictions.h"
#include "replay.h"

#define REPLAY_DISTANCES 4u                      /* largest distance of a prediction, layers ahead */
#define REPLAY_PIECE_BYTES (UINT64_C(512) << 10) /* read size of a prefetch; a request waits for a piece in flight */

struct replay_prediction {
    float probability;
    uint16_t expert;
    uint8_t distance; /* layers ahead; past the last layer: of the next token */
};

struct replay_predictions {
    char name[48];
    /* [tokens * layers + 1], by pass, layer and token of the pass: index of its first prediction */
    size_t *first;
    struct replay_prediction *predictions;
    uint64_t bytes; /* memory of the predictor at the end */
};

/* The experts that token `at` of the trace chose in a layer of the model, each once, in
 * experts[EFS_PREDICT_MAX_CHOSEN]. Returns their number. */
unsigned replay_chosen(const struct replay_workload *workload, uint64_t at, unsigned layer, uint16_t *experts);

/* Whether the traces have the inputs of the predictor for this model. history may be NULL. */
bool replay_predictions_possible(const struct predict_choice *choice, const struct replay_workload *history,
                                 const struct replay_workload *workload);

/*
 * Trains a predictor on history (NULL: none), then plays the workload and stores its predictions for 1 to `distances`
 * layers ahead; it learns from the workload, too. 0; -ENOMEM; -E2BIG: the model is too large for the predictor;
 * -ECANCELED: interrupted; -ENODATA: it is trained ahead, and history has no hidden states.
 */
int replay_predictions_make(const struct predict_choice *choice, const struct replay_workload *history,
                            const struct replay_workload *workload, unsigned distances,
                            struct replay_predictions *predicted);
void replay_predictions_free(struct replay_predictions *predicted); /* a zeroed struct is allowed */

#endif
