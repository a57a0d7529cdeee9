/* SPDX-License-Identifier: Apache-2.0 */
/* export_client.c - see export_internal.h: the experts and windows of a session, sending packets. */
#include "export_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

void efsd_session_unref(struct efsd_session *s)
{
    if (--s->references)
        return;
    while (s->late) {
        struct efsd_late *late = s->late;
        s->late = late->next;
        free(late);
    }
    free(s->held);
    free(s->has);
    free(s);
}

void *efsd_export_grow(void *array, uint32_t *room, uint32_t index, size_t element_bytes)
{
    if (index < *room)
        return array;
    uint32_t more = *room ? *room : 64;
    while (more <= index)
        more *= 2;
    uint8_t *bytes = reallocarray(array, more, element_bytes);
    if (bytes) {
        memset(bytes + *room * element_bytes, 0, (more - *room) * element_bytes);
        *room = more;
    }
    return bytes;
}

struct efsd_held *efsd_held_of(const struct efsd_session *s, uint32_t tag)
{
    return tag < s->tags ? s->held[tag] : NULL;
}

struct efsd_drop efsd_held_free(struct efsd_held *held)
{
    const struct efsd_drop drop = {held->request, held->index};
    free(held->body);
    free(held);
    return drop;
}

bool efsd_session_has(const struct efsd_session *s, uint32_t window)
{
    return window / 8 < s->windows && (s->has[window / 8] >> (window % 8) & 1);
}

errint_t efsd_session_have(struct efsd_session *s, uint32_t window)
{
    uint8_t *has = efsd_export_grow(s->has, &s->windows, window / 8, 1);
    if (!has)
        return -ENOMEM;
    s->has = has;
    s->has[window / 8] |= (uint8_t)(1u << (window % 8));
    return 0;
}

errint_t efsd_session_send(const struct efsd_session *s, const struct efs_export_head *packet, int fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)packet, .iov_len = packet->bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof(control.room);
        struct cmsghdr *with = CMSG_FIRSTHDR(&message);
        with->cmsg_level = SOL_SOCKET;
        with->cmsg_type = SCM_RIGHTS;
        with->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(with), &fd, sizeof(fd));
    }
    return sendmsg(s->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

void efsd_session_watch(const struct efsd_session *s, bool room)
{
    struct epoll_event event = {.events = EPOLLIN | (room ? EPOLLOUT : 0), .data.ptr = (void *)(uintptr_t)s};
    if (epoll_ctl(s->export->epoll, EPOLL_CTL_MOD, s->fd, &event) < 0 && room)
        shutdown(s->fd, SHUT_RDWR); /* the client would wait forever */
}
