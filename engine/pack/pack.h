/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.h - what the parts of the packer share.
 *
 *   pack.c          efs_pack(): the order of the work
 *   pack_plan.c     catalogue -> index tables: what the store will hold, before a weight is read
 *   pack_source.c   reads of the source files
 *   pack_weights.c  is it a checkpoint, and all of one
 *   pack_same.c     files with the same bytes, which are stored once
 *   pack_run.c      the pipeline: threads that take the next shards, read and code them, and one that writes them
 *   pack_take.c     which shards are next, and memory for their chunks
 *   pack_report.c   what was measured, tables and superblock
 *   pack_verify.c   the written store against the sources
 *
 * reclaim.h has what packs a checkpoint in its own place.
 */
#ifndef EFS_PACK_H
#define EFS_PACK_H

#include "catalog.h"
#include "codec.h"
#include "layout.h"
#include "parallel.h"
#include "store_write.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/types.h>

/* Peak memory is under 512 MiB. Of this: */
#define EFS_PACK_INDEX_BYTES (160u << 20) /* tables at most; beyond, the source is refused */
#define EFS_PACK_RING_BYTES (160u << 20)  /* coded chunks; two of the largest runs fit */
#define EFS_PACK_WORK_BYTES (128u << 20)  /* all threads' raw buffers and scratch */
/* A run ends before EFS_RUN_BYTES raw bytes, and before its chunks could take more memory than this. */
#define EFS_PACK_RUN_ROOM (EFS_PACK_RING_BYTES / 2)

/* Do the options ask for weights, and there are none, or not all parts or files that an index names?
 * -ENODATA: err says what src is, and what to pack in its place. */
errint_t efs_pack_check_weights(const char *src, const struct efs_catalog *catalog,
                                const struct efs_pack_options *options, struct efs_error *err);

/* ---- plan --------------------------------------------------------------------------------------------------- */

/* Where an object's bytes begin. */
struct efs_pack_place {
    uint32_t file;
    uint64_t offset;
};

struct efs_pack_plan {
    const struct efs_catalog *catalog;
    enum efs_codec_choice codec;
    uint32_t shard_elements;
    char *strings;
    size_t string_bytes, string_room;
    struct efs_disk_file *files;
    struct efs_disk_extent *extents;
    struct efs_disk_tensor *tensors;
    struct efs_disk_group *groups;
    struct efs_disk_object *objects;
    struct efs_disk_shard *shards;
    uint32_t file_count, extent_count, tensor_count, group_count, object_count, shard_count;
    struct efs_pack_place *places;       /* of each object */
    uint32_t *order;                     /* groups as they lie on disk */
    uint64_t source_bytes, copied_bytes; /* copied: of files that are copies */
};

/* Tables of catalog's store, shards still empty. plan is to be freed, also on error. -ENOMEM, -E2BIG, -EUCLEAN. */
errint_t efs_pack_plan(struct efs_pack_plan *plan, const struct efs_catalog *catalog, enum efs_codec_choice codec,
                       uint32_t shard_elements, struct efs_error *err);
void efs_pack_plan_free(struct efs_pack_plan *plan);
/* Elements of a shard of an object. */
size_t efs_pack_shard_elements(const struct efs_pack_plan *plan, uint32_t object, uint32_t shard);

/* -EINVAL: what options name cannot be. */
errint_t efs_pack_check_options(const struct efs_pack_options *options, struct efs_error *err);

/* ---- sources ------------------------------------------------------------------------------------------------ */

struct efs_pack_source; /* the files of a catalogue, open as needed. Thread-safe. */

/* Looks at every file, so that one that cannot be read, or changes later, is told. */
errint_t efs_pack_source_open(const struct efs_catalog *catalog, struct efs_pack_source **source,
                              struct efs_error *err);
/* Bytes that a buffer needs for a read of bytes bytes at any offset. */
size_t efs_pack_source_room(size_t bytes);
/*
 * Read bytes bytes of file at offset. buffer: aligned to EFS_ALIGN, efs_pack_source_room(bytes) bytes; *data points to
 * the bytes in it. Blocks. Of the bytes, new_bytes had not been read before: a file is closed when all of its were.
 * -ESTALE: the file became shorter.
 */
