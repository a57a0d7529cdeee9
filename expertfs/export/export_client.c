/* SPDX-License-Identifier: Apache-2.0 */
/* export_client.c - see export_internal.h: the experts and windows of a client; sending packets. */
#include "export_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define U(x) ((unsigned long long)(x))

void efsd_export_client_unref(struct efsd_export_client *s)
{
    if (--s->references)
        return;
    efsd_export_client_forget_unsent(s);
    efs_holder_unref(s->holder);
    free(s->ask);
    free(s->items);
    free(s->window_map);
    free(s);
}

struct efsd_export_charge *efsd_export_charge_add(struct efsd_export_client *s, struct efsd_export_charge *charge,
                                                  uint32_t experts)
{
    if (!charge) {
        charge = malloc(sizeof(*charge));
        if (!charge)
            return NULL;
        *charge = (struct efsd_export_charge){.client = s, .references = 1, .requested_at = s->heard_at};
        s->references++;
    }
    charge->experts += experts;
    s->experts += experts;
    s->export->experts += experts;
    return charge;
}

void efsd_export_charge_unref(struct efsd_export_charge *charge)
{
    if (!charge || --charge->references)
        return;
    charge->client->experts -= charge->experts;
    charge->client->export->experts -= charge->experts;
    efsd_export_client_unref(charge->client);
    free(charge);
}

struct efsd_drop efsd_export_item_free(struct efsd_export_item *item)
{
    const struct efsd_drop drop = {item->request, item->index};
    if (item->queued_oversize)
        item->queued_oversize->item = NULL;
    if (item->queued_answer)
        item->queued_answer->item = NULL;
    efsd_export_charge_unref(item->charge);
    free(item->body);
    free(item);
    return drop;
}

bool efsd_export_client_has_window(const struct efsd_export_client *s, uint32_t window)
{
    return window / 8 < s->window_map_bytes && (s->window_map[window / 8] >> (window % 8) & 1);
}

errint_t efsd_export_client_add_window(struct efsd_export_client *s, uint32_t window)
{
    if (window / 8 >= s->window_map_bytes) {
        uint32_t bytes = s->window_map_bytes ? s->window_map_bytes : 64;
        while (bytes <= window / 8)
            bytes *= 2;
        uint8_t *window_map = realloc(s->window_map, bytes);
        if (!window_map)
            return -ENOMEM;
        memset(window_map + s->window_map_bytes, 0, bytes - s->window_map_bytes);
        s->window_map = window_map;
        s->window_map_bytes = bytes;
    }
    s->window_map[window / 8] |= (uint8_t)(1u << (window % 8));
    return 0;
}

static errint_t client_send_message(const struct efsd_export_client *s, struct iovec *parts, size_t count, int fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
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

/* Sends a message of packets whose tags count as answered. Without it the client would wait forever: disconnects it on
 * an error but -EAGAIN. */
static errint_t client_send_packets(const struct efsd_export_client *s, uint8_t *packets, uint32_t bytes)
{
    struct iovec all = {packets, bytes};
    errint_t rc = bytes ? client_send_message(s, &all, 1, -1) : 0;
    if (rc < 0 && rc != -EAGAIN)
        shutdown(s->fd, SHUT_RDWR);
    return rc;
}

/* Sends the packets that were collected for the client. -EAGAIN: the socket is full, they are sent later. */
static errint_t client_send_collected(struct efsd_export_client *s)
{
    struct efsd_export *h = s->export;
    const uint32_t bytes = h->message_bytes;
    errint_t rc = client_send_packets(s, h->message, bytes);
    h->message_bytes = 0;
    return rc == -EAGAIN ? efsd_export_client_keep_late(s, h->message, bytes) : rc;
}

errint_t efsd_export_client_send_late(struct efsd_export_client *s)
{
    errint_t rc = s->late ? client_send_packets(s, s->late, s->late_bytes) : 0;
    if (rc == -EAGAIN)
        return rc;
    efsd_export_client_late_sent(s);
    return 0;
}

void efsd_export_client_cork(struct efsd_export_client *s)
{
    pthread_mutex_lock(&s->export->lock);
    s->export->corked = s;
    pthread_mutex_unlock(&s->export->lock);
}

void efsd_export_client_uncork(struct efsd_export_client *s)
{
    pthread_mutex_lock(&s->export->lock);
    client_send_collected(s);
    s->export->corked = NULL;
    pthread_mutex_unlock(&s->export->lock);
}

errint_t efsd_export_client_send(struct efsd_export_client *s, const struct efs_export_head *packet, int fd)
{
    return efsd_export_client_send_with(s, packet, packet->bytes, NULL, fd);
}

errint_t efsd_export_client_send_with(struct efsd_export_client *s, const struct efs_export_head *packet,
                                      uint32_t bytes, const uint8_t *rest, int fd)
{
    struct efsd_export *h = s->export;
    struct iovec parts[] = {{(void *)(uintptr_t)packet, bytes}, {(void *)(uintptr_t)rest, packet->bytes - bytes}};
    errint_t rc = s->late ? -EAGAIN : 0;
    if (rc == 0 && h->corked == s && (fd >= 0 || packet->bytes > sizeof(h->message) - h->message_bytes))
        rc = client_send_collected(s);
    if (rc < 0)
        return rc;
    if (h->corked != s || fd >= 0)
        return client_send_message(s, parts, rest ? 2 : 1, fd);
    memcpy(h->message + h->message_bytes, packet, bytes);
    if (rest)
        memcpy(h->message + h->message_bytes + bytes, rest, packet->bytes - bytes);
    h->message_bytes += packet->bytes;
    return 0;
}

bool efsd_export_client_sends_descriptors(const struct efsd_export_client *s)
{
    struct msghdr message = {.msg_iov = NULL};
    return !s->export->socket.refuses_descriptors && recvmsg(s->fd, &message, MSG_PEEK | MSG_DONTWAIT) >= 0 &&
           (message.msg_flags & MSG_CTRUNC);
}

static void *close_run(void *fd)
{
    close((int)(intptr_t)fd);
    return NULL;
}

void efsd_export_close(const struct efsd_export *h, int fd)
{
    unsigned long thread;
    if (h->socket.refuses_descriptors)
        close(fd);
    else if (efs_thread_start(close_run, (void *)(intptr_t)fd, "efs-close", &thread) == 0)
        pthread_detach(thread);
    else
        shutdown(fd, SHUT_RDWR); /* and stays open */
}

void efsd_export_print_clients(struct efsd_export *h, FILE *out)
{
    pthread_mutex_lock(&h->lock);
    for (const struct efsd_export_client *s = h->clients; s; s = s->next) {
        if (s->fd >= 0)
            fprintf(out, "%-10d %10u %12lld %10llu %10u %12llu %12llu %13llu %15llu %19llu %19llu\n", (int)s->pid,
                    (unsigned)s->user, (long long)s->connected, U(s->requested), efsd_export_items_held(s),
                    U(s->device.slots), U(s->device.hits), U(s->device.copied), U(s->device.computed),
                    U(s->device.copied_bytes), U(s->device.wait_ns));
    }
    pthread_mutex_unlock(&h->lock);
}
