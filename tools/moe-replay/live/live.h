/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live.h - a workload played on real files: each run in a process of its own, in a memory cgroup together with
 * the daemon if there is one.
 */
#ifndef MOE_REPLAY_LIVE_H
#define MOE_REPLAY_LIVE_H

#include "compute.h"
#include "replay.h"
#include "stage.h"

struct replay_live {
    /* what is asked for: */
    const char *store;                 /* the model's */
    const char *mountpoint;            /* a mount that is there already; NULL: each run starts its own */
    const char *raw;                   /* the raw checkpoint, for the peers; NULL: none */
    const char *plan_from;             /* NULL: none */
    const char *program;               /* expertfs; NULL: it is looked for */
    const struct efs_profile *profile; /* the store's */
    enum replay_compute_kind compute;
    uint32_t threads;         /* that compute */
    uint32_t workers;         /* the daemon's; 0: as it likes */
    bool prealloc;            /* a run takes all its memory before its first token */
    bool warm;                /* expertfs fills memory that is still empty while the disk rests */
    char prefetch[64];        /* expertfs's option for runs that guess; "": none does */
    uint32_t turns;           /* of so many passes, with guesses and without; 0: none */
    const char *without;      /* the option in the latter */
    uint64_t allowance_bytes; /* of a cgroup, above the budget: for the process that plays and the kernel's tables */
    /* what replay_live_open() makes: */
    struct replay_model model;
    struct replay_stage stage;
    char found_program[4096];
    bool has_policies; /* the daemon, or the mount that is there */
    bool compares;     /* there is more than one run: all on a mount that is there are warm, the first, too */
    bool played;       /* on the mount that is there */
    struct replay_mount_before *before; /* of it: the attributes that were changed; NULL: none */
};

/* Look at store and raw files, set the stage. To be closed also after an error. */
errint_t replay_live_open(struct replay_live *live, struct efs_error *err);
void replay_live_close(struct replay_live *live);

/*
 * One run from a cold start, of record->runner, policy and budget; the rest of the record is filled in. What is known
 * so far is there also when it was cancelled by progress. -EOPNOTSUPP: the daemon has no such policy.
 */
errint_t replay_live_run(struct replay_live *live, const struct replay_setup *setup,
                         const struct replay_workload *workload, replay_progress_fn *progress, void *arg,
                         struct replay_run_record *record, struct efs_error *err);

/* What it takes a client to get an expert that is full and to let it go, of a request for a few: on the mount, or on
 * one that is made for this (handout.c). */
errint_t replay_live_handout(struct replay_live *live, uint64_t *ns, struct efs_error *err);

/* ---- what is learned of a run (learn.c) ---- */

/* When a layer was asked for, and what followed: by the clock of the process that plays. */
struct replay_moment {
    uint64_t asked_ns, waiting_ns, here_ns; /* the last expert of it: waited for, here */
    uint64_t run_ns, over_ns;               /* the experts have run, all of it is given back */
};
#define REPLAY_MOMENTS 512u /* the latest that are kept */

struct replay_stand;
struct replay_learner;
/* A process that looks at the mount's pools and chart while it plays: a mount that does not answer holds up nobody
 * else. NULL: there can be none. Both stay the caller's. */
struct replay_learner *replay_learner_start(const char *mountpoint, const struct replay_stand *stand);
/* When it has played and the mount is still there: all else is looked at, and the process ends. Nothing is known of a
 * mount that does not tell, or not soon. NULL is fine. */
void replay_learner_end(struct replay_learner *learner, struct replay_learned *learned);

/* The same of a store in the process that plays (learn_library.c), between two passes: not on the clock. */
struct replay_notes;
struct replay_play;
struct efs;
struct replay_notes *replay_notes_new(const struct replay_play *play, struct efs *fs); /* NULL: no memory */
void replay_notes_free(struct replay_notes *notes);                                    /* NULL is fine */
/* A layer was asked for, by its number among all requests of the workload, and all its experts have run. */
void replay_notes_layer(struct replay_notes *notes, size_t request, uint64_t asked_ns, uint64_t over_ns);
void replay_notes_pass(struct replay_notes *notes, uint64_t tokens); /* one has ended; tokens that are done */
void replay_notes_end(struct replay_notes *notes, struct replay_learned *learned); /* as it is if it is not known */

/* ---- the process that plays (player.c) ---- */

struct replay_reader;
struct replay_counters;
/* What it tells while it plays; shared with the process that started it. */
struct replay_stand;
struct replay_stand *replay_stand_new(uint64_t passes); /* NULL: no memory */
void replay_stand_free(struct replay_stand *stand);

struct replay_play {
    const struct replay_live *live;
    const struct replay_workload *workload;
    const char *mountpoint; /* of REPLAY_EXPERTFS */
    enum replay_runner runner;
    enum replay_compute_kind compute;
    enum efs_form form;                /* of experts that the library runs from a mount */
    const struct efs_options *library; /* the store in the player's process, in place of a mount; NULL: no */
    uint64_t budget_bytes, layer_ns;
    bool limited;        /* goes into the stage's cgroup */
    bool guesses;        /* something is guessed */
    bool begins_without; /* of live->turns */
};
/* Start it. Returns its pid or -errno. */
pid_t replay_player_start(const struct replay_play *play, struct replay_stand *stand);
uint64_t replay_stand_tokens(const struct replay_stand *stand); /* that are done */
void replay_stand_stop(struct replay_stand *stand);             /* ask it to end after the layer */
/* The latest layers, oldest first (room for REPLAY_MOMENTS); returns how many. runs, run_ns: experts that were run, and
 * what that took. */
uint32_t replay_stand_moments(const struct replay_stand *stand, struct replay_moment *moments, uint64_t *runs,
                              uint64_t *run_ns);
/* After its end: what was learned of a store in its process. */
const struct replay_learned *replay_stand_learned(const struct replay_stand *stand);
/* After its end: the time of each pass that was played, to be freed; NULL: no memory. */
uint64_t *replay_stand_passes(const struct replay_stand *stand);
/* After its end: times, hits, bytes into result; the error that ended it, or 0. */
errint_t replay_stand_result(const struct replay_stand *stand, const struct replay_workload *workload,
                             struct replay_result *result, uint64_t *check, struct efs_error *err);

#endif
