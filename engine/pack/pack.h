/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.h - shared by the parts of the packer.
 *
 * pack/ converts a checkpoint into a store, as a new file or in place of the source (reclaim.h). Only tools call it:
 * mkexpertfs, and expertctl and tools/common for checks. It never prints, and is never called by another room of the
 * engine.
 *
 *   pack.c          efs_pack(): the sequence of steps
 *   pack_source.c   reads the source files
 *   pack_estimate.c  what packing would save
 *   pack_copies.c   finds files with the same bytes, which are stored once
 *   pack_pipe.c      efs_pack_run(), the pipeline: threads that read and encode shards, and one that writes them
 *   pack_batch.c    hands out shards, with memory for their chunks
 *   pack_report.c   the report
 *   pack_verify.c   compares the written store with the sources
 *
 * reclaim.h declares packing in place (--reclaim).
 */
#ifndef EFS_PACK_H
#define EFS_PACK_H

#include "catalog.h"
#include "codec.h"
#include "index.h"
#include "layout.h"
#include "parallel.h"
#include "store_write.h"
#include "expertfs-pack.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/types.h>

/* Peak memory is below 512 MiB. Its main parts, besides EFS_INDEX_BYTES: */
#define EFS_PACK_RING_BYTES (160u << 20) /* encoded chunks; holds two of the largest runs */
#define EFS_PACK_WORK_BYTES (128u << 20) /* raw buffers and scratch of all threads */
/* A run ends before it exceeds EFS_RUN_BYTES raw bytes, or its chunks could take more memory than this. */
#define EFS_PACK_RUN_ROOM (EFS_PACK_RING_BYTES / 2)

/* Checks options. 0 or -EINVAL. */
errint_t efs_pack_check_options(const struct efs_pack_options *options, struct efs_error *err);

/* ---- sources ------------------------------------------------------------------------------------------------ */

struct efs_pack_source; /* the files of a catalogue, opened as needed; thread-safe */

/* Opens every file once, so that unreadable files, and later changes, are reported. */
errint_t efs_pack_source_open(const struct efs_catalog *catalog, struct efs_pack_source **source,
                              struct efs_error *err);
/* Buffer size for a read of `bytes` bytes at any offset. */
size_t efs_pack_source_room(size_t bytes);
/*
 * Reads `bytes` bytes of file at offset. buffer: aligned to EFS_ALIGN, of efs_pack_source_room(bytes) bytes; *data
 * points to the bytes in it. Blocks. new_bytes: how many of the bytes are read for the first time; a file is closed
 * when all its bytes have been read. -ESTALE: the file was truncated or changed.
 */
errint_t efs_pack_source_read(struct efs_pack_source *source, uint32_t file, uint64_t offset, size_t bytes,
                              size_t new_bytes, uint8_t *buffer, const uint8_t **data, struct efs_error *err);
/* Resets the count of bytes read, so that all files can be read again. */
void efs_pack_source_rewind(struct efs_pack_source *source);
/* Closes a file that has no read in flight; the next read opens it again. */
void efs_pack_source_close_idle(struct efs_pack_source *source, uint32_t file);
/* Declares that `bytes` bytes of a file will not be read, for closing it early. Call it before the first read. */
void efs_pack_source_skip(struct efs_pack_source *source, uint32_t file, uint64_t bytes);
/* -ESTALE if a file's size or modification time changed since efs_pack_source_open(). */
errint_t efs_pack_source_unchanged(struct efs_pack_source *source, struct efs_error *err);
/* Whether efs_pack_source_unchanged() found a different inode number: the file may have been replaced. */
bool efs_pack_source_renumbered(const struct efs_pack_source *source, uint32_t file);
/* What fstat(2) said of a file at efs_pack_source_open(); NULL: it was not the same file all the time since, by inode
 * and times, or its times may miss a change. */
