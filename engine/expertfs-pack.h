/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-pack.h - packs a checkpoint into a store, verifies a store, unpacks it. See expertfs.h.
 *
 * The calls block and start their own threads. Several may run at once, on different stores.
 */
#ifndef EXPERTFS_PACK_H
#define EXPERTFS_PACK_H

#include "expertfs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called on the thread that made the call, at most about ten times a second. Return true to cancel: the call then
 * returns -ECANCELED and leaves no files. */
typedef bool efs_progress_fn(void *arg, uint64_t done_bytes, uint64_t total_bytes, const char *phase);

struct stat;
struct efs_pack_report;

/* ---- packing ------------------------------------------------------------------------------------------------ */

enum efs_codec_choice { EFS_CHOOSE_AUTO, EFS_CHOOSE_CASCADE, EFS_CHOOSE_ZSTD, EFS_CHOOSE_LZ4, EFS_CHOOSE_RAW };

struct efs_pack_options {
    unsigned threads; /* 0: all cores */
    enum efs_codec_choice codec;
    uint32_t shard_elements; /* 0: the default */
    bool force;              /* replace an existing store */
    bool verify;             /* decode and compare all data before the store gets its name */
    efs_progress_fn *progress;
    void *progress_arg;
    uint64_t
        reclaim_step_bytes;     /* of `mkexpertfs --reclaim`: approximate source bytes per step; 0: by the free space */
    uint64_t small_reads_bytes; /* objects outside experts from this size on are packed for small reads; 0: 1 MiB;
                                   UINT64_MAX: none, and the store has version 2 */
    bool weights;               /* fail with -ENODATA if the source has no weights or lacks parts of them */
    /* NULL, or an extended regular expression that finds the tensors of experts before the names that are known: its
     * first group is the layer; its second one the expert, without which the first dimension counts experts. -EINVAL:
     * it is not one, or finds none. */
    const char *experts;
    /* NULL, or called at the end of a successful efs_pack() for each file of the store that was the same one all the
     * time, by what fstat(2) said before its bytes were read. */
    void (*packed)(void *arg, const struct efs_pack_report *report, uint32_t file, const struct stat *st);
    void *packed_arg;
};

/* One row of the final table: all tensors of a dtype in a class ("expert", "dense", "other"). */
struct efs_pack_row {
    char tensor_class[8];
    char dtype[16];
    uint64_t tensors, raw_bytes, coded_bytes; /* coded: chunks with their padding, page checksums */
    uint64_t elements;                        /* of formats with a coded exponent; else 0 */
    double exponent_bits, entropy_bits;       /* mean per element: as coded; entropy with one table per tensor */
    double bound_bytes;                       /* bytes at the entropy bound, per tensor */
};

#define EFS_PACK_ROWS 96
struct efs_pack_report {
    uint64_t source_bytes, store_bytes, files, experts, tensors, content_hash;
    double seconds;
    char family[64];    /* the model's architecture, or how its experts are named */
    char warning[1024]; /* "" or lines for the user: no experts were found */
    char notice[8192];  /* "" or lines for the user: files that are not understood, ... */
    unsigned row_count;
    struct efs_pack_row rows[EFS_PACK_ROWS];
};

/*
 * Pack src (directory or file) into the store out, which gets its name when it is complete and synced; a failed or
 * cancelled run leaves no file. Takes at most 512 MiB of memory. The bytes of the store depend only on source, codec
 * and shard size.
 */
EFS_API errint_t efs_pack(const char *src, const char *out, const struct efs_pack_options *options,
                          struct efs_pack_report *report, struct efs_error *err);

/* ---- checking and unpacking ---------------------------------------------------------------------------------- */

/*
 * Read all chunks and compare their checksums; with decode also decode them and compare the checksums of the raw bytes.
 * Each damaged chunk is counted and passed to damage as a line (file, tensor, offset, chunk). 0; -EUCLEAN: damage was
 * found; -EIO, -ECANCELED, ...
 */
typedef void efs_damage_fn(void *arg, const char *line);
EFS_API errint_t efs_store_verify(struct efs_store *store, bool decode, unsigned threads, efs_progress_fn *progress,
                                  efs_damage_fn *damage, void *arg, uint64_t *damaged_chunks, struct efs_error *err);

/* Restore all files below directory, which is made if missing. Existing files are refused unless force is set. A file
 * gets its name when it is complete. */
EFS_API errint_t efs_store_unpack(struct efs_store *store, const char *directory, bool force, unsigned threads,
                                  efs_progress_fn *progress, void *arg, struct efs_error *err);

#ifdef __cplusplus
}
#endif
#endif
