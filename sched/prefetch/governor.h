/* SPDX-License-Identifier: Apache-2.0 */
/*
 * governor.h - decides which predictions to read: between a predictor and the queue of prefetch.h.
 *
 * prefetch/ decides which predictions are read and in which order: a governor selects those worth a read, a queue
 * orders the reads (prefetch.h). moe-replay calls both; a mount has the queue alone, behind a threshold
 * (engine/prefetch/). It never predicts an expert, never does I/O and never reads a clock.
 *
 *     efs_governor_caps           how many bytes the queue may read and hold
 *     efs_governor_requested      records a request of a layer and returns whether it is that of a prompt
 *     efs_governor_select         selects the predictions that are worth a read, with their worth, for the queue
 *     efs_governor_select_layer   the same for all experts of the next layer, as in a prompt
 *
 * A prediction is read only while the disk is idle, so it has two costs: a request that arrives during the read waits
 * for the current piece, and the evicted expert may be requested again. The read is worth it if
 *
 *     p * time saved  >  q * time to read the victim again  +  P(demand arrives during a piece) * time of a piece / 2
 *
 * where the time saved is the part of the read that fits before the layer's request, on an idle disk. The queue reads
 * predictions by falling p * time saved / time to read.
 *
 * Pure: no clock, threads, I/O or allocation. Not thread-safe.
 */
#ifndef EFS_GOVERNOR_H
#define EFS_GOVERNOR_H

#include "prefetch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fields that are 0 mean the defaults. */
struct efs_governor_config {
    double share; /* fraction of the budget that may hold prefetched experts, up to 1; 0: EFS_GOVERNOR_SHARE */
    double least; /* minimum probability for a read; 0: EFS_GOVERNOR_LEAST */
};
/* Memory for prefetched experts reduces the cache: a few experts suffice for the next layers, and more would cost more
 * hits than they gain. A missing expert is requested less often than the predictor says, because the cache holds the
 * likely ones; below the minimum probability most reads are wasted. */
#define EFS_GOVERNOR_SHARE 0.005
#define EFS_GOVERNOR_LEAST 0.3

/* All fields are private. */
struct efs_governor {
    struct efs_governor_config config;
    uint64_t requests, last_ns;
    double interval_ns, reading; /* means over requests: time between two, fraction that reads */
};

void efs_governor_init(struct efs_governor *governor, const struct efs_governor_config *config);

/*
 * Sets caps->in_flight_bytes and caps->resident_bytes for a budget and the size of the largest expert as it is read.
 * The cap of resident bytes is the share, but at least the smaller of two experts and a tenth of the budget. If it is
 * less than one expert, nothing is read.
 */
void efs_governor_caps(const struct efs_governor *governor, uint64_t budget_bytes, uint64_t expert_bytes,
                       struct efs_prefetch_config *caps);

/* A request of a layer for its experts. */
struct efs_governor_request {
    uint64_t now_ns;             /* of a monotonic clock */
    unsigned requested, experts; /* number of experts in the request and in the layer */
    uint64_t missing_bytes;      /* bytes to read for them, including reads in flight */
};

/*
 * Returns whether more than 3/4 of the layer were requested: then all experts of the next one are offered, else those
 * of efs_governor_select(). With half of it, as in decoding in batches of 16, the cache lacks only experts that are
 * seldom requested: a quarter of what was read was used, and it cost time.
 */
bool efs_governor_requested(struct efs_governor *governor, const struct efs_governor_request *request);

/* Current performance of the disk. */
struct efs_governor_disk {
    double bytes_per_second;
    double latency_ns;    /* of one read */
    uint64_t piece_bytes; /* size of one read, for which demand has to wait; 0: the whole expert */
};

/* A predicted expert with missing components. */
struct efs_governor_candidate {
    uint16_t layer, expert;
    int64_t due;              /* position of its layer's request */
    float probability;        /* p, 0 to 1 */
    uint64_t missing_bytes;   /* bytes to read: the components that are not in memory; 0: the candidate is skipped */
    float victim_probability; /* q: P(request for the expert evicted for it, while the prediction is resident) */
    uint64_t victim_bytes;    /* bytes that a request for the victim would read; 0: memory is free */
};

/*
 * Selects the candidates that are worth a read, for a sequence at position now, whose last efs_governor_requested() was
 * for the layer at now. The caller provides an array for count results. Returns how many it filled in.
 */
unsigned efs_governor_select(const struct efs_governor *governor, const struct efs_governor_disk *disk, int64_t now,
                             const struct efs_governor_candidate *candidates, unsigned count,
                             struct efs_prefetch_prediction *predictions);

/* Takes all candidates with missing bytes; worth falls in their order, which should be that of the file. Ignores
 * probabilities. Room and result as above. */
unsigned efs_governor_select_layer(const struct efs_governor_candidate *candidates, unsigned count,
                                   struct efs_prefetch_prediction *predictions);

#ifdef __cplusplus
}
#endif
#endif