const struct stat *efs_pack_source_untouched(const struct efs_pack_source *source, uint32_t file);
/* Returns -ESTALE, with the message in err. */
errint_t efs_pack_source_changed(const struct efs_pack_source *source, uint32_t file, struct efs_error *err);
/* Whether the file with this device and inode is one of the sources. */
bool efs_pack_source_has(const struct efs_pack_source *source, dev_t device, ino_t inode);
void efs_pack_source_close(struct efs_pack_source *source);
/*
 * Checks that a store named out may be made from src: a store below its own source would be packed the next time, and a
 * store must not replace one of its source files. source: src, open. 0, -EINVAL or the -errno of a system call.
 */
errint_t efs_pack_check_output(const char *src, const char *out, const struct efs_pack_source *source,
                               struct efs_error *err);

/*
 * Finds files with the same bytes: all but one of them become copies, without tensors. Reads samples of files of equal
 * size, and compares those with equal samples completely. Blocks. -ECANCELED, -EIO, ...
 */
errint_t efs_pack_find_copies(struct efs_catalog *catalog, struct efs_pack_source *source,
                              const struct efs_pack_options *options, struct efs_error *err);

/* ---- pipeline ----------------------------------------------------------------------------------------------- */

/* Memory for encoded chunks, allocated and freed in order. */
struct efs_pack_ring {
    uint8_t *base;
    uint64_t bytes, begin, end; /* begin, end: increasing positions; the offset is the position modulo bytes */
};
errint_t efs_pack_ring_init(struct efs_pack_ring *ring, size_t bytes);
void efs_pack_ring_free(struct efs_pack_ring *ring);
void efs_pack_ring_release(struct efs_pack_ring *ring, uint64_t end); /* frees up to `end`, a run's ring_end */

/* A run of shards (layout.h) in the pipeline: the memory of its chunks. */
struct efs_pack_run {
    struct efs_pack_run *next;
    uint32_t shard_first, shard_count;
    uint32_t left;     /* shards that are not encoded yet */
    uint64_t ring_end; /* for efs_pack_ring_release() */
    struct efs_pack_slot {
        uint8_t *e, *sm;
        bool has_checks; /* page checksums are written */
    } slots[];
};

/* Exponent histograms of objects that are being encoded. Thread-safe. */
struct efs_pack_tally;
struct efs_pack_tallies {
    pthread_mutex_t lock;              /* guards by_object and its elements */
    struct efs_pack_tally **by_object; /* NULL: not started, or complete */
    double *entropy_bits;              /* by object, for all its elements; 0 until all its shards were added */
};
/* Copies the histogram of an object. false: none of its shards was added yet, or all were. */
bool efs_pack_tally_get(struct efs_pack_tallies *tallies, uint32_t object, uint64_t counts[256]);
/* Restores a partial histogram, with `left` shards to be added. 0 or -ENOMEM. */
errint_t efs_pack_tally_set(struct efs_pack_tallies *tallies, uint32_t object, uint32_t left,
                            const uint64_t counts[256]);

/* Shards that one thread reads with one read and encodes: adjacent in one file, perhaps of several runs. */
#define EFS_PACK_BATCH_SHARDS 256
struct efs_pack_batch {
    uint32_t file, count;
    uint64_t begin, end; /* file offsets */
    size_t bytes;        /* of the shards; less than end - begin if there are gaps */
    struct efs_pack_part {
        struct efs_pack_run *run;
        uint64_t offset; /* file offset */
        uint32_t object, shard;
    } parts[EFS_PACK_BATCH_SHARDS];
};

/* The next shard to be handed out. */
struct efs_pack_cursor {
    uint32_t order, object, shard;
    struct efs_pack_run *run; /* the run that continues with this shard, or NULL */
};

/* Progress of a packing between two calls of efs_pack_run(). */
struct efs_pack_state {
    struct efs_pack_cursor cursor;
    struct efs_pack_tallies tallies;
    uint64_t done_bytes; /* source bytes encoded */
};

