/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.h - what is guessed to be asked for, until it is read, asked for, or too late: a queue beside the demand.
 *
 * It reads nothing itself: a daemon or a simulator asks it what to read next, does that, and tells what became of it.
 *
 *     efs_prefetch_offer   a sequence's guesses; they take the place of those it made before and that are not read yet
 *     efs_prefetch_next    what to read now, if the disk has nothing better to do
 *     efs_prefetch_done    that read has ended
 *     efs_prefetch_asked   a layer asks for its experts: which reads are demand now, what came in vain
 *     efs_prefetch_end     a sequence is over
 *     efs_prefetch_lost    what had been read is not in memory any more
 *
 * An expert that is guessed is, in this order, *queued*, *under way*, and *held*: in memory, and not asked for yet. A
 * *position* is a step of a sequence that only rises, one a layer; a guess is *due* at the position of its layer, and
 * sooner than another by fewer positions to go.
 *
 * What holds:
 *
 * - demand first: nothing is to be read while demand waits or reads;
 * - a guess whose position has passed is not read; if it is under way it is to be cancelled, unless another sequence
 *   still waits for it;
 * - no more bytes than the caps: under way, and held;
 * - where held bytes are at their cap, a guess is read only in the place of held ones that are due later.
 *
 * What is asked for leaves the queue, and is the cache's then. Only what is neither in memory nor read already should
 * be offered.
 *
 * Pure: no I/O, clock or thread; memory only in efs_prefetch_new. Not thread-safe.
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
    unsigned sequences;       /* under way at once, at most */
    unsigned guesses;         /* of a sequence, at most */
    uint64_t under_way_bytes; /* caps; 0: nothing is read */
    uint64_t held_bytes;      /* held and under way together */
};

struct efs_prefetch_guess {
    uint16_t layer, expert;
    int64_t due;    /* position */
    float worth;    /* 0 or above; larger: read first. As p * time saved / time to read */
    uint64_t bytes; /* to be read: of what is missing */
};

/* What the disk has to do for those who wait. */
struct efs_prefetch_demand {
    unsigned waiting, under_way; /* reads */
};

enum efs_prefetch_what {
    EFS_PREFETCH_READ,   /* read it */
    EFS_PREFETCH_RAISE,  /* somebody waits: its read is demand now */
    EFS_PREFETCH_CANCEL, /* nobody wants it: cancel its read, if it has not begun */
    EFS_PREFETCH_DROP    /* nobody wants it: its memory is free to take */
};

struct efs_prefetch_action {
    uint16_t layer, expert;
    enum efs_prefetch_what what;
};

struct efs_prefetch_counts {
    uint64_t offered, replaced; /* guesses; those that a new offer took away before they were read */
    uint64_t issued, issued_bytes;
    uint64_t used;                 /* asked for, and held */
    uint64_t late;                 /* asked for while under way */
    uint64_t unread;               /* asked for while queued */
    uint64_t expired;              /* queued when their position passed */
    uint64_t cancelled;            /* under way when it passed, and never read */
    uint64_t wasted, wasted_bytes; /* read, and never asked for */
    uint64_t failed;
};

struct efs_prefetch;

/* 0, -EINVAL: a number out of range; -ENOMEM. *queue is the caller's. */
int efs_prefetch_new(const struct efs_prefetch_config *config, struct efs_prefetch **queue);
void efs_prefetch_free(struct efs_prefetch *queue); /* NULL is fine */
/* Other caps, as of config; what is under way or held above them stays until it is asked for or in vain. */
void efs_prefetch_set_caps(struct efs_prefetch *queue, const struct efs_prefetch_config *caps);

/*
 * The guesses of a sequence that is at position now; the most worth first, what is beyond the limit is left out. A
 * sequence that is not known begins. -EINVAL: a number out of range; -ENOSPC: as many sequences as can be; then nothing
 * has changed.
 */
int efs_prefetch_offer(struct efs_prefetch *queue, uint64_t sequence, int64_t now,
                       const struct efs_prefetch_guess *guesses, unsigned count);

/*
 * What is to be done now, in this order: any number of DROP, and one READ at the end; none when nothing is to be read.
 * *actions is valid until the next call, as below.
 */
void efs_prefetch_next(struct efs_prefetch *queue, const struct efs_prefetch_demand *demand,
                       const struct efs_prefetch_action **actions, size_t *count);

/* A read has ended, or was cancelled: read says whether the expert is in memory. May say DROP. */
void efs_prefetch_done(struct efs_prefetch *queue, unsigned layer, unsigned expert, bool read,
                       const struct efs_prefetch_action **actions, size_t *count);

/* At its position now, a sequence asks for these experts of a layer, each a number below experts. May say RAISE,
 * CANCEL, DROP. */
int efs_prefetch_asked(struct efs_prefetch *queue, uint64_t sequence, int64_t now, unsigned layer,
                       const uint16_t *experts, unsigned count, const struct efs_prefetch_action **actions,
                       size_t *action_count);

/* Its guesses are nobody's. May say CANCEL, DROP. */
void efs_prefetch_end(struct efs_prefetch *queue, uint64_t sequence, const struct efs_prefetch_action **actions,
                      size_t *count);

/* The cache has evicted it. */
void efs_prefetch_lost(struct efs_prefetch *queue, unsigned layer, unsigned expert);

void efs_prefetch_counts(const struct efs_prefetch *queue, struct efs_prefetch_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
