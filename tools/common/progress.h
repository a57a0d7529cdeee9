/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - progress of a long operation on stderr: a line every few seconds, or one that changes on a terminal.
 * Used from one thread. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct tools_progress {
    bool quiet, terminal;        /* terminal: standard error is one, and bytes are counted */
    _Atomic bool shown;          /* a line without an end is on the terminal */
    const char *unit;            /* NULL: bytes; else the name of the unit, "tokens" */
    const char *phase;           /* of the previous call */
    double began, printed, last; /* seconds: start of the phase, last line printed, last call */
    uint64_t began_at;           /* `done` at the start of the phase */
};

void tools_progress_init(struct tools_progress *progress, bool quiet);
/* An efs_progress_fn with the struct as its argument. Prints a line every five seconds, on a terminal
 * the same line twice a second, unless quiet. true: cancel,
 * because of a signal (interrupt.h). */
bool tools_progress_report(void *progress, uint64_t done, uint64_t total, const char *phase);
/* Clears the line on the terminal, before other output. From any thread. */
void tools_progress_clear(struct tools_progress *progress);

#endif
