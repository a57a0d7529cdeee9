/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.c - handlers of termination signals: set a flag, or exit. */
#include "interrupt.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Written by the signal handler. */
static volatile sig_atomic_t mark;
static volatile long marked_seconds;

static void set_mark(int signal_number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!mark) {
        marked_seconds = (long)now.tv_sec;
        mark = 1;
    } else if ((long)now.tv_sec - marked_seconds >= 2) { /* timeout(1) sends each signal twice at once */
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
}

static const int caught[] = {SIGINT, SIGTERM, SIGHUP};

static void interrupt_install(void (*handler)(int))
{
    struct sigaction action, before;
    memset(&action, 0, sizeof(action));
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    for (unsigned i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* as set by nohup(1) */
            sigaction(caught[i], &action, NULL);
}

void tools_interrupt_catch(void)
{
    interrupt_install(set_mark);
}

static char interrupt_message[64];

static void end_now(int signal_number)
{
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, interrupt_message, strlen(interrupt_message));
    (void)written;
    _exit(TOOLS_EXIT_INTERRUPTED);
}

void tools_interrupt_end(const char *program)
{
    snprintf(interrupt_message, sizeof(interrupt_message), "%s: interrupted\n", program);
    interrupt_install(end_now);
}

bool tools_interrupted(void)
{
    return mark != 0;
}

static bool interrupt_wait(struct pollfd *input, const struct timespec *most)
{
    sigset_t blocked, before; /* blocked between the test of the mark and ppoll(), which unblocks them */
    sigemptyset(&blocked);
    for (unsigned i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
        sigaddset(&blocked, caught[i]);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    while (!mark && ppoll(input, input ? 1 : 0, most, &before) < 0 && errno == EINTR) {
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return mark != 0;
}

bool tools_interrupt_wait(int fd)
{
    struct pollfd input = {.fd = fd, .events = POLLIN};
    return !interrupt_wait(&input, NULL);
}

bool tools_interrupt_pause(unsigned ms)
{
    const struct timespec most = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    return interrupt_wait(NULL, &most);
}

bool tools_answer_is_yes(void)
{
    char answer[16] = "";
    if (!tools_interrupt_wait(STDIN_FILENO) || !fgets(answer, sizeof(answer), stdin)) /* despite signals */
        fputc('\n', stderr);
    return strcmp(answer, "yes\n") == 0;
}
