/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outdir.h - files appear in a directory all at once or not at all: they are made in a directory beside it.
 */
#ifndef MKMODEL_OUTDIR_H
#define MKMODEL_OUTDIR_H

#include "files.h"

struct mk_outdir {
    int directory;         /* where to make the files */
    char *out, *temporary; /* paths */
    bool replace;          /* out has files, and --force was given */
};

/* 0, or -errno with the reason: out exists and has files (unless force), or cannot be made. */
int mk_outdir_begin(struct mk_outdir *outdir, const char *out, bool force, struct mk_error *error);
/* Give the files their place. Old files of a checkpoint in it go away; others stay. Abandons on failure. */
int mk_outdir_commit(struct mk_outdir *outdir, const struct mk_files *files, struct mk_error *error);
/* Leave nothing. */
void mk_outdir_abandon(struct mk_outdir *outdir, const struct mk_files *files);

#endif
