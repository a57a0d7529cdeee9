/* SPDX-License-Identifier: Apache-2.0 */
/* surroundings.c - see surroundings.h. */
#include "surroundings.h"

#include "failure.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void end_output(int status, void *arg)
{
    (void)arg;
    if (status == EXIT_SUCCESS && tools_end_output(program_invocation_short_name) != EXIT_SUCCESS)
        _exit(EXIT_FAILURE);
}

void tools_surroundings(void)
{
    on_exit(end_output, NULL);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(EXIT_FAILURE);
    signal(SIGXFSZ, SIG_IGN);
}
