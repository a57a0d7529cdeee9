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
 * guesses for fmoe, NULL for the others. swaps: DALI's u. Workload and foresight are to live as long. NULL: no memory.
 */
struct replay_keeper *replay_keeper_new(enum replay_keeper_kind kind, const struct replay_workload *workload,
                                        const struct replay_foresight *foresight, uint64_t units, uint32_t swaps);
void replay_keeper_free(struct replay_keeper *keeper); /* NULL is fine */

/* The next request of the workload: where its experts are found, C or M. */
void replay_keeper_request(struct replay_keeper *keeper, struct efs_placement *placements);
/* Experts that were brought though nobody asked for them then: DALI's exchanges. */
uint64_t replay_keeper_brought(const struct replay_keeper *keeper);

#endif
