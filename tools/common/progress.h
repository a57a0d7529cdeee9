/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - how far a long work is, on stderr: a bar that is redrawn on a terminal, while the program is in its
 * foreground, else a line every few seconds. Used from one thread.
 */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct tools_progress {
    bool quiet, terminal, drawn;
    const char *unit;         /* NULL: bytes; else what is counted, "tokens" */
    const char *phase;        /* that is being shown */
    double began, told, last; /* seconds: when the phase began, was last shown, was last heard of */
    uint64_t began_bytes;
};

void tools_progress_init(struct tools_progress *progress, bool quiet);
/* An efs_progress_fn; arg is the progress. Cancels when the user asked to (interrupt.h). */
bool tools_progress_tell(void *progress, uint64_t done_bytes, uint64_t total_bytes, const char *phase);
/* Take the bar away: call before anything else is printed. */
void tools_progress_clear(struct tools_progress *progress);

#endif
