/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim.h - packing in place (--reclaim). A step of shards is encoded, synced, read back, compared and recorded in
 * the journal; then its bytes are freed in the source files.
 *
 *   reclaim.c           efs_reclaim(), efs_reclaim_resume(), efs_reclaim_undo(): the sequence of steps
 *   reclaim_check.c     checks before the start, disk space needed
 *   reclaim_files.c     opens and restores source files; iterates over shards
 *   reclaim_step.c      one step forward, one step back
 *   reclaim_commit.c    names the store, removes the sources
 *   reclaim_journal.c   records that survive a crash
 *
 * The directory OUT.reclaim next to OUT contains two files: `store`, which becomes OUT, and `journal`. At any time,
 * each byte of the sources is in its source file, or in the part of `store` that the journal covers, or in both. Source
 * files keep their names, sizes and times until the store has its name; freed ranges are holes.
 */
#ifndef EFS_RECLAIM_H
#define EFS_RECLAIM_H

#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "pack.h"

#include <time.h>

#define EFS_RECLAIM_SUFFIX ".reclaim"
#define EFS_RECLAIM_STORE "store"
#define EFS_RECLAIM_JOURNAL "journal"
#define EFS_RECLAIM_STEP_BYTES (256u << 20) /* source bytes of one step, if the disk has enough room */

/* ---- bytes -------------------------------------------------------------------------------------------------- */

/* A growing buffer, or bytes that are read from `at` on. */
struct efs_bytes {
    uint8_t *data; /* the owner frees it */
    size_t count, capacity, at;
    bool bad; /* out of memory, or read past the end: later operations do nothing */
};

/* ---- the job ------------------------------------------------------------------------------------------------ */

/* State of a source file at the start. */
struct efs_reclaim_file {
    uint64_t inode;
    struct timespec mtime;
    bool whole;   /* had no holes */
    bool touched; /* has bytes of the current step */
};

/* Shards from one cursor to another, and the range of their chunks in the store. Both cursors are at run boundaries. */
struct efs_reclaim_step {
    struct efs_pack_cursor begin, end;
    uint64_t store_begin, store_end;
    struct efs_bytes record; /* used only while the journal is read */
};

struct efs_reclaim {
    struct efs_pack_options options;
    uint64_t step_bytes;  /* approximate source bytes per step */
    char *out, *folder;   /* paths, for messages */
    char *root;           /* of the sources; the current path */
    bool whole_directory; /* the source is a directory, not one file */
    char *name;           /* of the store: the last component of out */
    int parent, dir;      /* the directory of OUT; OUT.reclaim */
    int root_dir;
    int journal;
    uint64_t journal_bytes, journal_records; /* of valid records */
    bool journal_unsure;                     /* the last record may or may not be on disk */
    struct efs_catalog catalog;
    struct efs_reclaim_file *files; /* one per file of the catalogue */
    struct efs_index plan;
    struct efs_pack_source *source;
    struct efs_store_writer writer;
    struct efs_pack_state state;
    bool has_state;
    double *entropy_bits;
    struct efs_reclaim_step *steps; /* steps in the journal */
    size_t step_count, step_capacity;
    uint64_t *stored; /* for each object, bytes from its start that the journal covers */
    uint64_t *freed;  /* of those, bytes freed in the source, or found to be */
};

/* ---- shards ------------------------------------------------------------------------------------------------- */

/*
 * Whether the shard at the cursor is before the end of the step. Iteration over the shards of a step, in disk order:
 *
 *     for (struct efs_pack_cursor at = step->begin; efs_reclaim_in_step(plan, step, &at);
 *          efs_pack_cursor_step(plan, &at))
 */
bool efs_reclaim_in_step(const struct efs_index *plan, const struct efs_reclaim_step *step,
                         const struct efs_pack_cursor *at);
/* Moves a cursor over one run of the largest size that packing makes; adds the run's raw bytes to *raw_bytes, and
 * returns an upper bound of its bytes in the store. */
uint64_t efs_reclaim_run_most(const struct efs_index *plan, struct efs_pack_cursor *at, uint64_t *raw_bytes);
/* Adds the shards of a step to r->stored. */
void efs_reclaim_add_stored(struct efs_reclaim *r, const struct efs_reclaim_step *step);
/* Raw bytes of a shard. */
size_t efs_reclaim_shard_bytes(const struct efs_index *plan, uint32_t object, uint32_t shard);
/* Sets `touched` of the files that have bytes of a step, and clears it for all other files. */
void efs_reclaim_mark_touched(struct efs_reclaim *r, const struct efs_reclaim_step *step);

enum efs_reclaim_check {
    EFS_RECLAIM_COMPARE,  /* compare the store's chunks, read back from disk, with the sources */
    EFS_RECLAIM_STORED,   /* check the store's chunks against their checksums */
    EFS_RECLAIM_REFILL,   /* the same, and write the decoded bytes to the sources */
    EFS_RECLAIM_REFILLED, /* check the sources, read back from disk, against the checksums */
};
/* Performs a check for all shards of a step. Blocks. -EUCLEAN: a difference; -EIO, -ENOSPC, ... */
errint_t efs_reclaim_shards(struct efs_reclaim *r, const struct efs_reclaim_step *step, enum efs_reclaim_check check,
                            struct efs_error *err);

