/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetcher_internal.h - shared by the files of prefetch: prefetcher.c (settings and texts), prefetcher_sequences.c
 * (observations and hints), prefetcher_queue.c (the queue and its reads), prefetcher_fill.c (filling),
 * prefetcher_thread.c (the predictor), prefetcher_saved.c (its file).
 */
#ifndef EFS_PREFETCHER_INTERNAL_H
#define EFS_PREFETCHER_INTERNAL_H

#include "prefetcher.h"

#include "cache.h"

#include <stdio.h>

#define EFS_PREFETCHER_SEQUENCES 16u /* at most; a new one replaces the least recently observed one */
#define EFS_PREFETCHER_DISTANCES 4u  /* layers ahead, at most */
#define EFS_PREFETCHER_RING 32u      /* pending observations, at most */
#define EFS_PREFETCHER_IDS 512u      /* per observation; further ones are dropped */
#define EFS_PREFETCHER_CANDIDATES 256u
#define EFS_PREFETCHER_HINTS EFS_PREFETCHER_CANDIDATES                                  /* per sequence */
#define EFS_PREFETCHER_PER_LAYER (EFS_PREFETCHER_CANDIDATES / EFS_PREFETCHER_DISTANCES) /* predictions per layer */
#define EFS_PREFETCHER_NO_POSITION (-1)

/* An observation for the thread. */
struct efs_prefetcher_observation {
    uint64_t sequence;
    int64_t now; /* position; EFS_PREFETCHER_NO_POSITION: the sequence has ended */
    uint32_t layer, count;
    bool scored, predict; /* predict: submit the predictions that follow */
};

struct efs_prefetcher_pending_hint {
    uint16_t layer, expert;
    int64_t due;
    float probability;
};

struct efs_prefetcher_sequence {
    bool used;
    uint64_t id;       /* observer << 32 | number */
    int64_t now;       /* last observed position */
    int64_t hinted_at; /* position at the last hint; the predictor is not used for an iteration after it */
    uint64_t clock;
    uint32_t hint_count;
    struct efs_prefetcher_pending_hint hints[EFS_PREFETCHER_HINTS];
};

/* State of an expert as prefetched, by number in the store. */
struct efs_prefetcher_expert {
    uint8_t distance; /* layers ahead of the prediction that it is read for; 0: hinted, or none */
    bool read;        /* prefetch has started reading it, and no request has taken it */
    bool retry;       /* no load could be started in this turn: retry in the next */
    bool observed;    /* its layer has chosen it in sequence `observer`, and no request has taken it */
    uint16_t pending; /* loads in flight */
    errint_t error;   /* first error of these loads */
    uint64_t bytes;   /* bytes read */
    uint64_t missing; /* missing bytes when loads were last started */
    uint64_t observer;
};

/* Results of predictions, by distance from 1. */
struct efs_prefetcher_scores {
    uint64_t layers, chosen, hits_k, hits_2k, named_k; /* named_k: predictions among the first k */
    uint64_t read, read_bytes;                         /* experts */
    uint64_t covered, late, wasted, wasted_bytes;
};

