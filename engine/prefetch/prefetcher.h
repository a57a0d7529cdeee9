/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetcher.h - prefetch of predicted and hinted experts.
 *
 * prefetch/ reads predicted experts before they are requested, while the disk is idle. fetch/, control/ and serve/ call
 * it; client/ and the daemon's export/ register observers of routing. It never counts a prediction as a use of the
 * expert, and its reads never evict a component that the policy protects.
 *
 * Predictions come from a predictor or, as hints, from the runtime. Those of at least EFS_PREFETCHER_LEAST enter a
 * queue (sched/prefetch/prefetch.h), which is read in idle disk time, the most probable first.
 *
 *     observed -> ring -> thread: predictor -> queue -> efs_extents_prefetch() -> I/O thread, in spare time
 *       ^                                        ^
 *     efs_prefetcher_requested(), efs_observe()  efs_hint()
 *
 * Prefetched extents have a share of the chunk pool (efs_account.prefetch_bytes). They are evictable: until their layer
 * has passed they are evicted after all other evictable extents, from then on before them.
 *
 * The lowest class of reads is filling (setting warm): while the disk is idle and no prediction is queued, experts that
 * are not in memory are read into empty memory, if the chunk pool has room for all experts of the store. With warm=auto
 * only while other processes leave the machine idle, too (planner/machine.h). At most two extents are in flight, and
 * none is started while a demand read is: that bounds what a reader waits for them.
 *
 * A *sequence* is the tokens of one prompt and of its answer, in order. An *observer* is a client that reports its
 * sequences, which it numbers. While no client does, all requests are taken for those of one sequence, of observer
 * EFS_PREFETCHER_NO_OBSERVER. The predictor belongs to the prefetch thread; efs.lock
 * guards all other state.
 */
#ifndef EFS_PREFETCHER_H
#define EFS_PREFETCHER_H

#include "efs.h"
#include "predict.h"
#include "prefetch.h"

/* Least probability of a read. A missing expert is requested less often than the predictor says, because the cache
 * holds the likely ones; below it most reads are wasted. */
#define EFS_PREFETCHER_LEAST 0.3F

#define EFS_PREFETCHER_NO_OBSERVER 0u /* observer of requests without efs_observe(), and of .expertfs/hint */

/* Initialises prefetch, switched off. Without lock, before threads are started. -ENOMEM. */
errint_t efs_prefetcher_build(struct efs *fs);
/* The store is open: allows filling. Without lock. */
void efs_prefetcher_begin(struct efs *fs);
/* Ends the prefetch thread. Without lock. */
void efs_prefetcher_stop(struct efs *fs);
/* Frees all memory, after all loads have completed. */
void efs_prefetcher_destroy(struct efs *fs);

/* Applies the setting prefetch. Without lock. -ENOMEM: the budget has no room for the predictor, err states the size;
 * -EOPNOTSUPP: the store has no experts, or too many. After an error nothing has changed. */
errint_t efs_prefetcher_switch(struct efs *fs, bool on, struct efs_error *err);

/* The setting warm. */
enum efs_warm { EFS_WARM_OFF, EFS_WARM_AUTO, EFS_WARM_ALWAYS, EFS_WARMS };
void efs_prefetcher_set_warm(struct efs *fs, enum efs_warm warm); /* without lock */

/* A layer of a sequence, with chosen or predicted experts. */
struct efs_prefetcher_layer {
    uint32_t observer, sequence; /* observer; its number of the sequence */
    uint32_t layer;              /* in the policy */
    uint32_t count;
    const uint32_t *ids;  /* numbers in the layer */
    const float *weights; /* scores of the router, or probabilities; NULL: not known */
};
/* A layer of a sequence has chosen these experts; count 0 ends the sequence. Without lock. */
void efs_prefetcher_observe(struct efs *fs, const struct efs_prefetcher_layer *layer);
/* The caller predicts these experts for a later layer. Without lock. */
void efs_prefetcher_hint(struct efs *fs, const struct efs_prefetcher_layer *layer);

/* ---- with efs.lock held ---- */
bool efs_prefetcher_is_on(const struct efs *fs);
enum efs_warm efs_prefetcher_warm(const struct efs *fs);
/* A layer requests these experts; named: all experts that it needs, else further ones may follow. Called before memory
 * changes for the request. */
void efs_prefetcher_requested(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count, bool named);
/* Starts the next reads of the queue, then filling, if the disk is idle. */
void efs_prefetcher_run_idle(struct efs *fs);

/* The text "predict" of efs_describe(), with its errors. Without lock. */
errint_t efs_prefetcher_describe(struct efs *fs, const char *what, char **text, size_t *bytes);

#endif