/* ---- journal ------------------------------------------------------------------------------------------------ */

enum efs_reclaim_record { EFS_RECLAIM_BEGIN = 1, EFS_RECLAIM_STEP, EFS_RECLAIM_UNDONE };

/* Appends a record and syncs it. */
errint_t efs_reclaim_journal_add(struct efs_reclaim *r, enum efs_reclaim_record type, const struct efs_bytes *payload,
                                 struct efs_error *err);
/*
 * Called for each record of the open journal, in order; may take payload->data. The reader ignores an incomplete last
 * record; a damaged earlier record is -EUCLEAN. It sets journal_bytes and journal_records.
 */
typedef errint_t efs_reclaim_record_fn(struct efs_reclaim *r, enum efs_reclaim_record type, struct efs_bytes *payload,
                                       struct efs_error *err);

/* Writes the payload of EFS_RECLAIM_BEGIN: catalogue, files, options, and a checksum of the plan. */
void efs_reclaim_put_begin(const struct efs_reclaim *r, struct efs_bytes *bytes);
/* Writes the payload of EFS_RECLAIM_STEP for the step that ends at the state's cursor. */
void efs_reclaim_put_step(struct efs_reclaim *r, const struct efs_reclaim_step *step, struct efs_bytes *bytes);
/* Loads the journal into r: catalogue, plan, state, steps. -ENODATA: it has no EFS_RECLAIM_BEGIN record. */
errint_t efs_reclaim_load(struct efs_reclaim *r, struct efs_error *err);

/* ---- the parts of the work ---------------------------------------------------------------------------------- */

/* Reads the catalogue of src, makes plan and state, and performs all checks that do not need the directory
 * OUT.reclaim. Fills need. */
errint_t efs_reclaim_prepare(struct efs_reclaim *r, const char *src, struct efs_reclaim_need *need,
                             struct efs_error *err);
/* Makes plan and state from the catalogue. */
errint_t efs_reclaim_plan(struct efs_reclaim *r, struct efs_error *err);
/* Checks that the source files are those of the catalogue: names, inodes, sizes, and times except those of touched
 * files. 0 or -ESTALE. */
errint_t efs_reclaim_check_files(struct efs_reclaim *r, struct efs_error *err);
/* Checks that files that had no holes still have none outside of the stored bytes; a hole there means that the
 * journal lacks a step. 0 or -EUCLEAN. */
errint_t efs_reclaim_check_unstored(struct efs_reclaim *r, struct efs_error *err);
/* Checks that the files are writable and that no other process has them open or mapped. 0, -EBUSY or -errno. */
errint_t efs_reclaim_check_exclusive(struct efs_reclaim *r, struct efs_error *err);
/* Opens a file if it is still the catalogue's. any_time: its modification time may have changed. Returns the
 * descriptor, or -errno with the message in err. */
int efs_reclaim_open(const struct efs_reclaim *r, uint32_t file, int flags, bool any_time, struct efs_error *err);
/* -EMLINK if the file has more than one name (st_nlink), all of which would lose its bytes. */
errint_t efs_reclaim_check_names(const struct efs_reclaim *r, uint32_t file, unsigned long names,
                                 struct efs_error *err);
/* Restores the file's modification time and syncs the file. Closes fd. */
errint_t efs_reclaim_finish_file(const struct efs_reclaim *r, uint32_t file, int fd, struct efs_error *err);

/* One step forward. -ENOSPC: not enough disk space; no source byte was freed by it. */
errint_t efs_reclaim_step_forward(struct efs_reclaim *r, struct efs_error *err);
/* Frees the stored ranges in the touched files. again: an earlier run may have been interrupted while freeing, so
 * the times of all touched files are restored. */
errint_t efs_reclaim_free(struct efs_reclaim *r, bool again, struct efs_error *err);
/* The bytes that efs_reclaim_free() would free now in the touched files, according to r->stored. Marks them as freed
 * in r->freed. */
uint64_t efs_reclaim_would_free(struct efs_reclaim *r, uint32_t block_bytes);
/* Undoes the last step. */
errint_t efs_reclaim_step_back(struct efs_reclaim *r, struct efs_error *err);
/* Writes index and superblock and names the store; then removes the sources and the directory. */
errint_t efs_reclaim_name_store(struct efs_reclaim *r, struct efs_pack_report *report, struct efs_error *err);
errint_t efs_reclaim_remove_sources(struct efs_reclaim *r, struct efs_error *err);
/* Removes the directory OUT.reclaim and its files. */
errint_t efs_reclaim_remove_folder(struct efs_reclaim *r, struct efs_error *err);

/* *bytes: free bytes of the disk less those that the index and the journal will need. *free_bytes: all free bytes;
 * *block: the allocation unit. */
errint_t efs_reclaim_free_space(const struct efs_reclaim *r, uint64_t *bytes, uint64_t *free_bytes, uint32_t *block,
                                struct efs_error *err);
/* As efs_fail(): "FOLDER/NAME: cannot WHAT: reason", with the reason for rc. */
errint_t efs_reclaim_fail(const struct efs_reclaim *r, errint_t rc, const char *name, const char *what,
                          struct efs_error *err);

#endif
