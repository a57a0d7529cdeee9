/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_unsent.c - see export_internal.h: packets that do not fit into the sockets of their clients, and wait in
 * memory of the daemon. All of them take at most unsent_max bytes, which are part of the fixed memory of the mount.
 * When they take more, the client that lets most of them wait is disconnected: one that reads its answers loses none,
 * whatever clients do that read nothing. Lock held.
 */
#include "export_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define UNSENT_SHARE 256u /* of the budget at the mount */
#define UNSENT_LEAST (256u << 10)
#define UNSENT_MOST (1u << 20) /* packets for all tags of a client */
#define ALLOCATED_BYTES 16u    /* by malloc() for itself, at each allocation */

size_t efsd_export_unsent_max(uint64_t budget_bytes)
{
    const uint64_t share = budget_bytes / UNSENT_SHARE;
    return share < UNSENT_LEAST ? UNSENT_LEAST : share > UNSENT_MOST ? UNSENT_MOST : (size_t)share;
}

void efsd_export_client_poll(const struct efsd_export_client *s, bool room)
{
    struct epoll_event event = {.events = EPOLLIN | (room ? EPOLLOUT : 0), .data.ptr = (void *)(uintptr_t)s};
    if (epoll_ctl(s->export->epoll, EPOLL_CTL_MOD, s->fd, &event) < 0 && room)
        shutdown(s->fd, SHUT_RDWR); /* the client would wait forever */
}

static void unsent_remove(struct efsd_export_client *s, size_t bytes)
{
    s->unsent_bytes -= bytes;
    s->export->unsent_bytes -= bytes;
}

void efsd_export_client_forget_unsent(struct efsd_export_client *s)
{
    while (s->queued) {
        struct efsd_queued_packet *queued = s->queued;
        s->queued = queued->next;
        if (queued->item)
            queued->item->queued_answer = queued->item->queued_oversize = NULL;
        free(queued);
    }
    s->queued_end = &s->queued;
    free(s->late);
    s->late = NULL;
    unsent_remove(s, s->unsent_bytes);
}

/* Makes room for these bytes. false: the client was disconnected for it. */
static bool unsent_add(struct efsd_export_client *s, size_t bytes)
{
    struct efsd_export *h = s->export;
    s->unsent_bytes += bytes;
    h->unsent_bytes += bytes;
    while (h->unsent_bytes > h->unsent_max) {
        struct efsd_export_client *most = s;
        for (struct efsd_export_client *other = h->clients; other; other = other->next)
            most = other->unsent_bytes > most->unsent_bytes ? other : most;
        shutdown(most->fd, SHUT_RDWR);
        efsd_export_client_forget_unsent(most);
        if (most == s)
            return false;
    }
    return true;
}

struct efsd_queued_packet *efsd_export_client_queue(struct efsd_export_client *s, struct efsd_export_item *item,
                                                    uint32_t tag, errint_t error)
{
    const size_t bytes = sizeof(struct efsd_queued_packet) + ALLOCATED_BYTES;
    struct efsd_queued_packet *queued = unsent_add(s, bytes) ? calloc(1, sizeof(*queued)) : NULL;
    if (!queued) { /* it does not read its answers, or no memory: the client would wait forever */
        shutdown(s->fd, SHUT_RDWR);
        efsd_export_client_forget_unsent(s);
        return NULL;
    }
    *queued = (struct efsd_queued_packet){.item = item, .tag = tag, .error = error};
    *s->queued_end = queued;
    s->queued_end = &queued->next;
    efsd_export_client_poll(s, true);
    return queued;
}

struct efsd_queued_packet *efsd_export_client_take_queued(struct efsd_export_client *s)
{
    struct efsd_queued_packet *all = s->queued;
    s->queued = NULL;
    s->queued_end = &s->queued;
    for (const struct efsd_queued_packet *one = all; one; one = one->next)
        unsent_remove(s, sizeof(*one) + ALLOCATED_BYTES);
    return all;
}

errint_t efsd_export_client_keep_late(struct efsd_export_client *s, const uint8_t *message, uint32_t bytes)
{
    s->late = unsent_add(s, bytes) ? malloc(bytes) : NULL;
    if (!s->late) {
        shutdown(s->fd, SHUT_RDWR);
        efsd_export_client_forget_unsent(s);
        return -ENOMEM;
    }
    memcpy(s->late, message, bytes);
    s->late_bytes = bytes;
    efsd_export_client_poll(s, true);
    return -EAGAIN;
}

void efsd_export_client_late_sent(struct efsd_export_client *s)
{
    if (s->late)
        unsent_remove(s, s->late_bytes);
    free(s->late);
    s->late = NULL;
}
