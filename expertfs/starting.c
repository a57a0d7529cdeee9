/* SPDX-License-Identifier: Apache-2.0 */
/* starting.c - see starting.h. */
#include "starting.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum phase { STARTING, GIVEN_UP, OVER };

static void *starting_run(void *arg)
{
    struct efsd_starting *s = arg;
    struct pollfd wait[2] = {{.fd = s->signal_fd, .events = POLLIN}, {.fd = s->over_fd, .events = POLLIN}};
    while (poll(wait, 2, -1) < 0 && errno == EINTR) {
    }
    int before = STARTING;
    if (!wait[0].revents || !atomic_compare_exchange_strong(&s->phase, &before, GIVEN_UP))
        return NULL;
    struct signalfd_siginfo info;
    char reason[128] = "a signal: nothing was mounted";
    if (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        snprintf(reason, sizeof(reason), "%s: nothing was mounted", strsignal((int)info.ssi_signo));
    s->given_up(s->arg, reason);
    _exit(EXIT_FAILURE); /* others may be waiting for what never comes */
}

int efsd_starting_signals(void)
{
    struct sigaction hangup;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (sigaction(SIGHUP, NULL, &hangup) < 0 || hangup.sa_handler != SIG_IGN)
        sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    int fd = signalfd(-1, &signals, SFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

errint_t efsd_starting_begin(struct efsd_starting *s, int signal_fd, void (*given_up)(void *arg, const char *reason),
                             void *arg)
{
    *s = (struct efsd_starting){.signal_fd = signal_fd, .given_up = given_up, .arg = arg};
    s->over_fd = eventfd(0, EFD_CLOEXEC);
    if (s->over_fd < 0)
        return -errno;
    int rc = pthread_create(&s->thread, NULL, starting_run, s);
    s->started = rc == 0;
    if (rc)
        close(s->over_fd);
    return -rc;
}

void efsd_starting_over(struct efsd_starting *s)
{
    const uint64_t one = 1;
    int before = STARTING;
    if (!s->started)
        return;
    s->started = false;
    bool first = atomic_compare_exchange_strong(&s->phase, &before, OVER);
    if (write(s->over_fd, &one, sizeof(one)) == (ssize_t)sizeof(one) || !first)
        pthread_join(s->thread, NULL); /* for ever, if it has given up: it ends the process */
    close(s->over_fd);
}
