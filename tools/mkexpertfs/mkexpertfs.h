/* SPDX-License-Identifier: Apache-2.0 */
/* mkexpertfs.h - what the parts of mkexpertfs share. */
#ifndef MKEXPERTFS_H
#define MKEXPERTFS_H

#include "expertfs-pack.h"

/* What to do with the source, and the words of the command line. */
enum reclaim_mode { RECLAIM_NONE, RECLAIM_BEGIN, RECLAIM_RESUME, RECLAIM_UNDO };
struct reclaim {
    enum reclaim_mode mode;
    bool yes, dry_run;
};
/*
 * Pack src in its own place, go on with that, or go back; asks the user first where that destroys the source. src may
 * be NULL except for RECLAIM_BEGIN. *done: report has what was packed. 0, -errno with err, or -ECANCELED: the user said
 * no.
 */
errint_t reclaim_run(const struct reclaim *reclaim, const char *src, const char *out,
                     const struct efs_pack_options *options, struct efs_pack_report *report, bool *done,
                     struct efs_error *err);
/* Prints the files that an unfinished --reclaim left, and the commands that continue. */
void reclaim_tell_left(const char *out);

/* The closing table, and a line of sizes and speed, on stdout. */
void print_report(const struct efs_pack_report *report, const char *out);
/* The same as one JSON object. false: no memory. */
bool print_report_json(const struct efs_pack_report *report, const char *out);

#endif
