/* SPDX-License-Identifier: Apache-2.0 */
/* failure.h - how a tool that works on stores ends when that fails. */
#ifndef TOOLS_FAILURE_H
#define TOOLS_FAILURE_H

#include "expertfs.h"

/* Print what went wrong, after the program's name, and return the exit status for it. rc: -errno; err's text may be
 * empty. */
int tools_fail(const char *program, errint_t rc, const struct efs_error *err);
/* The remedy for an -errno of a mount, to follow the message; "": none is known. */
const char *tools_way_out(errint_t rc);
/* Whether all of standard output was written: EXIT_FAILURE, and a message, if not. tools_surroundings() has it called
 * at exit(3); a child that ends by _exit(2) calls it. */
int tools_end_output(const char *program);

#endif
