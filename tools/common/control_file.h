/* SPDX-License-Identifier: Apache-2.0 */
/* control_file.h - reads the files of a mount's .expertfs, whose lines are `name: value`: expertfs-proc(5). */
#ifndef TOOLS_CONTROL_FILE_H
#define TOOLS_CONTROL_FILE_H

#include "expertfs.h"

/* Reads ROOT/.expertfs/FILE into *text, ended by a NUL, which the caller frees with free(). -ENODEV: that file is the
 * checkpoint's, not the mount's; else -errno of open() or read(). *text is NULL after an error. */
errint_t tools_control_read(const char *root, const char *file, char **text, struct efs_error *err);

/* A pointer into lines, to the text after the first `name: ` at the start of a line; NULL: no such line. */
const char *tools_line_value(const char *lines, const char *name);
/* The value of that line as a decimal number; 0: no such line. */
uint64_t tools_line_number(const char *lines, const char *name);
/* Copies the value of that line to text, truncated to room bytes with the NUL; "": no such line. Returns text. */
const char *tools_line_text(const char *lines, const char *name, char *text, size_t room);
/* The same for a path, with its escapes decoded: \n is a line end, \ and any other character is that character. */
const char *tools_line_path(const char *lines, const char *name, char *path, size_t room);

#endif
