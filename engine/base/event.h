/* SPDX-License-Identifier: Apache-2.0 */
/* event.h - a descriptor that is readable or not, for programs that wait by poll(2). */
#ifndef EFS_EVENT_H
#define EFS_EVENT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Not readable yet. -EMFILE, ... */
static inline int efs_event_new(void)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

/* Only called to change what it is; never blocks. */
static inline void efs_event_set(int fd, bool readable)
{
    uint64_t number = 1;
    ssize_t n = readable ? write(fd, &number, sizeof(number)) : read(fd, &number, sizeof(number));
    (void)n;
}

#endif
