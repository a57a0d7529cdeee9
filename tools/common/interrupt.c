/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.c - a mark that signals set. */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

/* A signal handler has nowhere else to put what it knows. */
static volatile sig_atomic_t mark;
static volatile long marked_seconds;

static void set_mark(int signal_number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!mark) {
        marked_seconds = (long)now.tv_sec;
        mark = 1;
    } else if ((long)now.tv_sec - marked_seconds >= 2) { /* not the same signal again: timeout(1) sends each twice */
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
}

void tools_interrupt_catch(void)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action, before;
    memset(&action, 0, sizeof(action));
    action.sa_handler = set_mark;
    action.sa_flags = SA_RESTART;
    for (unsigned i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup stays in force */
            sigaction(caught[i], &action, NULL);
}

bool tools_interrupted(void)
{
    return mark != 0;
}
