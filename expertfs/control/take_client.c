/* SPDX-License-Identifier: Apache-2.0 */
/* take_client.c - see take_client.h. */
#include "take_client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon.h"

#define THREAD_PIDFD O_EXCL /* PIDFD_THREAD: from Linux 6.9 on, for callers that are not the first thread */

/* A copy of a descriptor of the process of this thread; -errno. pidfd_getfd(2) permits it as ptrace(2) would be: also
 * to the user whose user namespace is an ancestor of the process's. */
static int copy_descriptor(pid_t thread, int number)
{
    int process = (int)syscall(SYS_pidfd_open, thread, 0);
    if (process < 0)
        process = (int)syscall(SYS_pidfd_open, thread, THREAD_PIDFD);
    int fd = process < 0 ? -errno : (int)syscall(SYS_pidfd_getfd, process, number, 0);
    if (process >= 0 && fd < 0)
        fd = -errno;
    if (process >= 0)
        close(process);
    return fd;
}

errint_t efsd_take_client(struct efsd *daemon, fuse_req_t req, const char *text, size_t bytes)
{
    const struct fuse_ctx *caller = fuse_req_ctx(req);
    uint32_t number = 0;
    size_t at = 0;
    for (; at < bytes && at < 9 && text[at] >= '0' && text[at] <= '9'; at++)
        number = 10 * number + (uint32_t)(text[at] - '0');
    if (at == 0 || at + 1 != bytes || text[at] != '\n' || !daemon->take_client)
        return -EINVAL;
    const int fd = copy_descriptor(caller->pid, (int)number);
    return fd < 0 ? fd : daemon->take_client(daemon->export, fd, caller->uid);
}
