/* SPDX-License-Identifier: Apache-2.0 */
/* background.c - see background.h. The pipe carries '+' for ready, or '-' followed by the reason. */
#include "background.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static ssize_t pipe_read_all(int fd, char *text, size_t room)
{
    size_t used = 0;
    while (used < room) {
        ssize_t n = read(fd, text + used, room - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

static void pipe_write_all(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* the parent has exited */
        text += n;
        bytes -= (size_t)n;
    }
}

static volatile pid_t daemon_pid; /* the daemon; global because a signal handler reads it */

static void signal_pass_on(int number)
{
    kill(daemon_pid, number);
}

static const int termination_signals[] = {SIGINT, SIGTERM, SIGHUP};
#define TERMINATION_SIGNALS (sizeof(termination_signals) / sizeof(termination_signals[0]))

void efsd_signals_handle(void (*handler)(int number))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    for (size_t i = 0; i < TERMINATION_SIGNALS; i++)
        if (sigaction(termination_signals[i], NULL, &before) == 0 &&
            before.sa_handler != SIG_IGN) /* ignored by nohup(1) */
            sigaction(termination_signals[i], &action, NULL);
}

__attribute__((noreturn)) static void parent(pid_t child, int fd, const sigset_t *mask)
{
    char text[2048];
    daemon_pid = child; /* setsid() in the child keeps signals of the terminal from it: forward them */
    efsd_signals_handle(signal_pass_on);
    sigprocmask(SIG_SETMASK, mask, NULL);
    ssize_t bytes = pipe_read_all(fd, text, sizeof(text) - 1);
    text[bytes] = '\0';
    if (text[0] == '+')
        _exit(0);
    if (text[0] == '-') {
        fprintf(stderr, "expertfs: %s\n", text + 1);
        _exit(1);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "expertfs: the daemon was ended by signal %d (%s) before it was ready\n", WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    } else {
        fprintf(stderr, "expertfs: the daemon ended with status %d before it was ready\n", WEXITSTATUS(status));
    }
    _exit(1);
}

errint_t efsd_background_begin(int *status_fd, struct efs_error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return efs_fail(err, -errno, "pipe: %s", strerror(errno));
    fflush(NULL);
    sigset_t all, mask; /* blocked until parent() has installed its handler: no signal kills the parent alone */
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &mask);
    pid_t child = fork();
    if (child < 0) {
        errint_t rc = efs_fail(err, -errno, "fork: %s", strerror(errno));
        close(ends[0]);
        close(ends[1]);
        sigprocmask(SIG_SETMASK, &mask, NULL);
        return rc;
    }
    if (child > 0) {
        close(ends[1]);
        parent(child, ends[0], &mask);
    }
    close(ends[0]);
    setsid();
    sigprocmask(SIG_SETMASK, &mask, NULL);
    *status_fd = ends[1];
    return chdir("/") ? efs_fail(err, -errno, "chdir /: %s", strerror(errno)) : 0;
}

void efsd_background_ready(int status_fd)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        if (null > STDERR_FILENO)
            close(null);
    }
    pipe_write_all(status_fd, "+", 1);
    close(status_fd);
}

void efsd_background_failed(int status_fd, const char *reason)
{
    pipe_write_all(status_fd, "-", 1);
    pipe_write_all(status_fd, reason, strlen(reason));
    close(status_fd);
}
