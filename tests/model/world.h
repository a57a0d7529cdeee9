/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h - what the explorer drives: the real engine on one thread (tests/engine/one_thread.h), its callers, and all
 * steps that may come next. All of its state is on the heap of snapshot.h. Bytes are not read: each granule of the
 * chunk pool, each bounce slot and each memory file has a tag that says what was read or decoded into it.
 */
#ifndef EFS_MODEL_WORLD_H
#define EFS_MODEL_WORLD_H

#include "fetch.h"
#include "one_thread.h"

#define EXPERTS 4u
#define CALLERS_MAX 4u
#define ITEMS_MAX 3u
#define MEMFILES_MAX 8u
#define SLOTS_MAX 8u
#define STEPS_MAX 64u

/* Bits of EFS_TEST_LOST: changes that are not reported. */
#define LOST_CHANGE(what) (UINT64_C(1) << (what)) /* efs_changed() */
#define LOST_ACCOUNT_SHIFT 8u
#define LOST_ACCOUNT(kind) (UINT64_C(1) << (LOST_ACCOUNT_SHIFT + (kind))) /* efs_account.changed */
#define LOST_ARENA (UINT64_C(1) << 63)                                    /* efs_arena.emptied */

enum caller_kind {
    CALLER_NONE,
    CALLER_REQUEST, /* in process: efs_request_submit(), then drops and efs_client_release() */
    CALLER_SESSION, /* of a client of a mount: `arrived` reports each expert, which is held until it is dropped */
    CALLER_WANT,    /* experts are wanted, without holding them: ends at once */
    CALLER_READ,    /* a read of some bytes of an expert's file */
    CALLER_OPEN     /* a lease on an expert for an open of its file */
};

struct caller_plan {
    enum caller_kind kind;
    enum efs_form form;
    uint32_t count, experts[ITEMS_MAX];
    bool one_by_one; /* drops an expert while others are being loaded; else waits for all, unless the request is
                        oversize */
    bool may_cancel; /* once, some caller drops an expert that is being loaded, or ends: release, death of a session */
    bool waits;      /* its thread waits for it without a limit: drops nothing until that has ended */
    bool keeps;      /* drops an expert only where a wait for the next one ends with -EDEADLK */
    unsigned thread; /* of several callers, from 1 on: it drops nothing while it waits for one of them; 0: its own */
    unsigned after;  /* the caller, from 1 on, that must have ended before: the same client; 0: none */
};

/* A configuration: every order of these steps is explored. */
struct model_plan {
    const char *name;
    const struct fixture *store;
    unsigned segments, memfiles; /* the budget, above fixed memory */
    unsigned shrink_segments;    /* the budget is lowered by this number of segments once, and raised again; 0: never */
    bool unprepared;             /* no segment is prepared before the first one is needed */
    bool fails;                  /* one read fails with -EIO */
    bool maps;                   /* processes map the files of openers, until the first STEP_LOOK */
    unsigned threads;            /* steps that may be suspended at a time, where they take the lock; 0: none */
    bool is_long;                /* many states: only in the long tier */
    bool piecewise;              /* a fault: requests get memory expert by expert, and wait while they hold some */
    struct caller_plan callers[CALLERS_MAX];
};

enum stage { STAGE_NEW, STAGE_RUNNING, STAGE_DONE };

struct caller {
    uint8_t stage;             /* enum stage */
    bool ended;                /* of a read or an open: reported */
    bool cancelled[ITEMS_MAX]; /* of a session: dropped before it was reported, or the session is dead */
    bool here[ITEMS_MAX];      /* of a session: reported and held */
    bool gone[ITEMS_MAX];      /* of a session: failed, or dropped */
    const void *oversize;      /* of a session: the argument by which the request was reported to be oversize */
    struct efs_client_request *request; /* while it is allocated */
    struct efs_lease *lease;
    uint8_t bytes[64]; /* read into */
};

/* The tag of the bytes in a bounce slot, from this address on. */
struct slot_tag {
    const uint8_t *memory;
    uint8_t tag;
};

struct world {
    struct one_thread thread;
    struct efs *fs;
    uint64_t lost;           /* EFS_TEST_LOST */
    struct threads *threads; /* NULL: steps are not interrupted */
    const struct model_plan *plan;
    uint64_t budget_bytes;
    unsigned caller_count;
    struct caller callers[CALLERS_MAX];
    bool failed, cancelled;                     /* a read, a caller */
    bool unmapped;                              /* after the first STEP_LOOK */
    uint8_t shrunk;                             /* 0: not yet; 1: now; 2: raised again */
    uint8_t memfile_tags[MEMFILES_MAX + 1];     /* the last: of no memory file */
    struct efs_memfile *memfiles[MEMFILES_MAX]; /* that exist */
    struct slot_tag slots[SLOTS_MAX];
    uint8_t *granules; /* tags of the chunk pool, by segment and granule */
};

enum step_kind {
    STEP_JOB,
    STEP_READ,
    STEP_READ_FAILS,
    STEP_BEGIN,
    STEP_DROP,
    STEP_RELEASE,
    STEP_CANCEL,
    STEP_WAIT,
    STEP_BUDGET,
    STEP_LOOK, /* for mappings, by the plan thread */
    STEP_RESUME
};

struct step {
    uint8_t kind; /* enum step_kind */
    uint16_t at;  /* index of a job, a read, a caller or a thread */
    uint8_t item; /* ITEMS_MAX: all */
};

extern struct world *world; /* on the heap */

/* Opens the store, sets the budget, and begins to track writes. */
void world_open(const struct model_plan *plan);
void world_close(void);
/* The steps that are possible now. Returns their number. */
unsigned world_steps(struct step steps[STEPS_MAX]);
void world_run(struct step step);
/* Whether something waits, and no memory is being returned, of which it may take the place of another. */
bool world_waits(void);
/* Whether something that waits goes on if it is tried again now, which changes the state: a wake-up is missing. */
bool world_retry_advances(void);
/* Describes a step in the state before it. */
void world_describe(struct step step, char *text, size_t bytes);
/* Whether all callers have ended and nothing is pending. */
bool world_is_final(void);

/* ---- bytes (world_bytes.c) ---- */
void bytes_begin(void);
/* Whether the caller's bytes are those of the expert. */
bool bytes_are_of(const void *bytes, uint32_t expert);
/* Fails unless the components of all extents in memory have their bytes. */
void bytes_check_extents(void);
/* Fails unless the full expert has its bytes. */
void bytes_check_full(uint32_t expert);
void bytes_set_memfile(size_t bytes); /* of the largest memory file */
/* Of an address in the memory of a memory file; UINT64_MAX: in none. */
uint64_t bytes_memfile_offset(const void *address);

/* ---- state.c ---- */
/* A hash of the state. States with the same hash have the same next steps, which lead to states with the same hashes:
 * addresses, clocks and statistics are not part of it. */
uint64_t state_hash(void);
/* A name of what the step does. */
uint64_t state_step_name(struct step step);
/* What happens in a state, for a count of what the explorer has reached. */
#define SITUATIONS(X) X(waiting) X(oversize) X(starved) X(extents_wait) X(uncached) X(retiring) X(filling) X(blocking)
struct situations {
#define MEMBER(situation) uint64_t situation;
    SITUATIONS(MEMBER)
#undef MEMBER
};
void state_count(struct situations *situations);
/* Fails unless the invariants hold that are true whenever the lock is free. final: no caller and nothing is left. */
void state_check(bool final);

#endif
