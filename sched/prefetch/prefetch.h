/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.h - the queue of predicted experts, from prediction to read, request or expiry, with lower priority than
 * demand.
 *
 * The queue does no I/O: a daemon or a simulator calls it for the next read, does the read, and reports its end.
 *
 *     efs_prefetch_offer         predictions of a sequence; replaces its earlier ones that are still queued
 *     efs_prefetch_next          the next read, if no demand waits
 *     efs_prefetch_done          a read has completed
 *     efs_prefetch_requested     a layer requests its experts: which reads become demand, which are wasted
 *     efs_prefetch_end           a sequence has ended
 *     efs_prefetch_evicted       a prefetched expert was evicted
 *
 * A predicted expert is, in this order, *queued*, *in flight* (its read is submitted), and *resident*: in memory, not
 * requested yet. A *position* is a step of a sequence, which only increases, by one for each layer. A prediction is
 * *due* at the position of its layer; the fewer positions to go, the sooner it is due.
 *
 * Invariants:
 *
 * - demand first: no prefetch starts while demand waits or reads;
 * - a prediction whose position has passed is not read; if its read is in flight, it is cancelled, unless another
 *   sequence still predicts the expert;
 * - bytes in flight and resident bytes do not exceed the caps when a read starts;
 * - when resident bytes are at their cap, a read may only replace resident experts that are due later.
 *
 * A requested expert leaves the queue and belongs to the cache. The caller should offer only experts that are neither
 * in memory nor being read.
 *
 * Pure: no I/O, clock or threads; only efs_prefetch_new allocates. Not thread-safe.
 */
#ifndef EFS_PREFETCH_H
#define EFS_PREFETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct efs_prefetch_config {
    unsigned layers, experts;
    unsigned sequences;       /* limit of concurrent sequences */
    unsigned predictions;     /* limit of predictions per sequence */
    uint64_t in_flight_bytes; /* caps; 0: no reads */
    uint64_t resident_bytes;  /* cap of resident and in flight together */
};

struct efs_prefetch_prediction {
    uint16_t layer, expert;
    int64_t due;    /* position */
    float worth;    /* 0 or more; the largest is read first. Such as p * time saved / time to read */
    uint64_t bytes; /* size of the read: the missing components; 1 byte to 1 TiB */
};

/* Demand reads of the disk. */
struct efs_prefetch_demand {
    unsigned waiting, in_flight; /* number of reads */
};

enum efs_prefetch_what {
    EFS_PREFETCH_READ,   /* read the expert */
    EFS_PREFETCH_RAISE,  /* a request waits for it: raise its read to demand priority */
    EFS_PREFETCH_CANCEL, /* no sequence predicts it any more: cancel its read unless it has started */
    EFS_PREFETCH_DROP    /* its memory may be freed: no prediction left, or replaced by one due sooner */
};

struct efs_prefetch_action {
    uint16_t layer, expert;
    enum efs_prefetch_what what;
};

struct efs_prefetch_counts {
    uint64_t offered, replaced; /* predictions; those that a later offer replaced while queued */
    uint64_t issued, issued_bytes;
    uint64_t used;                 /* requested while resident */
    uint64_t late;                 /* requested while in flight */
    uint64_t unread;               /* requested while queued */
    uint64_t expired;              /* queued when their position passed or their sequence ended */
    uint64_t cancelled;            /* in flight at that time, and not read */
    uint64_t wasted, wasted_bytes; /* read, and never requested */
    uint64_t failed;
};

struct efs_prefetch;

/* 0, -EINVAL: a number out of range; -ENOMEM. The caller owns *queue. */
int efs_prefetch_new(const struct efs_prefetch_config *config, struct efs_prefetch **queue);
void efs_prefetch_free(struct efs_prefetch *queue); /* NULL is allowed */
/* Changes the two caps. Experts in flight or resident above a lower cap stay until they are requested or dropped. */
void efs_prefetch_set_caps(struct efs_prefetch *queue, const struct efs_prefetch_config *caps);

/*
 * Predictions of a sequence at position now, by falling worth. Ignored: those past config.predictions, those due at now
 * or before, and experts whose cancelled read is still in flight. An unknown sequence is created. -EINVAL: a number out
 * of range, or now below the sequence's position; -ENOSPC: config.sequences sequences exist; in both cases nothing has
 * changed.
 */
int efs_prefetch_offer(struct efs_prefetch *queue, uint64_t sequence, int64_t now,
                       const struct efs_prefetch_prediction *predictions, unsigned count);

/*
 * Returns the actions to do now, in this order: any number of DROP, then at most one READ. *actions is valid until the
 * next call with this queue; the same for the functions below.
 */
void efs_prefetch_next(struct efs_prefetch *queue, const struct efs_prefetch_demand *demand,
                       const struct efs_prefetch_action **actions, size_t *count);

/* A read has completed or was cancelled; read: the expert is in memory. Can return DROP. */
void efs_prefetch_done(struct efs_prefetch *queue, unsigned layer, unsigned expert, bool read,
                       const struct efs_prefetch_action **actions, size_t *count);

/* At position now, a sequence requests these experts of a layer. Can return RAISE, CANCEL and DROP. -EINVAL: a number
 * out of range, or now below the sequence's position; then nothing has changed. */
int efs_prefetch_requested(struct efs_prefetch *queue, uint64_t sequence, int64_t now, unsigned layer,
                           const uint16_t *experts, unsigned count, const struct efs_prefetch_action **actions,
                           size_t *action_count);

/* Removes a sequence and its predictions. Can return CANCEL and DROP. */
void efs_prefetch_end(struct efs_prefetch *queue, uint64_t sequence, const struct efs_prefetch_action **actions,
                      size_t *count);

/* The cache has evicted a resident expert. */
void efs_prefetch_evicted(struct efs_prefetch *queue, unsigned layer, unsigned expert);

void efs_prefetch_counts(const struct efs_prefetch *queue, struct efs_prefetch_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
