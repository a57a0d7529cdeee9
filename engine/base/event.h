/* SPDX-License-Identifier: Apache-2.0 */
/* event.h - a descriptor that is readable or not, for programs that wait by poll(2). */
#ifndef EFS_EVENT_H
#define EFS_EVENT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Its owner's lock guards it. */
struct efs_event {
    int fd; /* < 0: nobody has asked for it */
    bool readable;
};

/* Not readable yet. The descriptor, or -EMFILE, ... */
static inline int efs_event_open(struct efs_event *event)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *event = (struct efs_event){.fd = fd};
    return fd < 0 ? -errno : fd;
}

/* There may be none. */
static inline void efs_event_close(struct efs_event *event)
{
    if (event->fd >= 0)
        close(event->fd);
    event->fd = -1;
}

/* There is one. Never blocks. */
static inline void efs_event_set(struct efs_event *event, bool readable)
{
    uint64_t number = 1;
    if (readable == event->readable)
        return;
    event->readable = readable;
    ssize_t n = readable ? write(event->fd, &number, sizeof(number)) : read(event->fd, &number, sizeof(number));
    (void)n;
}

#endif
