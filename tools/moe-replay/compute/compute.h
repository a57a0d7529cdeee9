/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compute.h - what a run on real files does with the experts of a layer: nothing, touch all bytes, or run them, on all
 * cores. All runners do the same. The check is a sum over what was loaded or what came out, in any order: runs that saw
 * the same bytes have the same.
 */
#ifndef MOE_REPLAY_COMPUTE_H
#define MOE_REPLAY_COMPUTE_H

#include "expertfs-compute.h"
#include "model.h"
#include "replay.h"

enum replay_compute_kind { /* in the order of --compute */
                           REPLAY_COMPUTE_NONE,
                           REPLAY_COMPUTE_TOUCH,     /* one load per 64 bytes of all tensors */
                           REPLAY_COMPUTE_FFN,       /* a plain BF16 SwiGLU of the tokens that chose the expert */
                           REPLAY_COMPUTE_FFN_CODED, /* the same by the library: the reader runs the layer */
};

/* Tokens of a pass and their experts, as a layer computes them. hidden is 0 unless experts are run. NULL: no memory. */
struct replay_compute;
struct replay_compute *replay_compute_new(enum replay_compute_kind kind, const struct replay_model *model,
                                          const struct replay_workload *workload);
/* A layer begins, for tokens of the trace at[width]. */
void replay_compute_begin(struct replay_compute *compute, const uint64_t *at, uint32_t width, uint32_t layer);
/* An expert of it; returns when it is done. -EOPNOTSUPP: it has no matrices that can be run. */
errint_t replay_compute_run(struct replay_compute *compute, const struct replay_view *view, struct efs_error *err);
/* For a reader that runs the layer by itself. */
struct efs_team *replay_compute_team(const struct replay_compute *compute);
const struct efs_mixture *replay_compute_mixture(const struct replay_compute *compute);
/* All experts of the layer were run. */
void replay_compute_end(struct replay_compute *compute);
uint64_t replay_compute_check(const struct replay_compute *compute);
void replay_compute_free(struct replay_compute *compute);

#endif
