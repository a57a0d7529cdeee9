/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - see export.h: sends and receives packets. After an unexpected packet the socket is not used any more;
 * files are opened instead.
 */
#include "export_internal.h"

#include "mount.h"
#include "sys.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static errint_t export_send_packet(const struct efs_export *h, const struct efs_export_head *packet)
{
    ssize_t n;
    do
        n = send(h->fd, packet, packet->bytes, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

/* Lock held, after the mount has exited or sent an invalid packet: stops using the socket, and calls
 * efs_file_fall_back() for files in flight. */
static void export_fail(struct efs_mount *m)
{
    struct efs_export *h = m->export;
    h->failed = true;
    shutdown(h->fd, SHUT_RDWR);
    for (uint32_t tag = 0; tag < h->room; tag++)
        if (h->files[tag] && h->files[tag]->state == EFS_FILE_OPENING) {
            struct efs_expert_file *file = h->files[tag];
            h->files[tag] = NULL;
            efs_file_fall_back(m, file, -EIO);
        }
    efs_mount_wake_open_workers(m);
    efs_protected_set_clear(m);
    efs_files_evict_unprotected(m);
}

/* Lock held. Moves up to a packet of dropped tags to *packet; the tags are free, because the mount receives the drops
 * before later requests. */
static bool export_pop_drops(struct efs_export *h, struct efs_export_ask *packet)
{
    *packet = efs_export_packet(EFS_EXPORT_DROP);
    while (h->drop_count && packet->head.count < EFS_EXPORT_ITEMS) {
        uint32_t tag = h->drops[--h->drop_count];
        packet->item[packet->head.count++].tag = tag;
        h->free_tags[h->free_count++] = tag; /* send_lock is held: requests with this tag are sent after the packet */
    }
    return packet->head.count > 0;
}

static bool export_pop_unmapped(struct efs_export *h, struct efs_export_ask *packet)
{
    *packet = efs_export_packet(EFS_EXPORT_UNMAPPED);
    while (h->unmapped_count)
        packet->item[packet->head.count++].tag = h->unmapped[--h->unmapped_count];
    return packet->head.count > 0;
}

errint_t efs_export_send_all(struct efs_mount *m, const struct efs_export_head *last)
{
    struct efs_export *h = m->export;
    struct efs_export_ask packet;
    errint_t rc = 0;
    pthread_mutex_lock(&m->lock);
    while (
        rc == 0 && !h->failed &&
        (efs_export_pop_notification(h, &packet) || export_pop_drops(h, &packet) || export_pop_unmapped(h, &packet))) {
        pthread_mutex_unlock(&m->lock);
        efs_export_packet_end(&packet);
        rc = export_send_packet(h, &packet.head);
        pthread_mutex_lock(&m->lock);
    }
    if (h->failed)
        rc = -EPIPE;
    if (rc == 0 && last) {
        pthread_mutex_unlock(&m->lock);
        rc = export_send_packet(h, last);
        pthread_mutex_lock(&m->lock);
    }
    if (rc < 0)
        export_fail(m);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

errint_t efs_export_send(struct efs_mount *m, struct efs_export_ask *ask)
{
    if (ask)
        efs_export_packet_end(ask);
    return efs_export_send_all(m, ask ? &ask->head : NULL);
}

errint_t efs_export_send_list(struct efs_mount *m)
{
    const struct efs_export_head list = {sizeof(list), EFS_EXPORT_VERSION, EFS_EXPORT_LIST, 0};
    return efs_export_send_all(m, &list);
}

/* ---- answers ---- */

/* Sets the tensors of a full expert that is at the start of window w. 0, -EUCLEAN, -ENOMEM. */
static errint_t export_set_tensors(struct efs_mount *m, struct efs_expert_file *file,
                                   const struct efs_export_answer *answer, struct efs_export_window *w)
{
    if (answer->file_bytes > w->bytes || answer->file_bytes < 8)
        return -EUCLEAN;
    file->mapped = (struct efs_mapped_file){.fd = -1, .data = w->data, .bytes = (size_t)answer->file_bytes};
    errint_t rc = efs_mapped_tensors(efs_layout_cache_find(m, &file->key, file->hash), &file->mapped);
    if (rc < 0) {
        efs_mapped_free_tensors(&file->mapped);
        return rc;
    }
    if (file->mapped.new_layout)
        efs_layout_cache_add(m, file);
    efs_window_get(m->export, w);
    file->exported.window = w;
    return 0;
}

/* fd: the received descriptor, or < 0. false: malformed. */
static bool export_receive_answer(struct efs_mount *m, const struct efs_export_answer *answer, int fd)
{
    struct efs_export *h = m->export;
    struct efs_expert_file *file = answer->tag < h->room ? h->files[answer->tag] : NULL;
    if (!file || file->state != EFS_FILE_OPENING || answer->error > 0)
        return false;
    if (answer->error == 0 && file->key.coded) {
        if (!file->any || file->exported.body_total)
            return false;
        efs_file_make_full(m, file);
    }
    errint_t rc = answer->error;
    struct efs_export_window *w = rc == 0 ? efs_window_find(h, answer->window) : NULL;
    if (rc == 0 && !w) {
        w = fd < 0 ? NULL : efs_window_map(h, answer, fd);
        if (!w)
            efs_window_report_unmapped(h, answer->window);
        rc = w ? 0 : -ENOMEM;
    }
    if (rc == 0)
        rc = export_set_tensors(m, file, answer, w);
    if (rc == 0) {
        efs_file_opened(m, file);
        return true;
    }
    if (answer->error == 0) {
        efs_export_drop(h, file);
        efs_mount_wake_maintenance(m);
    } else { /* after an error the mount holds nothing for the tag */
        h->files[answer->tag] = NULL;
        h->free_tags[h->free_count++] = answer->tag;
    }
    efs_file_fall_back(m, file, answer->error); /* opens its file, which may report the reason */
    efs_mount_wake_open_workers(m);
    return true;
}

/* Marks an expert whose request does not fit into the mount's memory, unless it was received or dropped meanwhile. */
static bool export_receive_oversize(struct efs_mount *m, const struct efs_export_answer *packet)
{
    struct efs_expert_file *file = packet->tag < m->export->room ? m->export->files[packet->tag] : NULL;
    if (file && file->state == EFS_FILE_OPENING) {
        file->oversize = true;
        efs_mount_wake_waiters(m);
    }
    return packet->tag < m->export->room;
}

/* Handles a packet of the list of protected experts. false: malformed or not requested. */
static bool export_receive_list(struct efs_mount *m, const struct efs_export_kept *packet)
{
    if (!efs_protected_set_receive(m, packet))
        return false;
    if (packet->last)
        efs_files_evict_unprotected(m);
    return true;
}

/* The packets that the mount sends. */
union incoming {
    struct efs_export_head head;
    struct efs_export_answer answer;
    struct efs_export_kept kept;
    struct efs_export_coded coded;
};

/* Handles a packet of this size and its descriptor (< 0: none). false: malformed. */
static bool export_receive_packet(struct efs_mount *m, const union incoming *packet, size_t bytes, int fd)
{
    const struct efs_export_head *head = &packet->head;
    if (bytes < sizeof(*head) || head->bytes != bytes || head->version != EFS_EXPORT_VERSION)
        return false;
    if (head->kind == EFS_EXPORT_ANSWER)
        return bytes == sizeof(packet->answer) && export_receive_answer(m, &packet->answer, fd);
    if (head->kind == EFS_EXPORT_WINDOW)
        return bytes == sizeof(packet->answer) && efs_export_receive_window(m->export, &packet->answer, fd);
    if (head->kind == EFS_EXPORT_CODED)
        return head->count <= EFS_EXPORT_PART_BYTES && bytes == offsetof(struct efs_export_coded, part) + head->count &&
               efs_export_receive_coded(m, &packet->coded);
    if (head->kind == EFS_EXPORT_OVERSIZE)
        return bytes == sizeof(packet->answer) && export_receive_oversize(m, &packet->answer);
    return head->kind == EFS_EXPORT_KEPT && head->count <= EFS_EXPORT_LISTED &&
           bytes == offsetof(struct efs_export_kept, expert) + head->count * sizeof(packet->kept.expert[0]) &&
           memchr(packet->kept.stack, '\0', sizeof(packet->kept.stack)) && export_receive_list(m, &packet->kept);
}

/* Receives one packet. -EAGAIN: none is queued; -EPROTO: malformed. */
static errint_t export_receive_one(struct efs_mount *m)
{
    union incoming packet;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = &packet, .iov_len = sizeof(packet)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(m->export->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    int fd = -1;
    const struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    int fds[sizeof(control) / sizeof(int)], count = 0; /* CMSG_SPACE rounds up: two may fit */
    if (n > 0 && with && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS) {
        count = (int)((with->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(with), (size_t)count * sizeof(int));
    }
    if (count == 1)
        fd = fds[0];
    else if (count == 0 && (message.msg_flags & MSG_CTRUNC))
        fd = -EMFILE; /* no free descriptor in this process: the mount sends the window again after
                         efs_window_report_unmapped() */
    bool good = count <= 1 && !(message.msg_flags & MSG_TRUNC) && export_receive_packet(m, &packet, (size_t)n, fd);
    for (int i = 0; i < count; i++)
        efs_sys_close(fds[i]);
    return good ? 0 : -EPROTO;
}

static int export_milliseconds_until(const struct timespec *until)
{
    struct timespec now;
    if (!until)
        return -1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t left = ((int64_t)until->tv_sec - now.tv_sec) * 1000 + (until->tv_nsec - now.tv_nsec + 999999) / 1000000;
    return left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

errint_t efs_export_receive(struct efs_mount *m, const struct timespec *until)
{
    struct pollfd wait[2] = {{.fd = m->export->fd, .events = POLLIN}, {.fd = m->export->kick, .events = POLLIN}};
    m->receiving = true;
    pthread_mutex_unlock(&m->lock);
    int ready = poll(wait, 2, export_milliseconds_until(until));
    if (ready > 0 && wait[1].revents) {
        uint64_t kicks;
        ssize_t n = read(m->export->kick, &kicks, sizeof(kicks)); /* no other thread reads it */
        (void)n;
    }
    pthread_mutex_lock(&m->lock);
    errint_t rc = 0;
    while (ready > 0 && wait[0].revents && rc == 0 && !m->export->failed)
        rc = export_receive_one(m);
    m->receiving = false;
    if (rc < 0 && rc != -EAGAIN)
        export_fail(m);
    if (m->waiting)
        pthread_cond_broadcast(&m->arrived); /* for received files, or to receive in place of this thread */
    return ready == 0 ? -ETIMEDOUT : 0;
}
