/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.h - replacement as the papers have it, of whole coded experts, for comparison; and Belady's, which no policy
 * on whole experts can beat. What is missing is read and, but for Belady's and DALI's, kept in the place of another.
 */
#ifndef MOE_REPLAY_KEEPER_H
#define MOE_REPLAY_KEEPER_H

#include "foresight.h"
#include "replay.h"

struct replay_keeper;

/* Room for so many experts, over all layers together; of layer-lfu and DALI's, as many of each layer. foresight:
 * guesses for fmoe, NULL for the others. swaps: DALI's u. expert_bytes: read of one. Workload and foresight are to live
 * as long. NULL: no memory.
 */
struct replay_keeper *replay_keeper_new(enum replay_keeper_kind kind, const struct replay_workload *workload,
                                        const struct replay_foresight *foresight, uint64_t units, uint32_t swaps,
                                        uint64_t expert_bytes);
void replay_keeper_free(struct replay_keeper *keeper); /* NULL is fine */

/* The next request of the workload: where its experts are found, C or M. */
void replay_keeper_request(struct replay_keeper *keeper, struct efs_placement *placements);
/*
 * Experts that are brought though nobody asks for them: those that DALI begins with, and its exchanges. They are read
 * while nothing else is; one that is asked for before is missing, and is read by the request.
 */
/* The next piece to read, at most so many bytes; 0: there is none. *begins: it is the first of its expert. */
uint64_t replay_keeper_bring(struct replay_keeper *keeper, uint64_t most_bytes, bool *begins);
void replay_keeper_came(struct replay_keeper *keeper);                    /* that piece */
uint64_t replay_keeper_brought_bytes(const struct replay_keeper *keeper); /* so far */

#endif
