/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint_lock.c - see mountpoint_lock.h. */
#include "mountpoint_lock.h"

#include "store_name.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

int ctl_above_lock(const char *path, int operation)
{
    char folder[4096];
    int fd = open(ctl_store_folder(path, folder, sizeof(folder)), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && flock(fd, operation) < 0)
        if (errno == EWOULDBLOCK) {
            close(fd);
            return -1;
        } else if (errno != EINTR) {
            break;
        }
    return fd;
}

void ctl_mountpoint_remove(const char *path)
{
    int above = ctl_above_lock(path, LOCK_EX | LOCK_NB);
    if (above < 0)
        return;
    rmdir(path);
    close(above);
}
