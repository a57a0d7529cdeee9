/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - progress of a long operation: a line on stderr every few seconds. Used from one thread. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct tools_progress {
    bool quiet;
    const char *unit;            /* NULL: bytes; else the name of the unit, "tokens" */
    const char *phase;           /* of the previous call */
    double began, printed, last; /* seconds: start of the phase, last line printed, last call */
    uint64_t began_at;           /* `done` at the start of the phase */
};

void tools_progress_init(struct tools_progress *progress, bool quiet);
/* An efs_progress_fn with the struct as its argument. Prints a line every five seconds unless quiet. true: cancel,
 * because of a signal (interrupt.h). */
bool tools_progress_report(void *progress, uint64_t done, uint64_t total, const char *phase);

#endif
