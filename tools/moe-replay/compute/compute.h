/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compute.h - what is done with the experts of a layer: nothing, touch all bytes, or run them. All runners do
 * the same, with the same threads. The check is a sum over what was loaded or what came out, in any order: runners that
 * saw the same bytes have the same.
 */
#ifndef MOE_REPLAY_COMPUTE_H
#define MOE_REPLAY_COMPUTE_H

#include "expertfs-compute.h"
#include "model.h"
#include "replay.h"

enum replay_compute_kind {
    REPLAY_COMPUTE_NONE,
    REPLAY_COMPUTE_TOUCH,     /* one load per 64 bytes of all tensors */
    REPLAY_COMPUTE_FFN,       /* a plain BF16 SwiGLU of the tokens that chose the expert */
    REPLAY_COMPUTE_FFN_CODED, /* the same by the library, from the coded form: of the store in this process, or of a
                                 mount */
    REPLAY_COMPUTE_KINDS
};
const char *replay_compute_name(enum replay_compute_kind kind);
enum replay_compute_kind replay_compute_by_name(const char *name); /* REPLAY_COMPUTE_KINDS: none has it */

/* An expert that is ready: its tensors in memory, in the order of expert->tensors. */
struct replay_view {
    const struct replay_expert *expert;
    uint32_t tokens; /* that chose it */
    const uint8_t *data[REPLAY_TENSORS_MAX];
};

/* Can experts of this model be computed in that way? -EOPNOTSUPP: no gate, up and down matrices in BF16. */
errint_t replay_compute_possible(enum replay_compute_kind kind, const struct replay_model *model,
                                 struct efs_error *err);

/* Threads that compute together, the caller one of them. */
struct replay_compute;
struct replay_compute *replay_compute_new(enum replay_compute_kind kind, uint32_t threads,
                                          const struct replay_model *model,
                                          const struct replay_workload *workload); /* NULL: -ENOMEM */
/* A layer begins, for tokens of the trace at[width]. */
void replay_compute_begin(struct replay_compute *compute, const uint64_t *at, uint32_t width, uint32_t layer);
/* An expert of it; returns when it is done. */
errint_t replay_compute_run(struct replay_compute *compute, const struct replay_view *view, struct efs_error *err);
/* For a reader that runs the layer by itself. */
struct efs_team *replay_compute_team(const struct replay_compute *compute);
const struct efs_mixture *replay_compute_mixture(const struct replay_compute *compute);
/* All experts of the layer were run. */
void replay_compute_end(struct replay_compute *compute);
uint64_t replay_compute_check(const struct replay_compute *compute);
void replay_compute_free(struct replay_compute *compute);

#endif