struct efs_pack_pipe {
    struct efs_index *plan;
    struct efs_pack_source *source;
    struct efs_store_writer *writer;
    struct efs_pack_tallies *tallies;
    size_t buffer_bytes;         /* size of each thread's raw buffer */
    sem_t encoder_slots;         /* limits the number of threads that encode */
    uint64_t limit_bytes;        /* no run is started once this many source bytes were handed out */
    pthread_mutex_t cursor_lock; /* guards cursor, assigned_bytes, full; acquired before parallel.lock */
    struct efs_pack_cursor cursor;
    uint64_t assigned_bytes;
    bool full;                    /* limit_bytes was reached */
    struct efs_parallel parallel; /* its lock guards the following members */
    pthread_cond_t room;          /* signalled when ring memory is freed, and for stop */
    pthread_cond_t coded;         /* signalled when a run is encoded, for assigned_all, and for stop */
    struct efs_pack_ring ring;
    struct efs_pack_run *first, **last; /* runs in disk order */
    bool assigned_all;
};

/* Moves the cursor to the first shard. */
void efs_pack_cursor_begin(const struct efs_index *plan, struct efs_pack_cursor *cursor);
/* Moves the cursor to the next shard; clears its run after the run's last shard. */
void efs_pack_cursor_step(const struct efs_index *plan, struct efs_pack_cursor *cursor);
static inline bool efs_pack_cursor_at_end(const struct efs_index *plan, const struct efs_pack_cursor *cursor)
{
    return cursor->order == plan->group_count;
}
/*
 * Takes the next batch, with memory for the chunks of the runs that start in it; blocks until the memory is free.
 * false: no shards are left, the limit was reached, or the pipe was stopped.
 */
bool efs_pack_next_batch(struct efs_pack_pipe *pipe, struct efs_pack_batch *batch);

/* Initializes state at the first shard. entropy_bits: plan->object_count doubles, owned by the caller. The caller
 * must free state, also on error. */
errint_t efs_pack_state_begin(const struct efs_index *plan, double *entropy_bits, struct efs_pack_state *state);
void efs_pack_state_free(const struct efs_index *plan, struct efs_pack_state *state);
/*
 * Reads, encodes and writes shards from the state's cursor on; fills plan->shards and the state's entropy_bits. Starts
 * runs until limit_bytes source bytes were handed out (UINT64_MAX: all; at least one run) and completes them. After an
 * error the state must not be used. Blocks.
 */
errint_t efs_pack_run(struct efs_index *plan, struct efs_pack_source *source, struct efs_store_writer *writer,
                      const struct efs_pack_options *options, struct efs_pack_state *state, uint64_t limit_bytes,
                      struct efs_error *err);
/* ---- completion --------------------------------------------------------------------------------------------- */

/* Fills report's counts and rows; entropy_bits: result of efs_pack_run(). */
void efs_pack_report(const struct efs_index *plan, const double *entropy_bits, struct efs_pack_report *report);
/* The report as JSON, without times; the caller frees it. NULL: no memory. */
char *efs_pack_report_json(const struct efs_pack_report *report);
/* Appends the tables and finishes the file; sets report's store_bytes and content_hash. */
errint_t efs_pack_index(const struct efs_index *plan, struct efs_store_writer *writer, struct efs_pack_report *report,
                        struct efs_error *err);
/* Decodes every shard of the written store and compares it with its source. -EUCLEAN: they differ. */
errint_t efs_pack_verify(const struct efs_index *plan, struct efs_pack_source *source,
                         const struct efs_store_writer *writer, const struct efs_pack_options *options,
                         struct efs_error *err);
/* Compares a sample of the shards of each file whose inode number changed with what was packed. -ESTALE: they
 * differ; -EIO, ... */
errint_t efs_pack_verify_renumbered(const struct efs_index *plan, struct efs_pack_source *source,
                                    struct efs_error *err);

#endif
