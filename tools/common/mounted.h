/* SPDX-License-Identifier: Apache-2.0 */
/* mounted.h - reads the files of a mount's .expertfs, whose lines are `name: value`: expertfs-proc(5). */
#ifndef TOOLS_MOUNTED_H
#define TOOLS_MOUNTED_H

#include "expertfs.h"

/* A file of ROOT/.expertfs, ended by 0, for free(). -ENODEV: the checkpoint itself has an .expertfs. */
errint_t tools_mounted_read(const char *root, const char *file, char **text, struct efs_error *err);

/* What follows `name: ` at the begin of a line, with the rest of the lines; NULL: there is no such line. */
const char *tools_line_value(const char *lines, const char *name);
/* The number of that line; 0: there is no such line. */
uint64_t tools_line_number(const char *lines, const char *name);
/* The value alone, cut to room; "": there is no such line. Returns text. */
const char *tools_line_text(const char *lines, const char *name, char *text, size_t room);
/* The same of a path, without its escapes: \n is a line end, any other character behind a \ is itself. */
const char *tools_line_path(const char *lines, const char *name, char *path, size_t room);

#endif
