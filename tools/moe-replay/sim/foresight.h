/* SPDX-License-Identifier: Apache-2.0 */
/* foresight.h - what a predictor guesses while a workload is played: it sees what is asked for, not what that costs, so
 * that the same guesses serve all budgets and policies. */
#ifndef MOE_REPLAY_FORESIGHT_H
#define MOE_REPLAY_FORESIGHT_H

#include "predictions.h"
#include "replay.h"

#define REPLAY_DISTANCES 4u                      /* layers ahead that are guessed */
#define REPLAY_PIECE_BYTES (UINT64_C(512) << 10) /* of a guess, read at once: a request that comes meanwhile waits */

struct replay_guess {
    float probability;
    uint16_t expert;
    uint8_t distance; /* layers ahead; one after the last is of the next token */
};

struct replay_foresight {
    char name[48];
    /* [tokens * layers + 1]: pass by pass, layer by layer, token by token of the pass, where its guesses begin in: */
    size_t *first;
    struct replay_guess *guesses;
    uint64_t bytes; /* that the predictor holds at the end */
};

/* The experts of a layer of the model that a token of the trace chose, each once, in [EFS_PREDICT_MAX_CHOSEN]; returns
 * how many. */
unsigned replay_chosen(const struct replay_workload *workload, uint64_t at, unsigned layer, uint16_t *experts);

/* Do the traces have what it goes by, for this model? history may be NULL. */
bool replay_foresight_possible(const struct predict_choice *choice, const struct replay_workload *history,
                               const struct replay_workload *workload);

/*
 * Let a predictor learn from history (NULL: none), then from the workload as it is played, and keep its guesses for
 * 1 to distances layers ahead. 0, -ENOMEM, -E2BIG: the model is too large for the predictor; -ECANCELED.
 */
int replay_foresight_make(const struct predict_choice *choice, const struct replay_workload *history,
                          const struct replay_workload *workload, unsigned distances,
                          struct replay_foresight *foresight);
void replay_foresight_free(struct replay_foresight *foresight); /* a zeroed one is fine */

#endif
