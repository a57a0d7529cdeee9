/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guess_core.h - what the files of guessing share: guess.c (its life, and texts), guess_sequences.c (what is observed
 * and hinted), guess_queue.c (what is read, and what becomes of it), guess_thread.c (the predictor).
 */
#ifndef EFS_GUESS_CORE_H
#define EFS_GUESS_CORE_H

#include "guess.h"

#include "cache.h"

#define EFS_GUESS_SEQUENCES 16u /* at once; the one that was silent longest ends for another */
#define EFS_GUESS_DISTANCES 4u  /* layers ahead */
#define EFS_GUESS_LINE 32u      /* observations that wait for the thread */
#define EFS_GUESS_IDS 512u      /* of an observation, those after them are left out */
#define EFS_GUESS_CANDIDATES 256u
#define EFS_GUESS_HINTS EFS_GUESS_CANDIDATES                           /* of a sequence */
#define EFS_GUESS_AT_ONCE (EFS_GUESS_CANDIDATES / EFS_GUESS_DISTANCES) /* of a layer */
#define EFS_GUESS_NOWHERE (-1)

/* What the thread is to learn of. */
struct efs_guess_observation {
    uint64_t sequence;
    int64_t now; /* position; EFS_GUESS_NOWHERE: it is over */
    uint32_t layer, count;
    bool scored, guess; /* guess: offer what follows from it */
};

struct efs_guess_hinted {
    uint16_t layer, expert;
    int64_t due;
    float probability;
};

struct efs_guess_sequence {
    bool used;
    uint64_t id;       /* who, and its number */
    int64_t now;       /* position observed last */
    int64_t hinted_at; /* position when a hint came last; own guesses are not made for an iteration */
    uint64_t clock;
    uint32_t hint_count;
    struct efs_guess_hinted hints[EFS_GUESS_HINTS];
};

/* An expert that was read for a guess, by number in the store. */
struct efs_guess_expert {
    uint8_t distance; /* of the guess that it is, or is to be, read for; 0: none */
    bool read;        /* its reads were begun */
    bool again;       /* none could be begun in that turn */
    bool observed;    /* chosen by the layer that it was read for, of the sequence observer, and not asked for since */
    uint16_t pending; /* loads under way */
    errint_t error;   /* of them */
    uint64_t bytes;   /* that were read */
    uint64_t missing; /* bytes of it, when loads were begun last */
    uint64_t observer;
};

/* What became of guesses, by distance from 1 on. */
struct efs_guess_scores {
    uint64_t layers, chosen, hits_k, hits_2k, named_k; /* of the predictor: named_k: guesses that hits_k is of */
    uint64_t read, read_bytes;                         /* experts */
    uint64_t covered, late, wasted, wasted_bytes;
};

struct efs_guessing {
    struct efs *fs;
    unsigned long thread;
    bool started, stop;
    pthread_cond_t wake;
    struct efs_governor_config tuning;
    bool on;                    /* the memory below is counted in the budget */
    uint64_t memory_bytes;      /* that is counted for the predictor and the queue */
    uint64_t budget_bytes;      /* for which the caps are */
    struct efs_prefetch *queue; /* NULL: nothing is guessed */
    struct efs_governor governor;
    enum efs_governor_now now;    /* what it said of the layer that was asked for last */
    uint64_t asked_missing_bytes; /* of the layer that is being asked for */
    uint64_t asked_ahead_bytes;   /* of it: here, since it was guessed */
    bool has_share;               /* guesses have their part of the chunk pool */
    uint64_t expert_bytes;        /* of the largest expert, coded */
    bool fills;                   /* the store is open, with option warm */
    uint64_t fill_bytes;          /* of all experts, coded */
    uint32_t fill_expert;         /* those before it are in memory, or were */
    uint64_t fill_segments;       /* of the plan for which that is said */
    struct efs_guess_expert *experts;
    uint32_t *held; /* [held_count] numbers of experts that were read, and asked for by nobody yet; some more */
    uint32_t held_count;
    bool again; /* of any expert */
    struct efs_guess_sequence *sequences;
    uint64_t clock;
    uint32_t observers; /* numbers given so far */
    bool told;          /* a client tells of sequences of its own */
    /* requests that come expert by expert, until another layer is asked for */
    uint32_t pending_layer, pending_count, pending_tokens;
    uint32_t *pending;
    /* the line to the thread */
    struct efs_guess_observation line[EFS_GUESS_LINE];
    uint16_t *line_ids;  /* [EFS_GUESS_LINE][EFS_GUESS_IDS] */
    float *line_weights; /* the same */
    uint64_t line_put, line_taken, line_lost;
    /* what it tells of itself */
    struct efs_guess_scores scores[EFS_GUESS_DISTANCES + 1]; /* [0]: hints, of which no distance is known */
    uint64_t observed, missed;                      /* layers; experts that were not in memory when asked for */
    unsigned chosen;                                /* of the predictor; 0: there is none yet */
    uint64_t predictor_bytes, predictor_most_bytes; /* most: that the budget counts, since guesses are on */
    errint_t predictor_error;
    /* scratch */
    struct efs_governor_candidate *candidates; /* [width, or EFS_GUESS_CANDIDATES if that is more] */
    uint8_t *distances;                        /* of these; 0: hinted */
    struct efs_prefetch_guess *guesses;        /* the same */
    uint16_t *ids;                             /* [width, or EFS_GUESS_IDS] */
};

/* ---- with efs.lock held ---- */
/* guess_queue.c */
/* The first candidates, with layer, expert, due and probability, and their distances, of a sequence at now: weighed,
 * and those that are worth it wait to be read. */
void efs_guess_offer(struct efs *fs, uint64_t sequence, int64_t now, uint32_t count);
/* All of the layer after this one is wanted. */
void efs_guess_offer_layer(struct efs *fs, uint64_t sequence, int64_t now);
/* A layer asks for these. */
void efs_guess_used(struct efs *fs, uint32_t layer, const uint32_t *ids, uint32_t count);
/* The sequence is at now, where its layer has chosen these; or it is over. */
void efs_guess_passed(struct efs *fs, uint64_t sequence, int64_t now, uint32_t layer, const uint16_t *ids,
                      uint32_t count);
void efs_guess_over(struct efs *fs, uint64_t sequence);
/* The memory that guesses may have follows the budget and what the governor has found. */
void efs_guess_share(struct efs *fs);

/* guess_sequences.c */
struct efs_guess_sequence *efs_guess_find(struct efs_guessing *g, uint64_t id);
/* All are over. */
void efs_guess_forget(struct efs *fs);

/* guess_thread.c */
void *efs_guess_thread(void *guessing);
#define EFS_GUESS_THREAD_BYTES (256u << 10) /* that it holds beside the predictor */

#endif
