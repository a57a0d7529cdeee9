/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compute.h - the computation of a run on real files with the experts of a layer.
 *
 * compute/ computes with experts that are in memory: nothing, touching all cache lines, or running them, on all cores.
 * live/ and assign/ call it, and the main program of moe-replay frees its models. It never opens a file or a store.
 *
 * The computation is the same for all runners. The check is an order-independent sum over the values loaded or
 * computed, so that runs that read the same bytes have the same check.
 */
#ifndef MOE_REPLAY_COMPUTE_H
#define MOE_REPLAY_COMPUTE_H

#include "expertfs-compute.h"
#include "model.h"
#include "replay.h"

enum replay_compute_kind { /* in the order of --compute */
                           REPLAY_COMPUTE_NONE,
                           REPLAY_COMPUTE_TOUCH,       /* one load per 64 bytes of all tensors */
                           REPLAY_COMPUTE_TOUCH_CODED, /* the same of the coded form; files in place: of their bytes */
                           REPLAY_COMPUTE_FFN,         /* a plain BF16 SwiGLU of the tokens that chose the expert */
                           REPLAY_COMPUTE_FFN_CODED,   /* the same by the library: the reader runs the layer */
};

/* The state of the computation, for one thread. kind >= REPLAY_COMPUTE_FFN needs model->hidden > 0. NULL: no memory. */
struct replay_compute;
struct replay_compute *replay_compute_new(enum replay_compute_kind kind, const struct replay_model *model,
                                          const struct replay_workload *workload);
/* Starts a layer. at: indices in the trace of the `width` tokens of the pass. */
void replay_compute_begin(struct replay_compute *compute, const uint64_t *at, uint32_t width, uint32_t layer);
/* Computes with one expert of the layer; blocks until done. -EOPNOTSUPP: the expert has no BF16 SwiGLU matrices. */
errint_t replay_compute_run(struct replay_compute *compute, const struct replay_view *view, struct efs_error *err);
/* The threads and the layer's mixture, for a reader that runs the layer itself (reader.h, run). */
struct efs_team *replay_compute_team(const struct replay_compute *compute);
const struct efs_mixture *replay_compute_mixture(const struct replay_compute *compute);
/* Ends a layer after all its experts were run: sums the results and updates the check. */
void replay_compute_end(struct replay_compute *compute);
uint64_t replay_compute_check(const struct replay_compute *compute);
void replay_compute_free(struct replay_compute *compute);

#endif
