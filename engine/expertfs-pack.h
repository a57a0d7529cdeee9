/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertfs-pack.h - make a store of a checkpoint, check it, and get the checkpoint back. See expertfs.h.
 *
 * Each call works by itself, on as many threads as it is told: several may run at once, on different stores.
 */
#ifndef EXPERTFS_PACK_H
#define EXPERTFS_PACK_H

#include "expertfs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- long work ---------------------------------------------------------------------------------------------- */

/* Called from the calling thread now and then, at most some ten times a second, while packing, verifying or
 * unpacking. Return true to cancel: the call then returns -ECANCELED and leaves nothing behind. */
typedef bool efs_progress_fn(void *arg, uint64_t done_bytes, uint64_t total_bytes, const char *phase);

/* ---- packing ------------------------------------------------------------------------------------------------ */

enum efs_codec_choice { EFS_CHOOSE_AUTO, EFS_CHOOSE_CASCADE, EFS_CHOOSE_ZSTD, EFS_CHOOSE_LZ4, EFS_CHOOSE_RAW };
/* "auto", "raw", or what efs_codec_name() says. -EINVAL: none of these. */
EFS_API errint_t efs_codec_choose(const char *name, enum efs_codec_choice *choice);

struct efs_pack_options {
    unsigned threads; /* 0: all cores */
    enum efs_codec_choice codec;
    uint32_t shard_elements; /* 0: the default */
    bool force;              /* replace an existing store */
    bool verify;             /* decode and compare everything before the store gets its name */
    efs_progress_fn *progress;
    void *progress_arg;
    uint64_t reclaim_step_bytes; /* efs_reclaim(): bytes of the source in a step, about; 0: as there is room */
    bool weights; /* refuse a source without weights or some of its parts, or with some twice, -ENODATA */
};

/* One row of the closing table: all tensors of a dtype in a class ("expert", "dense", "other"). */
struct efs_pack_row {
    char tensor_class[8];
    char dtype[16];
    uint64_t tensors, raw_bytes, coded_bytes; /* coded: E and SM chunks with their padding */
    uint64_t elements;                        /* of formats with a coded exponent; else 0 */
    double exponent_bits, entropy_bits;       /* mean per element: as coded, and the entropy of one table a tensor */
    double bound_bytes;                       /* bytes at the entropy bound, per tensor */
};

#define EFS_PACK_ROWS 96
struct efs_pack_report {
    uint64_t source_bytes, store_bytes, files, experts, tensors;
    double seconds;
    char family[32];
    char
        notice[8192]; /* "" or lines of what the user should know: unknown family, files that are not understood, ... */
    unsigned row_count;
    struct efs_pack_row rows[EFS_PACK_ROWS];
};

/*
 * Pack src (directory or file) into the store out. The store appears under its name only when complete and synced; a
 * failed or cancelled run leaves nothing. Blocks; uses at most 512 MiB whatever the model's size. The bytes depend on
 * the source, codec and shard size alone.
 */
EFS_API errint_t efs_pack(const char *src, const char *out, const struct efs_pack_options *options,
                          struct efs_pack_report *report, struct efs_error *err);

/*
 * Pack src into out in the place of src, for a disk that cannot hold both: step by step, a step's bytes are coded,
 * synced, read back from the disk and compared, told to a journal, and freed in the source files (holes are punched).
 * The work lies in the folder OUT.reclaim. At every moment all bytes are in the source and that folder together,
 * whatever ends the process or the machine. At the end out appears, and the source and the folder are removed.
 *
 * Refused, before anything is done: links among the source (-ELOOP, -EMLINK), files that others have open (-EBUSY,
 * where the system tells), another filesystem than that of out (-EXDEV), one that cannot punch holes (-EOPNOTSUPP), too
 * little room (-ENOSPC), an out or OUT.reclaim that exists (-EEXIST; options->force counts for nothing here). Nothing
 * else may write to the source meanwhile; -ESTALE where that is noticed. An error or cancelling (-ECANCELED) before the
 * first step was freed leaves nothing behind; later OUT.reclaim stays, see efs_reclaim_unfinished(). Blocks; uses at
 * most 512 MiB. The store has the bytes that efs_pack() would give it.
 */
EFS_API errint_t efs_reclaim(const char *src, const char *out, const struct efs_pack_options *options,
                             struct efs_pack_report *report, struct efs_error *err);
struct efs_reclaim_need {
    uint64_t source_bytes, files;
    uint64_t free_bytes; /* on the disk now */
    uint64_t need_bytes; /* that may be taken at a time beside the source, if coding saved nothing */
};
/* What efs_reclaim() looks at before it begins; nothing is changed. need is filled when 0 is returned. */
EFS_API errint_t efs_reclaim_look(const char *src, const char *out, const struct efs_pack_options *options,
                                  struct efs_reclaim_need *need, struct efs_error *err);
/*
 * Go on with what was interrupted. src: where the source is now, NULL: where it was. Codec and shard size are those
 * that it began with; threads and progress count. -ENOENT, -ENODATA: nothing is left to be done; -ESTALE: a source file
 * was changed; -EWOULDBLOCK: another process is at it.
 */
EFS_API errint_t efs_reclaim_resume(const char *src, const char *out, const struct efs_pack_options *options,
                                    struct efs_pack_report *report, struct efs_error *err);
/* Go back: write what was freed into the source files again, from the last step to the first, and remove OUT.reclaim.
 * It needs the room that the freeing made. Can be interrupted and called again, or resumed forward. Errors as above. */
EFS_API errint_t efs_reclaim_undo(const char *src, const char *out, const struct efs_pack_options *options,
                                  struct efs_error *err);
/* Whether out has an OUT.reclaim. */
EFS_API bool efs_reclaim_unfinished(const char *out);

/* ---- checking and unpacking ---------------------------------------------------------------------------------- */

/*
 * Read every chunk and check its checksum; decode it and check the raw checksum too if decode is set. Damage is told
 * to the callback (one line each: file, tensor, offset, chunk) and counted; the call goes on. 0 when all is well,
 * -EUCLEAN when damage was found, -EIO, -ECANCELED, ...
 */
typedef void efs_damage_fn(void *arg, const char *line);
EFS_API errint_t efs_store_verify(struct efs_store *store, bool decode, unsigned threads, efs_progress_fn *progress,
                                  efs_damage_fn *damage, void *arg, uint64_t *damaged_chunks, struct efs_error *err);

/* Restore all files below directory (made if missing; existing files are refused unless force). A file appears under
 * its name when it is complete. */
EFS_API errint_t efs_store_unpack(struct efs_store *store, const char *directory, bool force, unsigned threads,
                                  efs_progress_fn *progress, void *arg, struct efs_error *err);

#ifdef __cplusplus
}
#endif
#endif
