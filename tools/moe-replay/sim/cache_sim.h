/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_sim.h - replacement policies of papers on whole coded experts, for comparison, and Belady's policy as the upper
 * bound of hits. Missing experts are read for their request and, except with Belady's and DALI's policies, always
 * cached.
 */
#ifndef MOE_REPLAY_CACHE_SIM_H
#define MOE_REPLAY_CACHE_SIM_H

#include "prediction_list.h"
#include "replay.h"

struct replay_cache;

/* units: capacity in experts, for all layers together; divided evenly between the layers for layer-lfu and DALI.
 * predicted: predictions for fmoe, NULL for all other kinds. swaps: DALI's u. expert_bytes: bytes to read per expert.
 * Keeps pointers to workload and predicted. NULL: no memory. */
struct replay_cache *replay_cache_new(enum replay_cache_kind kind, const struct replay_workload *workload,
                                      const struct replay_predictions *predicted, uint64_t units, uint32_t swaps,
                                      uint64_t expert_bytes);
void replay_cache_free(struct replay_cache *cache); /* NULL is allowed */

/* Processes the next request of the workload; sets the placements of its experts to C (cached; F in systems that
 * know no experts) or M (missing). */
void replay_cache_request(struct replay_cache *cache, struct efs_placement *placements);
/*
 * Background reads: DALI's initial cache and the experts that it swaps in, and the next layer of ZeRO-3. They run while
 * no request reads; an expert that is requested before its read completes is missing, and the request reads it.
 */
/* Returns the size of the next piece to read, at most most_bytes; 0: none. *begins: it is the first of its expert. */
uint64_t replay_cache_next_read(struct replay_cache *cache, uint64_t most_bytes, bool *begins);
void replay_cache_read_done(struct replay_cache *cache);                  /* that piece was read */
uint64_t replay_cache_background_bytes(const struct replay_cache *cache); /* total of the background reads */

#endif
