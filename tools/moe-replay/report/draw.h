/* SPDX-License-Identifier: Apache-2.0 */
/* draw.h - pictures by gnuplot: a directory with data, a script, and what it drew. */
#ifndef MOE_REPLAY_DRAW_H
#define MOE_REPLAY_DRAW_H

#include "expertfs-private.h"

#include <stdio.h>

errint_t replay_draw_directory(const char *directory, struct efs_error *err); /* made if it is missing */
errint_t replay_draw_create(const char *directory, const char *name, FILE **out, struct efs_error *err);
/* Close a file, which may be NULL. rc is what there was before, which is told on. */
errint_t replay_draw_finish(FILE *out, const char *directory, errint_t rc, struct efs_error *err);
/* A name as it can stand between single quotes of gnuplot. */
void replay_draw_quotable(const char *name, char *out, size_t room);
/* Colours of lines and boxes, in gnuplot's order of them, that are told apart. */
void replay_draw_colours(FILE *out);
/* A logarithmic y axis with enough numbers on it, for values from least to most; nothing where there are none. */
void replay_draw_log_axis(FILE *out, double least, double most);
/* Let gnuplot run the script there. -ENOENT: there is none; script and data stay. */
errint_t replay_draw_run(const char *directory, const char *script, struct efs_error *err);

#endif
