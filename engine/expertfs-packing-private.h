/* SPDX-License-Identifier: Apache-2.0 */
/* expertfs-packing-private.h - calls for packing, in addition to expertfs-pack.h; as expertfs-private.h. */
#ifndef EXPERTFS_PACKING_PRIVATE_H
#define EXPERTFS_PACKING_PRIVATE_H

#include "expertfs-pack.h"

/*
 * Pack src into out in place of src, for a disk that cannot hold both. Each step codes some bytes, syncs them, reads
 * them back from disk and compares them, records the step in a journal, and frees the bytes in the source files by
 * punching holes. The folder OUT.reclaim has the intermediate files. At any time source and folder together have all
 * bytes, also after a crash of the process or the machine. At the end out gets its name, and source and folder are
 * removed. The store has the same bytes as one of efs_pack().
 *
 * Refused before anything changes: links in the source (-ELOOP, -EMLINK), files that another process has open (-EBUSY,
 * where the system reports it), a source on another filesystem than out (-EXDEV), a filesystem that cannot punch holes
 * (-EOPNOTSUPP), too little space (-ENOSPC), an existing out or OUT.reclaim (-EEXIST, also with options->force). No
 * other process may write to the source; -ESTALE if a change is detected. After an error or cancellation (-ECANCELED)
 * before the first bytes are freed no files are left; after it OUT.reclaim stays, see efs_reclaim_unfinished(). Blocks;
 * takes at most 512 MiB.
 */
errint_t efs_reclaim(const char *src, const char *out, const struct efs_pack_options *options,
                     struct efs_pack_report *report, struct efs_error *err);
struct efs_reclaim_need {
    uint64_t source_bytes, files;
    uint64_t free_bytes; /* on the disk now */
    uint64_t need_bytes; /* maximum in use in addition to the source, if coding saves nothing */
};
/* The checks of efs_reclaim() before it starts; changes nothing. need is valid when 0 is returned. */
errint_t efs_reclaim_check_start(const char *src, const char *out, const struct efs_pack_options *options,
                                 struct efs_reclaim_need *need, struct efs_error *err);
/*
 * Continue an interrupted efs_reclaim(). src: the present path of the source; NULL: its former one. Of options only
 * threads and progress are used; codec and shard size are those of the first run. -ENOENT, -ENODATA: nothing to
 * continue; -ESTALE: a source file was changed; -EWOULDBLOCK: another process works on it.
 */
errint_t efs_reclaim_resume(const char *src, const char *out, const struct efs_pack_options *options,
                            struct efs_pack_report *report, struct efs_error *err);
/* Undo: write the freed bytes into the source files again, from the last step to the first, and remove OUT.reclaim.
 * Needs the disk space that was freed. After an interruption call it or efs_reclaim_resume(). Errors as above. */
errint_t efs_reclaim_undo(const char *src, const char *out, const struct efs_pack_options *options,
                          struct efs_error *err);
/* Whether out has an OUT.reclaim. */
bool efs_reclaim_unfinished(const char *out);

struct efs_catalog;
/* Reads the catalog of a source, which the caller frees, and makes the checks of efs_pack() with options->weights that
 * do not read weights: fails if weights or parts of them are missing, or present twice; of one part of a split model,
 * with the parts next to it. -ENODATA, -EUCLEAN, -ENOENT, ... */
errint_t efs_pack_check(const char *src, struct efs_catalog *catalog, struct efs_error *err);
/* Whether src, a directory or a file, has the names, sizes and bytes of all files that were packed into the store.
 * Reads src up to the first difference; blocks. progress may be NULL. 0; -ESTALE: it has not, and err names the file;
 * -EINVAL: the store is not packed; -ECANCELED; -errno. */
errint_t efs_pack_compare(const char *src, const struct efs_store *store, efs_progress_fn *progress, void *progress_arg,
                          struct efs_error *err);
/* If no experts were found, a warning with the names of the largest tensors and a hint; else "". done: "packed" or
 * "served". Any thread; writes only text, at most room bytes. */
void efs_pack_warn_dense(const struct efs_catalog *catalog, const char *done, char *text, size_t room);
/*
 * Copies a store as it is: a file to rados:POOL/NAME, or a store at an address to a file. It appears when it is
 * complete. force: replaces the file, or the store in the pool. *bytes: of the store. Blocks. -EINVAL, -EEXIST,
 * -ECANCELED, -errno.
 */
errint_t efs_store_copy(const char *from, const char *to, bool force, efs_progress_fn *progress, void *arg,
                        uint64_t *bytes, struct efs_error *err);
/* Whether a store can be copied to rados:POOL/NAME: 0 if nothing has that name or, with force, a store; -EEXIST;
 * -errno. Blocks. */
errint_t efs_rados_check_copy(const char *address, bool force, struct efs_error *err);
/* Bytes of a store in a pool, or of what a copy that was killed has left. Blocks. */
errint_t efs_rados_bytes(const char *address, bool unfinished, uint64_t *bytes, struct efs_error *err);
/* Deletes it. *bytes: as before; 0: only the record of a copy that had ended was left. Blocks. */
errint_t efs_rados_remove(const char *address, bool unfinished, uint64_t *bytes, struct efs_error *err);
/* Packing is worth its time if it saves this part of the bytes; otherwise the files are served in place. */
#define EFS_PACK_WORTH 0.03
/* Ratio of coded to plain bytes that was measured on trained weights of this type; 1 if they are stored as they are. */
double efs_pack_ratio(enum efs_dtype dtype);
/* By these ratios, the part of the bytes of src that packing would save; reads headers only. -ENOENT: it has no
 * experts. */
errint_t efs_pack_estimate(const char *src, double *saved, struct efs_error *err);
/* Whether OUT.reclaim of an interrupted efs_reclaim() has bytes that were freed in src. */
bool efs_reclaim_is_of(const char *out, const char *src);

#endif