struct efs_prefetcher {
    struct efs *fs;
    unsigned long thread;
    bool started, stop;
    pthread_cond_t wake;
    bool on;                    /* the setting; memory_bytes is counted in the budget */
    uint64_t memory_bytes;      /* of the predictor, the queue and the tables */
    uint64_t budget_bytes;      /* the caps were computed for this budget */
    struct efs_prefetch *queue; /* NULL: prefetch is off */
    uint64_t expert_bytes;      /* coded bytes of the largest expert */
    bool fills;                 /* filling is allowed: the store is open */
    enum efs_warm warm;
    uint64_t fill_bytes;    /* coded bytes of all experts */
    uint32_t fill_expert;   /* filling has handled the experts before this one, ... */
    uint32_t fill_extent;   /* ... and, if it takes all, the extents before this one */
    uint64_t fill_segments; /* planned_segments for which these are valid */
    struct efs_prefetcher_expert *experts;
    uint32_t *prefetched; /* [prefetched_count] experts that were read and not requested yet; may have stale entries */
    uint32_t prefetched_count;
    bool retry; /* set if `retry` of any expert is */
    struct efs_prefetcher_sequence *sequences;
    uint64_t clock;
    uint32_t observers;  /* number of the last observer */
    bool clients_report; /* a client reports sequences */
    /* experts of a layer that are requested one by one, until another layer is requested */
    uint32_t pending_layer, pending_count;
    uint32_t *pending;
    /* ring of pending observations for the thread */
    struct efs_prefetcher_observation ring[EFS_PREFETCHER_RING];
    uint16_t *ring_ids;  /* [EFS_PREFETCHER_RING][EFS_PREFETCHER_IDS] */
    float *ring_weights; /* [EFS_PREFETCHER_RING][EFS_PREFETCHER_IDS] */
    uint64_t ring_pushed, ring_popped, ring_dropped;
    /* statistics */
    struct efs_prefetcher_scores scores[EFS_PREFETCHER_DISTANCES + 1]; /* [0]: hints, whose distance is not recorded */
    uint64_t observed, missed; /* layers; requested experts that were not in memory or only by prefetch */
    unsigned chosen;           /* experts per token, as the predictor assumes; 0: no predictor yet */
    uint64_t predictor_bytes, predictor_most_bytes; /* most: limit, as counted in the budget */
    errint_t predictor_error;
    /* scratch */
    struct efs_prefetch_prediction *predictions; /* [EFS_PREFETCHER_CANDIDATES] */
    uint8_t *distances;                          /* of the predictions; 0: hinted */
    uint16_t *ids;                               /* [width, or EFS_PREFETCHER_IDS if larger] */
};

/* ---- with efs.lock held ---- */
/* prefetcher_queue.c */
/* Queues those of predictions[0 .. count) that are probable enough and not in memory, for a sequence at position now.
 * Set are layer, expert, due and worth, the probability, and their distances. */
void efs_prefetcher_submit(struct efs *fs, uint64_t sequence, int64_t now, uint32_t count);
/* A layer requests these experts: their reads become demand, prefetched ones count as used. */
void efs_prefetcher_count_request(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count);
/* The sequence is at position now, where its layer has chosen these; or it has ended. */
void efs_prefetcher_layer_observed(struct efs *fs, uint64_t sequence, int64_t now, uint32_t layer, const uint16_t *ids,
                                   uint32_t count);
void efs_prefetcher_sequence_ended(struct efs *fs, uint64_t sequence);
/* Adjusts the share of the chunk pool and the queue's limits to the budget. */
void efs_prefetcher_update_share(struct efs *fs);

/* prefetcher_fill.c */
/* Reads missing experts into empty memory, if it is allowed now. */
void efs_prefetcher_fill(struct efs *fs);
/* The lines of filling in the text "predict". */
void efs_prefetcher_print_fill(struct efs *fs, FILE *out);

/* prefetcher_sequences.c */
struct efs_prefetcher_sequence *efs_prefetcher_find_sequence(struct efs_prefetcher *pf, uint64_t id);
/* Ends all sequences. */
void efs_prefetcher_end_sequences(struct efs *fs);

/* prefetcher_saved.c; all without lock, errors are logged */
/* Saves what a predictor has learned in the state directory for the next mount. */
void efs_prefetcher_save(struct efs *fs, const struct efs_predictor *predictor);
/* Loads it into a predictor without sequences. If the file is missing or does not fit, the predictor stays empty. */
void efs_prefetcher_load(struct efs *fs, struct efs_predictor *predictor);

/* prefetcher_thread.c */
void *efs_prefetcher_thread(void *prefetcher);
#define EFS_PREFETCHER_THREAD_BYTES (256u << 10) /* memory of the thread in addition to the predictor */

#endif
