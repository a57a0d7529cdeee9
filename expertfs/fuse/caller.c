/* SPDX-License-Identifier: Apache-2.0 */
/* caller.c - see caller.h: reads which signals are pending for a thread. */
#include "caller.h"

#include <signal.h>
#include <stdio.h>

#define SIGNAL_BIT(number) (UINT64_C(1) << ((number)-1))

/* Signals whose default action does not terminate the process. */
static const uint64_t harmless = SIGNAL_BIT(SIGCHLD) | SIGNAL_BIT(SIGCONT) | SIGNAL_BIT(SIGURG) | SIGNAL_BIT(SIGWINCH) |
                                 SIGNAL_BIT(SIGSTOP) | SIGNAL_BIT(SIGTSTP) | SIGNAL_BIT(SIGTTIN) | SIGNAL_BIT(SIGTTOU);

bool efsd_caller_is_killed(fuse_req_t req)
{
    char path[64], line[256];
    unsigned long long signals, pending = 0, taken = 0;
    int tracer = 0;
    snprintf(path, sizeof(path), "/proc/%ld/status", (long)fuse_req_ctx(req)->pid); /* also of a thread */
    FILE *status = fopen(path, "re");
    while (status && fgets(line, sizeof(line), status))
        if (sscanf(line, "SigPnd: %llx", &signals) == 1 || sscanf(line, "ShdPnd: %llx", &signals) == 1)
            pending |= signals;
        else if (sscanf(line, "SigBlk: %llx", &signals) == 1 || sscanf(line, "SigIgn: %llx", &signals) == 1 ||
                 sscanf(line, "SigCgt: %llx", &signals) == 1)
            taken |= signals;
        else
            sscanf(line, "TracerPid: %d", &tracer);
    if (status)
        fclose(status);
    if (tracer != 0) /* a tracer may suppress every signal except SIGKILL */
        taken |= ~SIGNAL_BIT(SIGKILL);
    return pending & ~taken & ~harmless; /* SIGKILL can be neither blocked nor handled */
}
