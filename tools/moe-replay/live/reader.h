/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h - interface for reading a layer's experts from real files: by the client library from a mount or a store,
 * from mapped raw files, or by reads of raw experts or layers into buffers. For each layer the caller calls request,
 * then next once per expert, then release. For one thread.
 */
#ifndef MOE_REPLAY_READER_H
#define MOE_REPLAY_READER_H

#include "expertfs-private.h"
#include "raw.h"
#include "replay.h"

#define REPLAY_STATES 5u /* F C S E M */

/* Counters since the reader was opened, or since the mount. */
struct replay_counters {
    uint64_t hits[REPLAY_STATES]; /* requested experts by pool; M: missing */
    uint64_t read_bytes;          /* from disk */
    uint64_t io_ns;               /* time with at least one read in flight; 0: unknown */
    uint64_t decode_ns;           /* sum over the threads */
    uint64_t policy_ns, recoded_bytes;
    struct replay_prefetch_counts prefetch; /* zeros without prefetch */
};

struct replay_reader {
    /* Starts to read experts of a layer, each once; tokens[i]: number of tokens that chose experts[i]. The arrays must
     * stay valid until release. */
    errint_t (*request)(struct replay_reader *reader, uint32_t layer, const uint32_t *experts, const uint32_t *tokens,
                        uint32_t count, struct efs_error *err);
    /* Blocks until the next expert is in memory, in any order. The view is valid until next or release: holding one
     * expert while waiting for another could deadlock with a small budget. */
    errint_t (*next)(struct replay_reader *reader, struct replay_view *view, struct efs_error *err);
    void (*release)(struct replay_reader *reader); /* may be NULL */
    /* Replaces the three calls above: reads the experts of a mixture and runs them. NULL: not supported. */
    errint_t (*run)(struct replay_reader *reader, uint32_t layer, struct efs_team *team,
                    const struct efs_mixture *mixture, struct efs_error *err);
    errint_t (*count)(struct replay_reader *reader, struct replay_counters *counters, struct efs_error *err);
    void (*close)(struct replay_reader *reader);
    uint64_t off_clock_ns; /* time in request that the counters took; not part of the pass */
};

/* replay_reader_*(): *reader is to be closed by its close(), or -errno. */

/* The model of a mount or a store, freed by replay_model_free(). -ENODEV: a directory that is no mount. */
errint_t replay_client_model(const char *path, struct replay_model *model, struct efs_error *err);
/* A mount (options NULL), or a store to open with these options (reader_client.c). form: of the experts that next
 * returns; run_form: of those in run. */
errint_t replay_reader_client(const char *path, const struct efs_options *options, const struct replay_model *model,
                              enum efs_form form, enum efs_form run_form, struct replay_reader **reader,
                              struct efs_error *err);
/* The raw files, mapped (reader_mmap.c): the page cache decides what stays in memory. */
errint_t replay_reader_mmap(const struct replay_raw *raw, struct replay_reader **reader, struct efs_error *err);
/* Raw experts, read with O_DIRECT into as many slots as fit in the budget, allocated at open (reader_slots.c). runner:
 * REPLAY_READ_LRU, REPLAY_READ_LFU, REPLAY_ACCELERATE or REPLAY_ZERO. */
errint_t replay_reader_slots(const struct replay_raw *raw, enum replay_runner runner, uint64_t budget_bytes,
                             struct replay_reader **reader, struct efs_error *err);

#endif
