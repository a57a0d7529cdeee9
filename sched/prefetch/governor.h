/* SPDX-License-Identifier: Apache-2.0 */
/*
 * governor.h - whether to read what is guessed: between a predictor and the queue of prefetch.h.
 *
 *     efs_governor_caps    what the queue may read and hold
 *     efs_governor_asked   a layer asks for its experts: what is to be done for those to come
 *     efs_governor_weigh   which guesses are worth a read, and how much, for efs_prefetch_offer
 *     efs_governor_layer   the same where all of the next layer is wanted: a prompt
 *
 * A guess is read only while the disk has nothing else to do, so that it costs two things: who asks meanwhile waits for
 * the piece that is being read, and what leaves memory for it may be asked for. It is worth a read if
 *
 *     p * time saved  >  q * time to read the victim again  +  P(demand comes meanwhile) * time of a piece / 2
 *
 * where the time saved is what of its read can be done before its layer comes, in the time that demand leaves the disk
 * (with a disk that others keep busy there is hardly any). Then those with the largest p * time saved / time to read go
 * first; with `always` all time is taken for idle. Whether all that is of use is measured (trial.h): iterations with
 * guesses and without take turns, and what is not faster is left.
 *
 * Pure: no clock, thread, I/O or memory of its own. Not thread-safe.
 */
#ifndef EFS_GOVERNOR_H
#define EFS_GOVERNOR_H

#include "prefetch.h"
#include "trial.h"

#ifdef __cplusplus
extern "C" {
#endif

enum efs_governor_mode {
    EFS_GOVERNOR_AUTO,   /* as long as it is faster */
    EFS_GOVERNOR_ALWAYS, /* whatever it costs */
    EFS_GOVERNOR_OFF
};
/* "auto", ...; NULL for no mode. */
const char *efs_governor_mode_name(enum efs_governor_mode mode);

/* Zeroes are the defaults. */
struct efs_governor_config {
    enum efs_governor_mode mode;
    double share; /* of the budget that may hold guesses, up to 1; 0: EFS_GOVERNOR_SHARE */
    double least; /* probability below which nothing is read; 0: EFS_GOVERNOR_LEAST */
};
/* What is held for guesses is taken from the cache: a few experts are enough for layers that are near, and more cost
 * more hits than they bring. Experts that are missing are asked for less often than a predictor says, since the cache
 * has those that are likely; below the least probability most of what is read is in vain. */
#define EFS_GOVERNOR_SHARE 0.005
#define EFS_GOVERNOR_LEAST 0.3

/* The fields are the governor's. */
struct efs_governor {
    unsigned layers;
    struct efs_governor_config config;
    struct efs_trial trial;
    uint64_t requests, last_ns, last_work;
    unsigned last_tokens;
    double interval_ns, reading;    /* means of a request: time to the next one, whether it reads */
    double missing_bytes, offering; /* offering: whether something was found worth a read, while guesses are made */
    bool offered;                   /* since the last request */
};

/* layers: positions of an iteration, 1 or more. */
void efs_governor_init(struct efs_governor *governor, unsigned layers, const struct efs_governor_config *config);
/* New settings; a mode that has changed begins its trial anew, but for off, which keeps what was found. */
void efs_governor_set(struct efs_governor *governor, const struct efs_governor_config *config);

/*
 * Guesses have their part of the budget. Auto: where they are of use or tried, and something is worth a read now and
 * then. The cache is smaller for that with guesses and without, so that no turn shows what it costs.
 */
bool efs_governor_has_share(const struct efs_governor *governor);

/*
 * Fill in caps->under_way_bytes and held_bytes for a budget and the size of the largest expert as it is read. Two
 * experts may be held whatever the share, if they are no more than a tenth of the budget. Where not one fits nothing is
 * read.
 */
void efs_governor_caps(const struct efs_governor *governor, uint64_t budget_bytes, uint64_t expert_bytes,
                       struct efs_prefetch_config *caps);

/* A layer asks for its experts. */
struct efs_governor_request {
    uint64_t now_ns;         /* any clock that only rises */
    unsigned tokens;         /* for which it asks, of all its sequences; 1 where it is not known */
    unsigned asked, experts; /* how many it asks for, of how many */
    uint64_t missing_bytes;  /* what is to be read for them, or is being read */
    uint64_t ahead_bytes;    /* what would be to be read, but for guesses */
};

/*
 * A layer is read whole only where nearly all of it is asked for. With half of it, as decoding in batches of 16 does,
 * what the cache lacks is what is seldom asked for: a quarter of it was right, and it cost time.
 */
enum efs_governor_now {
    EFS_GOVERNOR_NOTHING, /* offer nothing */
    EFS_GOVERNOR_GUESS,   /* weigh and offer guesses */
    EFS_GOVERNOR_LAYER    /* more than three quarters of this layer were asked for: offer all of the next one */
};
enum efs_governor_now efs_governor_asked(struct efs_governor *governor, const struct efs_governor_request *request);

/* What the disk can do now. */
struct efs_governor_disk {
    double bytes_per_second;
    double latency_ns;    /* of a read */
    uint64_t piece_bytes; /* read at once: demand waits for it; 0: all of an expert */
};

/* An expert that a predictor names and of which something is missing. */
struct efs_governor_candidate {
    uint16_t layer, expert;
    int64_t due;              /* position of its layer */
    float probability;        /* p, 0 to 1 */
    uint64_t missing_bytes;   /* to be read: the components that are not in memory; 0: it is left out */
    float victim_probability; /* q: that what leaves memory for it is asked for while the guess has its place */
    uint64_t victim_bytes;    /* what of that would be read again; 0: memory is free */
};

/*
 * Which candidates of a sequence that is at position now are worth a read; the layer at now has asked at the request
 * told last. guesses: room for count. Returns how many there are.
 */
unsigned efs_governor_weigh(struct efs_governor *governor, const struct efs_governor_disk *disk, int64_t now,
                            const struct efs_governor_candidate *candidates, unsigned count,
                            struct efs_prefetch_guess *guesses);

/* All of a layer, in the order of candidates, which should be that of the file; probabilities are not looked at. As
 * above. */
unsigned efs_governor_layer(const struct efs_governor_candidate *candidates, unsigned count,
                            struct efs_prefetch_guess *guesses);

#ifdef __cplusplus
}
#endif
#endif
