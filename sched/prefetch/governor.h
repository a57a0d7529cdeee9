/* SPDX-License-Identifier: Apache-2.0 */
/*
 * governor.h - decides which predictions to read: between a predictor and the queue of prefetch.h.
 *
 * prefetch/ decides which predictions are read and in which order: a governor selects those worth a read, a trial
 * measures their gain (trial.h), a queue orders the reads (prefetch.h). moe-replay calls all three; a mount has the
 * queue alone, behind a threshold (engine/prefetch/). It never predicts an expert, never does I/O and never reads a
 * clock.
 *
 *     efs_governor_caps           how many bytes the queue may read and hold
 *     efs_governor_requested      records a request of a layer and returns whether to prefetch for the next ones
 *     efs_governor_select         selects the predictions that are worth a read, with their worth, for the queue
 *     efs_governor_select_layer   the same for all experts of the next layer, as in a prompt
 *
 * A prediction is read only while the disk is idle, so it has two costs: a request that arrives during the read waits
 * for the current piece, and the evicted expert may be requested again. The read is worth it if
 *
 *     p * time saved  >  q * time to read the victim again  +  P(demand arrives during a piece) * time of a piece / 2
 *
 * where the time saved is the part of the read that fits before the layer's request, into the time that demand leaves
 * the disk idle (with a disk that other processes keep busy that is close to 0). The queue reads predictions by falling
 * p * (part of the read that fits before the layer's request on an idle disk) / time to read. In mode `always` the disk
 * counts as idle all the time. In mode `auto` a trial (trial.h) measures whether prefetching helps: iterations with and
 * without it alternate, and it stays off unless it is faster.
 *
 * Pure: no clock, threads, I/O or allocation. Not thread-safe.
 */
#ifndef EFS_GOVERNOR_H
#define EFS_GOVERNOR_H

#include "prefetch.h"
#include "trial.h"

#ifdef __cplusplus
extern "C" {
#endif

enum efs_governor_mode {
    EFS_GOVERNOR_AUTO,  /* while the trial finds it faster */
    EFS_GOVERNOR_ALWAYS /* without a trial; the disk counts as idle */
};

/* Fields that are 0 mean the defaults. */
struct efs_governor_config {
    enum efs_governor_mode mode;
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
    unsigned layers;
    struct efs_governor_config config;
    struct efs_trial trial;
    uint64_t requests, last_ns, last_work;
    unsigned last_tokens;
    double interval_ns, reading;    /* means over requests: time between two, fraction that reads */
    double missing_bytes, offering; /* offering: fraction of requests with an offer, while prefetching is on */
    bool offered;                   /* efs_governor_select() selected a prediction since the last request */
};

/* layers: requests per iteration, 1 or more. */
void efs_governor_init(struct efs_governor *governor, unsigned layers, const struct efs_governor_config *config);

/*
 * Whether prefetching has its share of the budget. In mode auto: while it is faster or on trial, and more than 2 % of
 * requests had a prediction worth a read. The share is reserved in blocks with and without prefetching, so the trial
 * does not measure its cost.
 */
bool efs_governor_has_share(const struct efs_governor *governor);

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
    unsigned tokens;             /* of all sequences in the request; 1 if unknown */
    unsigned requested, experts; /* number of experts in the request and in the layer */
    uint64_t missing_bytes;      /* bytes to read for them, including reads in flight */
    uint64_t ahead_bytes;        /* bytes that prefetching already read, or reads now, for them */
};

/*
 * A whole layer is read only if a request needs nearly all of it. With half of it, as in decoding in batches of 16, the
 * cache lacks only experts that are seldom requested: a quarter of what was read was used, and it cost time.
 */
enum efs_governor_decision {
    EFS_GOVERNOR_NOTHING,     /* offer no predictions */
    EFS_GOVERNOR_PREDICTIONS, /* call efs_governor_select() and offer the result */
    EFS_GOVERNOR_LAYER /* more than 3/4 of this layer requested: offer all of the next, with or without a trial */
};
enum efs_governor_decision efs_governor_requested(struct efs_governor *governor,
                                                  const struct efs_governor_request *request);

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
unsigned efs_governor_select(struct efs_governor *governor, const struct efs_governor_disk *disk, int64_t now,
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
