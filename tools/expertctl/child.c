/* SPDX-License-Identifier: Apache-2.0 */
/* child.c - see child.h. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READ_BYTES 16384u
#define KILLED_MS 1000

__attribute__((noreturn)) static void child(int out, int (*call)(const void *arg), const void *arg)
{
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDERR_FILENO);
    _exit(null >= 0 && dup2(out, STDOUT_FILENO) >= 0 && close_range(STDERR_FILENO + 1, ~0U, 0) == 0 ? call(arg) : EIO);
}

/* Reads to the end of the output. false: nothing was printed for timeout_ms, or no memory. */
static bool output_read(int from, int timeout_ms, char **text)
{
    size_t bytes = 0;
    struct pollfd wait = {.fd = from, .events = POLLIN};
    for (;;) {
        char *more = realloc(*text, bytes + READ_BYTES + 1);
        int ready = more ? poll(&wait, 1, timeout_ms) : 0;
        *text = more ? more : *text;
        ssize_t n = ready > 0 ? read(from, more + bytes, READ_BYTES) : ready;
        if (n < 0 && errno == EINTR)
            continue;
        if (ready == 0 || n <= 0) {
            if (more)
                more[bytes] = '\0';
            return ready > 0 && n == 0;
        }
        bytes += (size_t)n;
    }
}

/* Kills a child and waits for its end. false: it has not ended within a second. */
static bool child_kill(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    kill(pid, SIGKILL);
    bool has_ended = fd < 0 || poll(&ended, 1, KILLED_MS) > 0;
    while (waitpid(pid, NULL, has_ended ? 0 : WNOHANG) < 0 && errno == EINTR) {
    }
    if (fd >= 0)
        close(fd);
    return has_ended;
}

int ctl_child_run(int (*call)(const void *arg), const void *arg, int timeout_ms, char **text, bool *held)
{
    int ends[2], status = 0, rc = 0;
    char *printed = NULL;
    if (text)
        *text = NULL;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        child(ends[1], call, arg);
    if (pid < 0)
        rc = -errno;
    close(ends[1]);
    if (rc == 0 && !output_read(ends[0], timeout_ms, &printed)) {
        const bool killed = child_kill(pid);
        if (held)
            *held = !killed;
        rc = -ETIMEDOUT;
    }
    close(ends[0]);
    while (rc == 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (text)
        *text = printed;
    else
        free(printed);
    return rc < 0 ? rc : WIFEXITED(status) ? WEXITSTATUS(status) : -EIO;
}
