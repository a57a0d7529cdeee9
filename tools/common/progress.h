/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - progress of a long operation: a line on stderr every few seconds. Used from one thread. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct tools_progress {
    bool quiet;
    const char *unit;            /* NULL: bytes; else what is counted, "tokens" */
    const char *phase;           /* of the call before */
    double began, printed, last; /* seconds: begin of the phase, the last line, the last call */
    uint64_t began_at;           /* `done` at the start of the phase */
};

void tools_progress_init(struct tools_progress *progress, bool quiet);
/* An efs_progress_fn; arg is the progress. Cancels when the user asked to (interrupt.h). */
bool tools_progress_tell(void *progress, uint64_t done, uint64_t total, const char *phase);

#endif
