/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - see export.h: receives packets. After an unexpected packet the socket is not used any more: requests fail.
 * Coded experts are in windows of the mount's chunk pool, at places that each answer states, and may be read until the
 * expert is dropped.
 */
#include "export.h"

#include "deadline.h"
#include "mount.h"
#include "sys.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BODY_MAX (64u << 20) /* bytes of the parts of one coded expert */

void efs_export_fail(struct efs_mount *m)
{
    struct efs_export *h = m->export;
    h->failed = true;
    shutdown(h->fd, SHUT_RDWR);
    for (uint32_t tag = 0; tag < h->tag_count; tag++)
        if (h->files[tag] && !h->files[tag]->ready && h->files[tag]->item) {
            struct efs_expert_file *file = h->files[tag];
            h->files[tag] = NULL;
            efs_file_failed(file, -EIO);
        }
}

/* ---- answers ---- */

/* Handles a file whose expert was received (error 0), or whose request has failed. held: the mount holds the expert for
 * the tag. */
static void export_received(struct efs_mount *m, struct efs_expert_file *file, errint_t error, bool held)
{
    if (error == 0) {
        efs_file_received(file);
        return;
    }
    if (held)
        efs_export_drop(m->export, file);
    else
        efs_export_free_tag(m->export, file->exported.tag);
    efs_file_failed(file, error);
}

/* Sets the tensors of a full expert that is at the start of window w. 0, -EUCLEAN, -ENOMEM. */
static errint_t export_set_tensors(struct efs_expert_file *file, const struct efs_export_answer *answer,
                                   struct efs_export_window *w)
{
    if (answer->file_bytes > w->bytes || answer->file_bytes < 8)
        return -EUCLEAN;
    file->mapped = (struct efs_mapped_file){.data = w->data, .bytes = (size_t)answer->file_bytes};
    errint_t rc = efs_mapped_tensors(file->expert->layout, &file->mapped);
    efs_expert_keep_layout(&file->expert->layout, &file->mapped);
    if (rc == 0)
        file->exported.window = w;
    return rc;
}

/* fd: the received descriptor, or < 0. false: malformed. */
static bool export_receive_answer(struct efs_mount *m, const union efs_export_incoming *packet, int fd)
{
    const struct efs_export_answer *answer = &packet->answer;
    struct efs_export *h = m->export;
    struct efs_expert_file *file = efs_export_file(h, answer->tag);
    if (file && !file->item && answer->error <= 0) { /* it was cancelled */
        if (answer->error == 0 && fd >= 0 && !answer->once)
            efs_window_take(h, answer, fd);
        if (answer->error == -ECANCELED) { /* only this ends its tag */
            efs_export_free_tag(h, answer->tag);
            free(file);
        }
        return true;
    }
    if (!file || file->ready || answer->error > 0 || answer->error == -ECANCELED ||
        (answer->error == 0 && (file->form == EFS_FORM_CODED || file->exported.body_total)))
        return false;
    if (answer->error == 0)
        file->form = EFS_FORM_FULL;
    errint_t rc = answer->error;
    struct efs_export_window *w = rc == 0 ? efs_window_take(h, answer, fd) : NULL;
    if (w)
        efs_window_get(h, w);
    if (rc == 0)
        rc = w ? export_set_tensors(file, answer, w) : -ENOMEM;
    if (w && rc < 0)
        efs_window_put(h, w);
    export_received(m, file, rc, answer->error == 0);
    return true;
}

/* A packet with a window of coded experts. If it cannot be mapped, those experts fail. */
static bool export_receive_window(struct efs_mount *m, const union efs_export_incoming *packet, int fd)
{
    if ((fd < 0 && fd != -EMFILE) || packet->answer.window == 0)
        return false;
    efs_window_take(m->export, &packet->answer, fd);
    return true;
}

/* ---- coded experts ---- */

