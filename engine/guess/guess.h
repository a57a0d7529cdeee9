/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guess.h - experts are read before they are asked for: what a predictor says of the layers to come, or the runtime
 * itself, goes through a governor (sched/prefetch/governor.h) into a queue (prefetch.h), and from there to the disk
 * while it has nothing else to do.
 *
 *     observed -> line -> thread: predictor -> governor -> queue -> efs_extents_guess() -> I/O thread, in spare time
 *       ^                                                    ^
 *     efs_cache_request(), efs_observe()             efs_hint()
 *
 * A guess is no use of an expert: it is not counted, no rank changes, nothing that is kept goes for it. It has a part
 * of the chunk pool (efs_account.guess_bytes), where it is evictable, after all else of that kind; it goes first when
 * its layer has passed.
 *
 * The lowest class of reads is filling (option warm): while the disk rests and there is no guess to read, experts that
 * are not in memory are read into memory that is empty, if the chunk pool has room for all experts of the store.
 *
 * A *sequence* is a request's tokens, one after the other. As long as no client tells of sequences of its own, requests
 * are taken for those of one, OWN. The predictor belongs to the thread; all else to efs.lock.
 */
#ifndef EFS_GUESS_H
#define EFS_GUESS_H

#include "efs.h"
#include "governor.h"
#include "predict.h"

#define EFS_GUESS_OWN 0u /* of efs_guess_observe(): who is told of by requests alone, and by .expertfs/hint */

/* Without lock, before there are threads: off. -ENOMEM. */
errint_t efs_guess_build(struct efs *fs);
/* The store is open: without lock. From now on what nobody has asked for may be read. */
void efs_guess_begin(struct efs *fs);
/* Nothing is guessed any more; its thread has ended. No lock. */
void efs_guess_stop(struct efs *fs);
/* When nothing is under way any more. */
void efs_guess_destroy(struct efs *fs);

/* Without lock. -ENOMEM: the budget has no room for the predictor, err says how much it takes; -EOPNOTSUPP: the store
 * has no experts, or too many; nothing has changed then. */
errint_t efs_guess_tune(struct efs *fs, const struct efs_governor_config *tuning, struct efs_error *err);

/* One layer of a sequence. */
struct efs_guess_layer {
    uint32_t who, sequence; /* observer; its own number of the sequence */
    uint32_t layer;         /* of the policy */
    uint32_t count, tokens;
    const uint32_t *ids;  /* numbers in the layer */
    const float *weights; /* scores of the gate, or probabilities; NULL: not known */
};
/* Without lock: a layer of a sequence has chosen these; none: the sequence is over. */
void efs_guess_observe(struct efs *fs, const struct efs_guess_layer *layer);
/* Without lock: a layer to come will choose these. */
void efs_guess_hint(struct efs *fs, const struct efs_guess_layer *layer);

/* ---- with efs.lock held ---- */
struct efs_governor_config efs_guess_tuning(const struct efs *fs);
/* efs_hooks.asked, efs_hooks.guessed */
void efs_guess_asked(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                     bool named);
void efs_guess_ended(struct efs *fs, uint32_t expert, errint_t error);
/* EFS_AGAIN_REST: read the next, if the disk rests. */
void efs_guess_go_on(struct efs *fs);
/* efs_hooks.warmed: a load of class EFS_LOAD_WARM has ended. */
void efs_guess_filled(struct efs *fs, uint32_t extent, errint_t error);

/* Without lock: "predict" for people. As efs_describe(). */
errint_t efs_guess_describe(struct efs *fs, const char *what, char **text, size_t *bytes);

#endif
