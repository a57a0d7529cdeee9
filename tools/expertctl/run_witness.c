/* SPDX-License-Identifier: Apache-2.0 */
/* run_witness.c - see run_witness.h. */
#include "run_witness.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void ctl_run_witness_begin(struct ctl_run_witness *witness)
{
    pid_t parent = getpid();
    witness->pid = fork();
    if (witness->pid < 0)
        witness->pid = 0;
    else if (witness->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close_range(0, UINT_MAX, 0); /* who waits for the end of our output does not wait for this one */
        while (getppid() == parent)
            pause();
        _exit(0);
    }
}

bool ctl_run_witness_saw(const struct ctl_run_witness *witness, int number)
{
    static const char name[] = "ShdPnd:";
    char path[64], line[256];
    uint64_t pending = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)witness->pid);
    FILE *status = witness->pid ? fopen(path, "re") : NULL;
    while (status && fgets(line, sizeof(line), status))
        if (strncmp(line, name, strlen(name)) == 0)
            pending = strtoull(line + strlen(name), NULL, 16);
    if (status)
        fclose(status);
    return pending >> (number - 1) & 1;
}

void ctl_run_witness_end(struct ctl_run_witness *witness)
{
    if (witness->pid) {
        int sent = kill(witness->pid, SIGKILL); /* where that is refused it ends with this process */
        while (sent == 0 && waitpid(witness->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    witness->pid = 0;
}
