/* SPDX-License-Identifier: Apache-2.0 */
/* run_ggml.h - whether the ggml of a program takes the backend. */
#ifndef EXPERTCTL_RUN_GGML_H
#define EXPERTCTL_RUN_GGML_H

#include "expertfs.h"

/* Finds a program as execvp(3) does; one with a slash is not looked up. false: not found. */
bool ctl_find_program(const char *program, char *path, size_t room);
/*
 * Loads plugin, the path of the backend, with the ggml libraries that `program` (a path, or a name in PATH) is linked
 * with, in a child process. If they refuse it: prints a warning if the program reads a mount, else -EPROTONOSUPPORT.
 * 0 also if that is not known: the program is a script, or loads ggml later. Blocks for up to 10 seconds.
 */
errint_t ctl_run_check_ggml(const char *program, const char *plugin, bool mounted, struct efs_error *err);

#endif
