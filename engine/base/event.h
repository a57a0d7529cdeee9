/* SPDX-License-Identifier: Apache-2.0 */
/* event.h - an eventfd as a flag that programs can wait for with poll(2). */
#ifndef EFS_EVENT_H
#define EFS_EVENT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The lock of the containing object guards it. */
struct efs_event {
    int fd; /* < 0: not open */
    bool readable;
};

/* Opens it, not readable. Returns the descriptor or -errno (-EMFILE, ...). */
static inline int efs_event_open(struct efs_event *event)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *event = (struct efs_event){.fd = fd};
    return fd < 0 ? -errno : fd;
}

/* Does nothing if it is not open. */
static inline void efs_event_close(struct efs_event *event)
{
    if (event->fd >= 0)
        close(event->fd);
    event->fd = -1;
}

/* Requires an open descriptor. Never blocks. */
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
