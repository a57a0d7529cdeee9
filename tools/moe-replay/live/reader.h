/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h - how a run on real files reads a layer's experts: by the client library from a mount or a store, from
 * mapped raw files, or by reads of raw experts into an LRU. One layer at a time: request, then next until all have
 * come, then release.
 */
#ifndef MOE_REPLAY_READER_H
#define MOE_REPLAY_READER_H

#include "expertfs-private.h"
#include "raw.h"
#include "replay.h"

#define REPLAY_STATES 5u /* F C S E M */

/* Since the reader was opened, or the mount made. */
struct replay_counters {
    uint64_t hits[REPLAY_STATES]; /* experts asked for, by where they were found */
    uint64_t read_bytes;          /* from disk */
    uint64_t io_ns;               /* time with at least one read in flight; 0: unknown */
    uint64_t decode_ns;           /* of all threads */
    uint64_t policy_ns, recoded_bytes;
    struct replay_guesses guesses; /* where something is guessed */
};

struct replay_reader {
    /* Begin to read experts of a layer, each once; tokens: that chose each of them. The caller's until release. */
    errint_t (*request)(struct replay_reader *reader, uint32_t layer, const uint32_t *experts, const uint32_t *tokens,
                        uint32_t count, struct efs_error *err);
    /* Wait for the next of them, in any order. The view is valid until next or release: to hold one expert and wait for
     * another could wait forever where there is little room. */
    errint_t (*next)(struct replay_reader *reader, struct replay_view *view, struct efs_error *err);
    void (*release)(struct replay_reader *reader); /* may be NULL */
    /* In place of these three: read the experts of a mixture, by their numbers in the layer, and run them. NULL: this
     * reader does not. */
    errint_t (*run)(struct replay_reader *reader, uint32_t layer, struct efs_team *team,
                    const struct efs_mixture *mixture, struct efs_error *err);
    errint_t (*count)(struct replay_reader *reader, struct replay_counters *counters, struct efs_error *err);
    void (*close)(struct replay_reader *reader);
    uint64_t off_clock_ns; /* spent in request for counting alone */
};

/* Each: a reader to be closed, or -errno. */

/* The model of a mount or a store. To be freed; -ENODEV: a directory, but no mount. */
errint_t replay_client_model(const char *path, struct replay_model *model, struct efs_error *err);
/* A mount, or a store that is opened with these options (reader_client.c). form: in which experts are run. */
errint_t replay_reader_client(const char *path, const struct efs_options *options, const struct replay_model *model,
                              enum efs_form form, struct replay_reader **reader, struct efs_error *err);
/* The raw files, mapped (reader_mmap.c): the kernel reads and drops pages as it likes. */
errint_t replay_reader_mmap(const struct replay_raw *raw, struct replay_reader **reader, struct efs_error *err);
/* Raw experts, read with O_DIRECT into as many buffers as the budget has room for, which are taken at once, least
 * recently used out (reader_lru.c). */
errint_t replay_reader_lru(const struct replay_raw *raw, uint64_t budget_bytes, struct replay_reader **reader,
                           struct efs_error *err);

#endif
