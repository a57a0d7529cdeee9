/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixture.h - the mixture that a layer computes for the tokens of a pass: pseudorandom activations and routing weights.
 * They depend only on the token's index in the trace and the layer, so that all runners and batch sizes give the same
 * numbers.
 */
#ifndef MOE_REPLAY_MIXTURE_H
#define MOE_REPLAY_MIXTURE_H

#include "expertfs-compute.h"
#include "replay.h"

/* experts: of a layer; hidden: columns of gate and up; width: most tokens of a pass. Keeps a pointer to route. NULL: no
 * memory. */
struct replay_mixture;
struct replay_mixture *replay_mixture_new(uint32_t experts, uint32_t hidden, uint32_t width,
                                          const struct efs_route *route);
void replay_mixture_free(struct replay_mixture *mixture); /* NULL is allowed */
/* Sets up a layer for the tokens at[width] of the trace, with the experts in ascending order. */
void replay_mixture_set(struct replay_mixture *mixture, const uint64_t *at, uint32_t width, uint32_t layer);
/* The mixture; the caller sets .form in a copy. Valid until the next replay_mixture_set(). */
const struct efs_mixture *replay_mixture_get(const struct replay_mixture *mixture);
/* After the mixture was run: the sum over the tokens of a hash of the token's outputs. */
uint64_t replay_mixture_fold(const struct replay_mixture *mixture);

#endif
