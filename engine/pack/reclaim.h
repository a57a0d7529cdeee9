/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim.h - packing in the place of the source: a step is coded, synced, read back, compared and told to the journal,
 * then its bytes are freed in the source files.
 *
 *   reclaim.c           efs_reclaim() and its kin: the order of the work
 *   reclaim_begin.c     what is looked at before anything is done, how much room it takes
 *   reclaim_files.c     source files, opened and put back; walks over shards
 *   reclaim_step.c      one step forward, one back
 *   reclaim_end.c       the store gets its name, the sources go
 *   reclaim_journal.c   records that outlive a crash
 *
 * Beside OUT lies the folder OUT.reclaim with two files: `store`, which becomes OUT, and `journal`. At every moment
 * each byte of the sources is in its source file or in the part of `store` that the journal tells of, or in both.
 * Source files keep their names, sizes and times until the store has its name; what was freed in them are holes.
 */
#ifndef EFS_RECLAIM_H
#define EFS_RECLAIM_H

#include "expertfs-private.h"
#include "pack.h"

#include <time.h>

#define EFS_RECLAIM_SUFFIX ".reclaim"
#define EFS_RECLAIM_STORE "store"
#define EFS_RECLAIM_JOURNAL "journal"
#define EFS_RECLAIM_STEP_BYTES (256u << 20) /* of the sources in one step, where there is room for that */

/* ---- bytes -------------------------------------------------------------------------------------------------- */

/* Bytes that grow, or that are read from `at` on. */
struct efs_bytes {
    uint8_t *data; /* freed by its owner */
    size_t count, capacity, at;
    bool bad; /* no memory to grow, or read past the end: everything after that is void */
};

/* ---- the job ------------------------------------------------------------------------------------------------ */

/* A source file as it was at the start. */
struct efs_reclaim_file {
    uint64_t inode;
    struct timespec mtime;
    bool whole;   /* it had no holes */
    bool touched; /* by the step at hand */
};

/* Shards from one cursor to another, and where their chunks are in the store. Both cursors are between two runs. */
struct efs_reclaim_step {
    struct efs_pack_cursor begin, end;
    uint64_t store_begin, store_end;
    struct efs_bytes record; /* only while the journal is read */
};

struct efs_reclaim {
    struct efs_pack_options options;
    uint64_t step_bytes;  /* of the sources, about */
    char *out, *folder;   /* paths as messages name them */
    char *root;           /* of the sources, as it is now */
    bool whole_directory; /* the source is a directory, not one file */
    char *name;           /* of the store: the last part of out */
    int parent, dir;      /* the directory of OUT, the folder */
    int root_dir;
    int journal;
    uint64_t journal_bytes, journal_records; /* that are well */
    bool journal_unsure;                     /* whether the last record reached the disk is not known */
    struct efs_catalog catalog;
    struct efs_reclaim_file *files; /* of the catalogue */
    struct efs_pack_plan plan;
    struct efs_pack_source *source;
    struct efs_store_writer writer;
    struct efs_pack_state state;
    bool has_state;
    double *entropy_bits;
    struct efs_reclaim_step *steps; /* done */
    size_t step_count, step_capacity;
    uint64_t *stored; /* bytes of each object that the journal tells of, from its first on */
    uint64_t *freed;  /* of these, freed in the source or found to be */
};

/* ---- shards ------------------------------------------------------------------------------------------------- */

/* Whether the shard at the cursor is before the end of the step. Shards of a step, in order of the disk:
 *
 *     for (struct efs_pack_cursor at = step->begin; efs_reclaim_in_step(plan, step, &at); efs_pack_cursor_step(plan,
 * &at))
 */
bool efs_reclaim_in_step(const struct efs_pack_plan *plan, const struct efs_reclaim_step *step,
                         const struct efs_pack_cursor *at);
/* Moves a cursor over one run, as packing would at most make it; adds what the run has to *raw_bytes, and returns what
 * it may take. */
uint64_t efs_reclaim_run_most(const struct efs_pack_plan *plan, struct efs_pack_cursor *at, uint64_t *raw_bytes);
/* The shards of a step are in the store. */
void efs_reclaim_add_stored(struct efs_reclaim *r, const struct efs_reclaim_step *step);
/* Raw bytes of a shard. */
size_t efs_reclaim_shard_bytes(const struct efs_pack_plan *plan, uint32_t object, uint32_t shard);
/* Marks the files that a step has bytes of; the others are not. */
void efs_reclaim_touch(struct efs_reclaim *r, const struct efs_reclaim_step *step);

enum efs_reclaim_check {
    EFS_RECLAIM_COMPARE,  /* the store's chunks, read back from the disk, against the sources */
    EFS_RECLAIM_STORED,   /* the store's chunks against their checksums */
    EFS_RECLAIM_REFILL,   /* the same, and their bytes written to the sources */
    EFS_RECLAIM_REFILLED, /* the sources, read back from the disk, against the checksums */
};
/* Blocks. -EUCLEAN: something differs; -EIO, -ENOSPC, ... */
errint_t efs_reclaim_shards(struct efs_reclaim *r, const struct efs_reclaim_step *step, enum efs_reclaim_check check,
                            struct efs_error *err);

