/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixture.h - what a layer computes for the tokens of a pass: activations, routing weights, the sums that come
 * out. They depend on the place in the trace alone, so that all runners and batch sizes give the same numbers.
 */
#ifndef MOE_REPLAY_MIXTURE_H
#define MOE_REPLAY_MIXTURE_H

#include "expertfs-compute.h"
#include "replay.h"

/* Of a model with so many experts in a layer, for passes of at most width tokens of a trace; hidden: columns of gate
 * and up. Experts are named by their numbers in the layer. NULL: no memory. */
struct replay_mixture;
struct replay_mixture *replay_mixture_new(uint32_t experts, uint32_t hidden, uint32_t width,
                                          const struct efs_route *route);
void replay_mixture_free(struct replay_mixture *mixture); /* NULL is fine */
/* A layer's next: tokens of the trace at[width]. Experts come in the order of their numbers. */
void replay_mixture_set(struct replay_mixture *mixture, const uint64_t *at, uint32_t width, uint32_t layer);
/* To be run with the form of choice; valid until the next is set. */
const struct efs_mixture *replay_mixture_get(const struct replay_mixture *mixture);
/* After it was run: a sum over the tokens of a hash of the numbers that came out. */
uint64_t replay_mixture_fold(const struct replay_mixture *mixture);

#endif