errint_t efs_pack_source_read(struct efs_pack_source *source, uint32_t file, uint64_t offset, size_t bytes,
                              size_t new_bytes, uint8_t *buffer, const uint8_t **data, struct efs_error *err);
/* All bytes were read: forget that, so that they can be read again. */
void efs_pack_source_rewind(struct efs_pack_source *source);
/* Close a file that no read is under way of; the next read opens it again. */
void efs_pack_source_rest(struct efs_pack_source *source, uint32_t file);
/* bytes of a file will not be read: it is closed when all others were. Before reads begin. */
void efs_pack_source_skip(struct efs_pack_source *source, uint32_t file, uint64_t bytes);
/* -ESTALE when a file has another size or time than at efs_pack_source_open(). */
errint_t efs_pack_source_unchanged(struct efs_pack_source *source, struct efs_error *err);
/* Whether efs_pack_source_unchanged() found another inode number: it may be another file. */
bool efs_pack_source_renumbered(const struct efs_pack_source *source, uint32_t file);
/* -ESTALE, and the message. */
errint_t efs_pack_source_changed(const struct efs_pack_source *source, uint32_t file, struct efs_error *err);
/* Whether this file is one of the sources. */
bool efs_pack_source_has(const struct efs_pack_source *source, dev_t device, ino_t inode);
void efs_pack_source_close(struct efs_pack_source *source);
/*
 * Whether src may be packed into a store called out: a store below its own source would be packed the next time, and a
 * source must not be replaced by its store. source: src, open. -EINVAL, or what the system says.
 */
errint_t efs_pack_check_place(const char *src, const char *out, const struct efs_pack_source *source,
                              struct efs_error *err);

/*
 * Find files with the same bytes: all but one of them become copies, without tensors. Reads samples of the files that
 * have the size of another, and all of those that are equal there. Blocks. -ECANCELED, -EIO, ...
 */
errint_t efs_pack_find_copies(struct efs_catalog *catalog, struct efs_pack_source *source,
                              const struct efs_pack_options *options, struct efs_error *err);

/* ---- pipeline ----------------------------------------------------------------------------------------------- */

/* Memory of coded chunks, taken and given back in order. */
struct efs_pack_ring {
    uint8_t *base;
    uint64_t bytes, begin, end; /* begin, end: positions that only grow; the place is the position modulo bytes */
};
errint_t efs_pack_ring_init(struct efs_pack_ring *ring, size_t bytes);
void efs_pack_ring_free(struct efs_pack_ring *ring);
void efs_pack_ring_give(struct efs_pack_ring *ring, uint64_t end); /* as efs_pack_take() took it */

/* A run of shards (layout.h) on its way: its chunks' places in memory. */
struct efs_pack_run {
    struct efs_pack_run *next;
    uint32_t shard_first, shard_count;
    uint32_t left;     /* shards not yet coded */
    uint64_t ring_end; /* gives its memory back */
    struct efs_pack_slot {
        uint8_t *e, *sm;
    } slots[];
};

/* Exponent counts of objects whose shards are being coded. Thread-safe. */
struct efs_pack_tally;
struct efs_pack_tallies {
    pthread_mutex_t lock;              /* guards what the pointers lead to */
    struct efs_pack_tally **by_object; /* NULL: none under way */
    double *entropy_bits;              /* by object, all its elements together; 0 until all its shards were added */
};
/* What was counted of an object so far; false: nothing, or all of its shards were. */
bool efs_pack_tally_get(struct efs_pack_tallies *tallies, uint32_t object, uint64_t counts[256]);
/* Go on from there, with left shards to come. -ENOMEM. */
errint_t efs_pack_tally_set(struct efs_pack_tallies *tallies, uint32_t object, uint32_t left,
                            const uint64_t counts[256]);

/* Shards that one thread reads at once and codes: next to each other in one file, a few runs perhaps. */
#define EFS_PACK_BATCH_SHARDS 256
struct efs_pack_batch {
    uint32_t file, count;
    uint64_t begin, end; /* in the file */
    size_t bytes;        /* of the shards: less than end - begin where there are gaps */
    struct efs_pack_part {
        struct efs_pack_run *run;
        uint64_t offset; /* in the file */
        uint32_t object, shard;
    } parts[EFS_PACK_BATCH_SHARDS];
};

