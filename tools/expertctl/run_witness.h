/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_witness.h - was a signal sent to this process alone, or to its whole process group? Nothing that comes with a
 * signal says so. A child in the group that takes no signal has those of the group pending, and no others.
 *
 * Signals that are asked for must be blocked when the witness begins. One thread.
 */
#ifndef EXPERTCTL_RUN_WITNESS_H
#define EXPERTCTL_RUN_WITNESS_H

#include <stdbool.h>
#include <sys/types.h>

struct ctl_run_witness {
    pid_t pid; /* 0: there is none */
};

/* Signals from now on. Without a process for it nothing is seen. Ends with this process. */
void ctl_run_witness_begin(struct ctl_run_witness *witness);
/* Was this signal sent to the group since the begin? */
bool ctl_run_witness_saw(const struct ctl_run_witness *witness, int number);
void ctl_run_witness_end(struct ctl_run_witness *witness);

#endif
