/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mkexpertfs.h - declarations shared by the files of mkexpertfs.
 *
 * mkexpertfs/ is the command that packs a checkpoint: command line, confirmation, report. Users run it; no other
 * program includes its headers. It never opens a checkpoint or a store itself: pack/ of the engine does.
 */
#ifndef MKEXPERTFS_H
#define MKEXPERTFS_H

#include "expertfs-pack.h"

/* Packing in place of the source: --reclaim, --resume, --undo or none of them; and the options of --reclaim. */
enum reclaim_mode { RECLAIM_NONE, RECLAIM_BEGIN, RECLAIM_RESUME, RECLAIM_UNDO };
struct reclaim {
    enum reclaim_mode mode;
    bool yes, dry_run;
};
/*
 * Packs src in place, resumes that, or undoes it. RECLAIM_BEGIN without `yes` asks for confirmation on the terminal.
 * src may be NULL except for RECLAIM_BEGIN. *done: *report is filled in. 0 or -errno with err; -ECANCELED: the user did
 * not confirm, or a signal.
 */
errint_t reclaim_run(const struct reclaim *reclaim, const char *src, const char *out,
                     const struct efs_pack_options *options, struct efs_pack_report *report, bool *done,
                     struct efs_error *err);
/* Prints the files that an unfinished --reclaim left, and the commands that continue. */
void print_unfinished(const char *out);

/* Packs src into a store in a pool of Ceph; needs room for the store in TMPDIR. -EINVAL: out is another address;
 * -EEXIST; the errors of efs_pack() and efs_store_copy(). */
errint_t pack_to_pool(const char *src, const char *out, const struct efs_pack_options *options,
                      struct efs_pack_report *report, struct efs_error *err);

/* Prints the final table and lines with sizes and speed on stdout. */
void print_report(const struct efs_pack_report *report, const char *out);
/* The same as one JSON object. false: no memory. */
bool print_report_json(const struct efs_pack_report *report, const char *out);

#endif
