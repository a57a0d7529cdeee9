/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h - the ways by which a live replay gets at a layer's experts: a mount, the library, mapped raw files,
 * reads of raw experts into an LRU. One layer at a time: request, then next until all have come, then release.
 */
#ifndef MOE_REPLAY_READER_H
#define MOE_REPLAY_READER_H

#include "compute.h"

#define REPLAY_STATES 5u /* F C S E M */

/* Since the reader was opened, or the mount made. */
struct replay_counters {
    uint64_t hits[REPLAY_STATES]; /* experts asked for, by where they were found */
    uint64_t read_bytes;          /* from disk */
    uint64_t io_ns;               /* time with at least one read under way; 0: not known */
    uint64_t decode_ns;           /* of all threads */
    uint64_t policy_ns, recoded_bytes;
    /* of the file "predict", where something is guessed: experts that were missing; of them, read ahead, or being read
     * when they were asked for; read in vain; cancelled. Bytes that were read ahead, and of them in vain */
    uint64_t missed, covered, late, wasted, cancelled, guessed_bytes, wasted_bytes;
};
/* Fill in the guesses of a text as .expertfs/predict has it. */
void replay_counters_guesses(struct replay_counters *counters, const char *text);

struct replay_reader {
    /* Begin to bring experts of a layer, each once; tokens: that chose each of them. */
    errint_t (*request)(struct replay_reader *reader, uint32_t layer, const uint32_t *experts, const uint32_t *tokens,
                        uint32_t count, struct efs_error *err);
    /* The next of them that is ready, in any order; waits for it. The view is valid until next or release: to hold one
     * expert and wait for another could wait forever where there is little room. */
    errint_t (*next)(struct replay_reader *reader, struct replay_view *view, struct efs_error *err);
    void (*release)(struct replay_reader *reader);
    /* In place of these three: bring the experts of a mixture and run them. NULL: this reader does not. */
    errint_t (*run)(struct replay_reader *reader, struct efs_team *team, const struct efs_mixture *mixture,
                    struct efs_error *err);
    errint_t (*count)(struct replay_reader *reader, struct replay_counters *counters, struct efs_error *err);
    void (*close)(struct replay_reader *reader);
    struct efs *fs;        /* the store, where it is in this process; else NULL */
    uint64_t off_clock_ns; /* spent in request for counting alone */
};

/* Each: a reader to be closed, or -errno. request_max: experts of one request at most. */

/* A mount of the model (reader_mount.c); it can also run a layer's experts, asked for in that form. guesses: they are
 * counted, too. */
errint_t replay_reader_mount(const struct replay_model *model, const char *mountpoint, uint32_t request_max,
                             const enum efs_form *form, bool guesses, struct replay_reader **reader,
                             struct efs_error *err);
/* The raw files, mapped (reader_mmap.c): the kernel reads and drops as it likes. */
errint_t replay_reader_mmap(const struct replay_model *model, uint32_t request_max, struct replay_reader **reader,
                            struct efs_error *err);
/* Raw experts, read with O_DIRECT into as many buffers as the budget has room for, last used last out
 * (reader_lru.c), taken at once with prealloc. -ENOMEM: less room than one request needs. */
errint_t replay_reader_lru(const struct replay_model *model, uint64_t budget_bytes, uint32_t request_max, bool prealloc,
                           struct replay_reader **reader, struct efs_error *err);
/* The store in this process, its experts run from the coded form (reader_library.c); with a full pool from the
 * full one. */
errint_t replay_reader_library(const char *store, const struct efs_options *options, struct replay_reader **reader,
                               struct efs_error *err);

#endif
