/* interrupt.c - a mark that signals set. */
#include "interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t mark; /* a signal handler has nowhere else to put it */

static void set_mark(int signal_number)
{
    (void)signal_number;
    mark = 1;
}

void tools_interrupt_catch(void)
{
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action, before;
    memset(&action, 0, sizeof(action));
    action.sa_handler = set_mark;
    action.sa_flags = SA_RESTART | (int)SA_RESETHAND;
    for (unsigned i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup stays in force */
            sigaction(caught[i], &action, NULL);
}

bool tools_interrupted(void)
{
    return mark != 0;
}
