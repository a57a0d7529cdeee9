/* SPDX-License-Identifier: Apache-2.0 */
/* process.h - startup of a tool with any inherited descriptors and limits, and its exit after an error. */
#ifndef TOOLS_PROCESS_H
#define TOOLS_PROCESS_H

#include "expertfs.h"

/* Flushes stdout, prints `program: message` on stderr, with a hint as a second line, and
 * returns the exit status: TOOLS_EXIT_INTERRUPTED for -ECANCELED after a signal, else 1. rc: -errno, whose strerror()
 * is printed if err's text is empty. */
int tools_fail(const char *program, errint_t rc, const struct efs_error *err);
/*
 * main() calls it first. Opens /dev/null on each closed standard descriptor: otherwise the next file opened, such as
 * the store being written, would get the number of standard output. Ignores SIGXFSZ, so that a write past RLIMIT_FSIZE
 * fails with -EFBIG. Registers an exit handler that turns exit status 0 into 1, with a message, if a write to standard
 * output failed.
 */
void tools_init(void);

#endif