/* The next shard to be taken. */
struct efs_pack_cursor {
    uint32_t order, object, shard;
    struct efs_pack_run *run; /* that has begun and goes on with this shard, or NULL */
};

/* How far a packing is, between two calls of efs_pack_run(). */
struct efs_pack_state {
    struct efs_pack_cursor cursor;
    struct efs_pack_tallies tallies;
    uint64_t done_bytes; /* of the sources */
};

struct efs_pack_pipe {
    struct efs_pack_plan *plan;
    struct efs_pack_source *source;
    struct efs_store_writer *writer;
    struct efs_pack_tallies *tallies;
    size_t buffer_bytes;  /* of each thread's raw buffer */
    sem_t may_code;       /* threads that may begin to code now */
    uint64_t limit_bytes; /* no run begins when so many bytes of the sources were taken */
    pthread_mutex_t turn; /* guards cursor, taken_bytes, full; taken before lock */
    struct efs_pack_cursor cursor;
    uint64_t taken_bytes;
    bool full;                    /* the limit was reached */
    struct efs_parallel parallel; /* its lock guards all that follows */
    pthread_cond_t room;          /* the ring has room again, or stop */
    pthread_cond_t coded;         /* the first run is coded, or all were taken, or stop */
    struct efs_pack_ring ring;
    struct efs_pack_run *first, **last; /* runs in order of the disk */
    bool taken_all;
};

/* Place the cursor on the first shard. */
void efs_pack_cursor_begin(const struct efs_pack_plan *plan, struct efs_pack_cursor *cursor);
/* Move it to the next one; its run ends with the last shard of that. */
void efs_pack_cursor_step(const struct efs_pack_plan *plan, struct efs_pack_cursor *cursor);
static inline bool efs_pack_cursor_at_end(const struct efs_pack_plan *plan, const struct efs_pack_cursor *cursor)
{
    return cursor->order == plan->group_count;
}
/*
 * Take the next batch, with memory for the chunks of the runs that begin in it; waits for that. false: there is none,
 * or the pipe was stopped.
 */
bool efs_pack_take(struct efs_pack_pipe *pipe, struct efs_pack_batch *batch);

/* At the first shard. entropy_bits: plan->object_count doubles, of the caller. state is to be freed, also on error. */
errint_t efs_pack_state_begin(const struct efs_pack_plan *plan, double *entropy_bits, struct efs_pack_state *state);
void efs_pack_state_free(const struct efs_pack_plan *plan, struct efs_pack_state *state);
/*
 * Read, code and write shards from the state's cursor on: fills plan->shards and the state's entropy_bits. Runs begin
 * until limit_bytes bytes of the sources were taken (UINT64_MAX: all; at least one), and are finished. After an error
 * the state is of no use. Blocks.
 */
errint_t efs_pack_run(struct efs_pack_plan *plan, struct efs_pack_source *source, struct efs_store_writer *writer,
                      const struct efs_pack_options *options, struct efs_pack_state *state, uint64_t limit_bytes,
                      struct efs_error *err);
/* ---- end ---------------------------------------------------------------------------------------------------- */

/* Fill report's counts and rows; entropy_bits as efs_pack_run() left them. */
void efs_pack_report(const struct efs_pack_plan *plan, const double *entropy_bits, struct efs_pack_report *report);
/* The same as JSON, without times; to be freed. NULL: no memory. */
char *efs_pack_report_json(const struct efs_pack_report *report);
/* Append the tables and finish the file; fills report's store_bytes. */
errint_t efs_pack_index(const struct efs_pack_plan *plan, struct efs_store_writer *writer,
                        struct efs_pack_report *report, struct efs_error *err);
/* Decode every shard of the written store and compare it with its source. -EUCLEAN: they differ. */
errint_t efs_pack_verify(const struct efs_pack_plan *plan, struct efs_pack_source *source,
                         const struct efs_store_writer *writer, const struct efs_pack_options *options,
                         struct efs_error *err);
/* Compare a sample of the shards of each file whose inode number changed with what was packed. -ESTALE, -EIO, ... */
errint_t efs_pack_verify_renumbered(const struct efs_pack_plan *plan, struct efs_pack_source *source,
                                    struct efs_error *err);

#endif