/* Makes an expert with these places a user of their windows, which then stay mapped. false: some are not mapped, since
 * that failed, or they were unmapped before this packet was received; they are reported to the mount. */
static bool coded_get_windows(struct efs_export *h, struct efs_exported_expert *exported, const uint8_t *places)
{
    bool all = true;
    for (uint32_t i = 0; i < exported->place_count; i++) {
        struct efs_export_place place;
        memcpy(&place, places + i / 2 * sizeof(place), sizeof(place));
        const uint32_t number = i % 2 ? place.sm_window : place.e_window;
        struct efs_export_window *w = number ? efs_window_find(h, number) : NULL;
        if (w)
            efs_window_get(h, w);
        else if (number)
            efs_window_report_unmapped(h, number);
        exported->places[i] = w;
        all = all && (w || !number);
    }
    return all;
}

/* Handles a coded expert of which all parts were received: parses its layout, if it was sent, and finds its tensors. 0,
 * -EUCLEAN, -ENOMEM. */
static errint_t coded_finish(struct efs_mount *m, struct efs_expert_file *file, uint32_t layout_bytes)
{
    struct efs_exported_expert *exported = &file->exported;
    const struct efs_file_layout *layout = file->expert->coded_layout;
    const uint32_t places_bytes = exported->body_total - layout_bytes;
    errint_t rc = exported->body ? 0 : -ENOMEM;
    if (rc == 0 && !layout && layout_bytes) {
        rc = efs_coded_layout_read(exported->body, layout_bytes, &file->mapped.new_layout);
        efs_expert_keep_layout(&file->expert->coded_layout, &file->mapped);
        layout = file->expert->coded_layout;
    }
    if (rc < 0)
        return rc;
    if (!layout || places_bytes != (uint64_t)layout->extent_count * sizeof(struct efs_export_place))
        return -EUCLEAN;
    exported->places = efs_sys_calloc(2 * (size_t)layout->extent_count + 1, sizeof(struct efs_export_window *));
    if (!exported->places)
        return -ENOMEM;
    exported->place_count = 2 * layout->extent_count;
    if (!coded_get_windows(m->export, exported, exported->body + layout_bytes))
        return -ENOMEM;
    rc = efs_coded_tensors(layout, exported->body + layout_bytes, exported->places, &file->mapped);
    if (rc == 0)
        file->form = EFS_FORM_CODED;
    return rc;
}

static bool part_is_next(const struct efs_exported_expert *exported, const struct efs_export_coded *p)
{
    bool first = exported->body_total == 0;
    return p->head.count > 0 && p->total <= BODY_MAX && p->at == exported->body_bytes && p->at <= p->total &&
           p->head.count <= p->total - p->at && p->layout_bytes <= p->total &&
           (first || p->total == exported->body_total);
}

/* A part of a coded expert; after the last part the expert is loaded or has failed. */
static bool export_receive_coded(struct efs_mount *m, const union efs_export_incoming *incoming, int fd)
{
    const struct efs_export_coded *packet = &incoming->coded;
    struct efs_export *h = m->export;
    (void)fd;
    struct efs_expert_file *file = efs_export_file(h, packet->tag);
    if (file && !file->item)
        return true;
    if (!file || file->ready || file->form == EFS_FORM_FULL || !part_is_next(&file->exported, packet))
        return false;
    struct efs_exported_expert *exported = &file->exported;
    if (exported->body_total == 0)
        exported->body = efs_sys_malloc(packet->total);
    exported->body_total = packet->total;
    if (exported->body)
        memcpy(exported->body + packet->at, packet->part, packet->head.count);
    exported->body_bytes += packet->head.count;
    if (exported->body_bytes < exported->body_total)
        return true;
    errint_t rc = coded_finish(m, file, packet->layout_bytes);
    free(exported->body);
    exported->body = NULL;
    export_received(m, file, rc, true);
    return true;
}

/* ---- packets ---- */

