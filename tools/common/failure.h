/* SPDX-License-Identifier: Apache-2.0 */
/* failure.h - how a tool begins, whatever its caller has left, and how it ends when it fails. */
#ifndef TOOLS_FAILURE_H
#define TOOLS_FAILURE_H

#include "expertfs.h"

/* Print what went wrong, after the program's name, and return the exit status for it. rc: -errno; err's text may be
 * empty. */
int tools_fail(const char *program, errint_t rc, const struct efs_error *err);
/* The remedy for an -errno of a mount, to follow the message; "": none is known. */
const char *tools_way_out(errint_t rc);
/*
 * First thing in main(). Standard files that are closed are opened on /dev/null: else the next file that is opened, a
 * store that is being written, say, would be standard output. A limit on the size of files (ulimit -f) becomes an error
 * of the write in place of a signal that kills. A program that exits with 0 exits with 1, and a message, if standard
 * output was not written whole.
 */
void tools_surroundings(void);

#endif
