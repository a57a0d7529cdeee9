/* SPDX-License-Identifier: Apache-2.0 */
/* process.c - see process.h. */
#include "process.h"

#include "interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tools_fail(const char *program, errint_t rc, const struct efs_error *err)
{
    fflush(stdout); /* in the order of the calls, also where both are one file */
    if (rc == -ECANCELED && tools_interrupted()) {
        fprintf(stderr, "%s: interrupted\n", program);
        return TOOLS_EXIT_INTERRUPTED;
    }
    fprintf(stderr, "%s: %s%s\n", program, err->text[0] ? err->text : strerror(-rc),
            rc != -ENOTCONN || strstr(err->text, "\nhint: ")
                ? ""
                : "\nhint: the daemon of that mount has ended; remove the mount with fusermount3 -u");
    return EXIT_FAILURE;
}

/* on_exit(3) handler. A flush that fails drops its data and sets ferror(); a later flush may succeed, so test both. */
static void end_output(int status, void *arg)
{
    (void)arg;
    bool flushed = fflush(stdout) == 0;
    int copy = flushed ? dup(STDOUT_FILENO) : -1; /* NFS and similar filesystems report write errors only at close() */
    flushed = flushed && (copy < 0 || close(copy) == 0);
    if (status != EXIT_SUCCESS || (flushed && !ferror(stdout)))
        return;
    fprintf(stderr, "%s: standard output: %s\n", program_invocation_short_name,
            flushed ? "writing failed" : strerror(errno));
    _exit(EXIT_FAILURE);
}

void tools_init(void)
{
    on_exit(end_output, NULL);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(EXIT_FAILURE);
    signal(SIGXFSZ, SIG_IGN);
}