/* Whether an expert's request does not fit into the mount's memory; nothing, if it was received or cancelled. */
static bool export_receive_oversize(struct efs_mount *m, const union efs_export_incoming *packet, int fd)
{
    (void)fd;
    struct efs_expert_file *file = efs_export_file(m->export, packet->answer.tag);
    if (file && file->item && !file->ready)
        efs_mount_item_set_oversize(file->item, packet->head.kind == EFS_EXPORT_OVERSIZE, packet->answer.window);
    return packet->answer.tag < m->export->tag_count;
}

#define RECEIVED_CLIENT(number, handler, ...)
#define RECEIVED_MOUNT(number, handler, ...) [number] = {export_receive_##handler, __VA_ARGS__},
#define RECEIVED(number, name, sender, handler, ...) RECEIVED_##sender(number, handler, __VA_ARGS__)

/* Handles the first packet of `left` bytes, and its descriptor (< 0: none). false: malformed. */
static bool export_receive_packet(struct efs_mount *m, const union efs_export_incoming *packet, size_t left, int fd)
{
    static const struct {
        bool (*receive)(struct efs_mount *m, const union efs_export_incoming *packet, int fd);
        struct efs_export_shape shape;
    } all[EFS_EXPORT_KINDS] = {EFS_EXPORT_PACKETS(RECEIVED)};
    const struct efs_export_head *head = &packet->head;
    return left >= sizeof(*head) && head->version == EFS_EXPORT_VERSION && head->kind < EFS_EXPORT_KINDS &&
           all[head->kind].receive && efs_export_has_shape(head, left, all[head->kind].shape) &&
           all[head->kind].receive(m, packet, fd);
}

/* Receives one message. -EAGAIN: none is queued; -EPROTO: malformed. */
static errint_t export_receive_one(struct efs_mount *m)
{
    struct efs_export *h = m->export;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = h->incoming, .iov_len = sizeof(h->incoming)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t n = recvmsg(h->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    const bool cut = message.msg_flags & MSG_CTRUNC;
    const struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    int fd = cut ? -EMFILE : -1; /* no free descriptor in this process: the mount sends the window again after
                                    efs_window_report_unmapped() */
    if (with && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(with), sizeof(fd));
    bool good = n > 0 && !(message.msg_flags & MSG_TRUNC) && (fd < 0 || !cut);
    for (size_t at = 0; good && at < (size_t)n;) {
        const union efs_export_incoming *packet = (const void *)(h->incoming + at);
        good = at % 8 == 0 && export_receive_packet(m, packet, (size_t)n - at, at ? -1 : fd);
        at += good ? packet->head.bytes : 0;
    }
    if (fd >= 0)
        efs_sys_close(fd);
    return good ? 0 : -EPROTO;
}

void efs_export_receive_ready(struct efs_mount *m)
{
    errint_t rc = 0;
    while (rc == 0 && !m->export->failed)
        rc = export_receive_one(m);
    if (rc < 0 && rc != -EAGAIN)
        efs_export_fail(m);
}

errint_t efs_export_receive(struct efs_mount *m, const struct timespec *until)
{
    struct pollfd wait[2] = {{.fd = m->export->fd, .events = POLLIN}, {.fd = m->export->kick, .events = POLLIN}};
    m->receiving = true;
    pthread_mutex_unlock(&m->lock);
    int ready = efs_poll_until(wait, 2, until);
    if (ready > 0 && wait[1].revents) {
        uint64_t kicks;
        ssize_t n = read(m->export->kick, &kicks, sizeof(kicks)); /* no other thread reads it */
        (void)n;
    }
    pthread_mutex_lock(&m->lock);
    m->receiving = false;
    if (ready > 0 && wait[0].revents)
        efs_export_receive_ready(m);
    pthread_cond_broadcast(&m->arrived); /* another thread may receive in place of this one */
    return ready == 0 ? -ETIMEDOUT : 0;
}