/* ---- journal ------------------------------------------------------------------------------------------------ */

enum efs_reclaim_record { EFS_RECLAIM_BEGIN = 1, EFS_RECLAIM_STEP, EFS_RECLAIM_UNDONE };

/* Append a record, synced. */
errint_t efs_reclaim_journal_add(struct efs_reclaim *r, enum efs_reclaim_record type, const struct efs_bytes *payload,
                                 struct efs_error *err);
/*
 * Read the open journal: each record in turn to `each`, which takes payload->data. A last record that was cut short is
 * left out; one before it that is damaged is -EUCLEAN. Fills journal_bytes and journal_records.
 */
typedef errint_t efs_reclaim_record_fn(struct efs_reclaim *r, enum efs_reclaim_record type, struct efs_bytes *payload,
                                       struct efs_error *err);

/* The payload of EFS_RECLAIM_BEGIN: catalogue, files, options, and a checksum of the plan. */
void efs_reclaim_put_begin(const struct efs_reclaim *r, struct efs_bytes *bytes);
/* The payload of EFS_RECLAIM_STEP, of the step that ends at the state's cursor. */
void efs_reclaim_put_step(struct efs_reclaim *r, const struct efs_reclaim_step *step, struct efs_bytes *bytes);
/* The journal's whole content into r: catalogue, plan, state, steps. -ENODATA: it tells of no beginning. */
errint_t efs_reclaim_load(struct efs_reclaim *r, struct efs_error *err);

/* ---- the parts of the work ---------------------------------------------------------------------------------- */

/* Catalogue, plan and state of src, with all checks that need no folder. Fills need. */
errint_t efs_reclaim_prepare(struct efs_reclaim *r, const char *src, struct efs_reclaim_need *need,
                             struct efs_error *err);
/* Plan and state from the catalogue. */
errint_t efs_reclaim_plan(struct efs_reclaim *r, struct efs_error *err);
/* The source files are those of the catalogue: names, inodes, sizes, and times but for those of files that are touched.
 * -ESTALE. */
errint_t efs_reclaim_check_files(struct efs_reclaim *r, struct efs_error *err);
/* No file that had no holes has one where nothing was stored: then a step is missing in the journal. -EUCLEAN. */
errint_t efs_reclaim_check_rest(struct efs_reclaim *r, struct efs_error *err);
/* Whether the files can be written to, are named once, and are nobody else's at the moment. */
errint_t efs_reclaim_check_alone(struct efs_reclaim *r, struct efs_error *err);
/* The file open with flags, if it is still the catalogue's; any_time: its time may have changed. Else -errno, told. */
int efs_reclaim_open(const struct efs_reclaim *r, uint32_t file, int flags, bool any_time, struct efs_error *err);
/* Put its time back and sync it. Closes fd. */
errint_t efs_reclaim_settle(const struct efs_reclaim *r, uint32_t file, int fd, struct efs_error *err);

/* One step forward. -ENOSPC: not begun, for want of room, or taken back. */
errint_t efs_reclaim_forward(struct efs_reclaim *r, struct efs_error *err);
/* Free what is stored in the files that are touched. again: an earlier run may have been in the midst of them, so the
 * times of all of them are put back. */
errint_t efs_reclaim_free(struct efs_reclaim *r, bool again, struct efs_error *err);
/* The bytes that efs_reclaim_free() would free now in all files, where r->stored stands for what is in the store. */
uint64_t efs_reclaim_would_free(struct efs_reclaim *r, uint32_t block_bytes);
/* Undo the last step. */
errint_t efs_reclaim_back(struct efs_reclaim *r, struct efs_error *err);
/* Index, superblock, name; then the sources and the folder are removed. */
errint_t efs_reclaim_name(struct efs_reclaim *r, struct efs_pack_report *report, struct efs_error *err);
errint_t efs_reclaim_remove_sources(struct efs_reclaim *r, struct efs_error *err);
/* Remove the folder and what we made in it. */
errint_t efs_reclaim_remove_folder(struct efs_reclaim *r, struct efs_error *err);

/* What of the free bytes of a disk is left for use by us, after what the index and the journal will take. */
errint_t efs_reclaim_room(const struct efs_reclaim *r, uint64_t *bytes, uint64_t *free_bytes, uint32_t *block,
                          struct efs_error *err);
/* As efs_fail(): "FOLDER/NAME: cannot WHAT: why", why being what rc says. */
errint_t efs_reclaim_fail(const struct efs_reclaim *r, errint_t rc, const char *name, const char *what,
                          struct efs_error *err);

#endif
