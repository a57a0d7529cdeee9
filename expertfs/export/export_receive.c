/* SPDX-License-Identifier: Apache-2.0 */
/* export_receive.c - see export_internal.h. The experts of a client are dropped when its connection ends, also if the
 * client was killed. */
#include "export_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "want.h"

#define PENDING_OF_EACH 64u /* experts that a client may always have PENDING */
#define PACKETS 16u         /* packets of a client per event, so that other clients are served in between */

/* ---- clients ----------------------------------------------------------------------------------------------- */

static bool item_is_dropped(const void *item)
{
    return ((const struct efsd_export_item *)item)->dropped;
}

/* Lock held. Ends the connection, which may free the client. Returns the EXPORTED experts, for the caller to drop
 * without lock. */
static struct efsd_export_item *client_end(struct efsd_export_client *s)
{
    struct efsd_export_client **at = &s->export->clients;
    struct efsd_export_item *drops = NULL;
    for (uint32_t tag = 0; tag < s->tags; tag++) {
        struct efsd_export_item *item = s->items[tag];
        s->items[tag] = NULL;
        if (item && !item->request) {
            item->dropped = true;
        } else if (item) {
            item->next_drop = drops;
            drops = item;
        }
    }
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->export->client_count--;
    epoll_ctl(s->export->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    close(s->fd);
    s->fd = -1;
    efsd_export_client_unref(s);
    return drops;
}

void efsd_export_client_end(struct efsd_export_client *s)
{
    struct efsd_export *h = s->export; /* client_end() may free s */
    uint32_t observer = s->observer;
    pthread_mutex_lock(&h->lock);
    const bool pending = s->references > 1;
    struct efsd_export_item *drops = client_end(s);
    pthread_mutex_unlock(&h->lock);
    if (observer)
        efs_routing_observer_end(h->daemon->fs, observer);
    while (drops) {
        struct efsd_export_item *item = drops;
        drops = item->next_drop;
        efsd_export_drop(efsd_export_item_free(item));
    }
    if (pending)
        efs_requests_cancel(h->daemon->fs, item_is_dropped);
}

/* ---- requests ----------------------------------------------------------------------------------------------- */

/* Lock held. NULL: the tag is in use or out of range, too many experts are PENDING, or no memory. */
static struct efsd_export_item *client_alloc_tag(struct efsd_export_client *s, uint32_t asked)
{
    uint32_t tag = asked & ~EFS_EXPORT_WITH_LAYOUT;
    /* experts dropped while PENDING count, too, to limit a client that requests and drops in a loop */
    bool good = tag < EFS_EXPORT_TAGS && !efsd_export_item_find(s, tag) && s->references <= EFS_EXPORT_TAGS;
    struct efsd_export_item **all = good ? efsd_export_grow(s->items, &s->tags, tag, sizeof(*s->items)) : NULL;
    if (all)
        s->items = all;
    struct efsd_export_item *item = all ? calloc(1, sizeof(*item)) : NULL;
    if (item) {
        *item = (struct efsd_export_item){.client = s, .tag = tag, .with_layout = asked & EFS_EXPORT_WITH_LAYOUT};
        s->items[tag] = item;
        s->references++;
        s->requested++;
        s->export->pending++;
    }
    return item;
}

/* Takes the tags of a request. false: a tag is not available; the caller disconnects the client. */
static bool client_alloc_tags(struct efsd_export_client *s, const struct efs_export_ask *ask,
                              struct efsd_export_item *pending[EFS_EXPORT_ITEMS])
{
    uint32_t taken = 0;
    pthread_mutex_lock(&s->export->lock);
    for (; taken < ask->head.count; taken++) {
        uint32_t tag = ask->item[taken].tag;
        pending[taken] = tag == EFS_EXPORT_NOTIFY ? NULL : client_alloc_tag(s, tag);
        if (tag != EFS_EXPORT_NOTIFY && !pending[taken])
            break;
    }
    bool good = taken == ask->head.count;
    while (!good && taken-- > 0) {
        if (pending[taken]) {
            s->items[pending[taken]->tag] = NULL;
            free(pending[taken]);
            s->references--;
            s->export->pending--;
        }
    }
    pthread_mutex_unlock(&s->export->lock);
    return good;
}

static errint_t client_submit(struct efsd_export_client *s, const struct efs_export_ask *ask,
                              struct efsd_export_item **pending)
{
    struct efsd *daemon = s->export->daemon;
    struct efs_need needs[EFS_EXPORT_ITEMS];
    void *args[EFS_EXPORT_ITEMS];
    struct efs_error err = {.text = ""};
    struct efs_request *none;
    for (uint32_t i = 0; i < ask->head.count; i++)
        needs[i] = (struct efs_need){ask->item[i].expert, ask->item[i].tokens};
    errint_t rc = efs_experts_find(daemon->fs, ask->stack, ask->layer, needs, ask->head.count, &err);
    for (uint32_t i = 0; i < ask->head.count; i++)
        args[i] = pending[i]; /* NULL for EFS_EXPORT_NOTIFY: the client holds the expert already and gets no answer */
    const bool may = efs_exports_coded(daemon->fs);
    const struct efs_request_how how = {
        .form = may ? (enum efs_form)ask->form : EFS_FORM_FULL, .arrived = efsd_export_complete, .args = args};
    if (rc == 0 && !may && ask->form == EFS_FORM_CODED)
        rc = efs_fail(&err, -EOPNOTSUPP, "coded experts cannot be handed out here");
    if (rc == 0)
        rc = efs_request_submit(daemon->fs, needs, ask->head.count, &how, &none, &err);
    return efsd_want_finish(daemon, s->user, rc, &err);
}

/* Whether it may have as many experts PENDING as it has now, with those just requested: up to PENDING_OF_EACH always,
 * more while those of all clients together are within the limit. */
static bool client_may_wait(struct efsd_export_client *s)
{
    pthread_mutex_lock(&s->export->lock);
    const bool may = s->references - 1 <= PENDING_OF_EACH || s->export->pending <= s->export->pending_max;
    pthread_mutex_unlock(&s->export->lock);
    if (!may && !s->refused)
        efsd_log(EFS_LOG_WARNING,
                 "a client has %u experts requested that were not sent yet: more are refused, it opens "
                 "their files instead",
                 s->references - 1);
    s->refused |= !may;
    return may;
}

static bool client_handle_request(struct efsd_export_client *s, const struct efs_export_ask *ask)
{
    struct efsd_export_item *pending[EFS_EXPORT_ITEMS];
    if (ask->head.count == 0 || ask->form > EFS_FORM_ANY || !memchr(ask->stack, '\0', sizeof(ask->stack)) ||
        !client_alloc_tags(s, ask, pending))
        return false;
    efsd_shrink_leased(s->export->daemon);
    errint_t rc = client_may_wait(s) ? client_submit(s, ask, pending) : -EBUSY;
    for (uint32_t i = 0; rc < 0 && i < ask->head.count; i++)
        if (pending[i])
            efsd_export_complete(pending[i], rc, NULL, 0);
    return true;
}

static void client_handle_drop(struct efsd_export_client *s, const struct efs_export_ask *ask)
{
    bool pending = false;
    for (uint32_t i = 0; i < ask->head.count; i++) {
        uint32_t tag = ask->item[i].tag;
        struct efsd_drop drop = {NULL, 0};
        pthread_mutex_lock(&s->export->lock);
        struct efsd_export_item *item = efsd_export_item_find(s, tag);
        if (item) {
            s->items[tag] = NULL;
            item->dropped = true;
            if (item->request)
                drop = efsd_export_item_free(item);
            else
                pending = true;
        }
        pthread_mutex_unlock(&s->export->lock);
        efsd_export_drop(drop);
    }
    if (pending)
        efs_requests_cancel(s->export->daemon->fs, item_is_dropped);
}

/* A thread of the client waits for all of these tags. A tag that is free has failed, and its error is sent
 * separately. */
static bool client_handle_wait(struct efsd_export_client *s, const struct efs_export_wait *wait, size_t bytes)
{
    struct efs_request_ref all[EFS_EXPORT_ROUTED];
    uint32_t count = 0;
    if (wait->head.count == 0 || wait->head.count > EFS_EXPORT_ROUTED ||
        bytes != offsetof(struct efs_export_wait, tag) + wait->head.count * sizeof(wait->tag[0]))
        return false;
    pthread_mutex_lock(&s->export->lock);
    for (uint32_t i = 0; i < wait->head.count; i++) {
        const struct efsd_export_item *item = efsd_export_item_find(s, wait->tag[i]);
        if (item)
            all[count++] = (struct efs_request_ref){item->request, item->index, item};
    }
    pthread_mutex_unlock(&s->export->lock);
    const struct efs_export_wait stuck = {
        .head = {offsetof(struct efs_export_wait, tag), EFS_EXPORT_VERSION, EFS_EXPORT_STUCK, 0},
        .number = wait->number};
    if (efs_requests_are_deadlocked(s->export->daemon->fs, all, count)) /* only this thread drops EXPORTED experts */
        efsd_export_client_send(s, &stuck.head, -1); /* if the socket is full, the client sends the request again */
    return true;
}

static void client_handle_unmapped(struct efsd_export_client *s, const struct efs_export_ask *ask)
{
    pthread_mutex_lock(&s->export->lock);
    for (uint32_t i = 0; i < ask->head.count; i++) {
        uint32_t window = ask->item[i].tag;
        if (window / 8 < s->window_map_bytes)
            s->window_map[window / 8] &= (uint8_t) ~(1u << (window % 8));
    }
    pthread_mutex_unlock(&s->export->lock);
}

/* Observed or predicted routing of a layer. false: the packet is malformed. An unknown layer or expert is logged as a
 * refused hint. */
static bool client_handle_routing(struct efsd_export_client *s, const struct efs_export_routing *r, size_t bytes)
{
    struct efsd *daemon = s->export->daemon;
    uint32_t experts[EFS_EXPORT_ROUTED];
    float weights[EFS_EXPORT_ROUTED];
    struct efs_error err = {.text = ""};
    if (r->head.count > EFS_EXPORT_ROUTED ||
        bytes != offsetof(struct efs_export_routing, item) + r->head.count * sizeof(r->item[0]) ||
        !memchr(r->stack, '\0', sizeof(r->stack)))
        return false;
    for (uint32_t i = 0; i < r->head.count; i++) {
        experts[i] = r->item[i].expert;
        weights[i] = r->item[i].weight;
    }
    const struct efs_routing routing = {.sequence = r->sequence,
                                        .stack = r->stack,
                                        .layer = r->layer,
                                        .tokens = r->tokens,
                                        .count = r->head.count,
                                        .experts = experts,
                                        .weights = r->weighed ? weights : NULL};
    if (!s->observer)
        s->observer = efs_routing_observer(daemon->fs);
    errint_t rc = efs_routing_submit(daemon->fs, s->observer, r->head.kind == EFS_EXPORT_HINT, &routing, &err);
    efsd_hint_finish(daemon, s->user, rc, &err);
    return true;
}

/* Any packet of a client. */
union packet {
    struct efs_export_head head;
    struct efs_export_ask ask;
    struct efs_export_routing routing;
    struct efs_export_wait wait;
};

/* Processes a packet. false: it is malformed; the caller disconnects the client. */
static bool client_handle_packet(struct efsd_export_client *s, const union packet *packet, size_t bytes)
{
    const struct efs_export_head *head = &packet->head;
    const struct efs_export_ask *ask = &packet->ask;
    if (bytes < sizeof(*head) || head->bytes != bytes || head->version != EFS_EXPORT_VERSION)
        return false;
    if (head->kind == EFS_EXPORT_LIST && bytes == sizeof(*head) && head->count == 0) {
        efsd_export_list(s);
        return true;
    }
    if (head->kind == EFS_EXPORT_OBSERVE || head->kind == EFS_EXPORT_HINT)
        return client_handle_routing(s, &packet->routing, bytes);
    if (head->kind == EFS_EXPORT_WAIT)
        return client_handle_wait(s, &packet->wait, bytes);
    if (head->count > EFS_EXPORT_ITEMS ||
        bytes != offsetof(struct efs_export_ask, item) + head->count * sizeof(ask->item[0]))
        return false;
    switch (head->kind) {
    case EFS_EXPORT_ASK:
        return client_handle_request(s, ask);
    case EFS_EXPORT_DROP:
        client_handle_drop(s, ask);
        return true;
    case EFS_EXPORT_UNMAPPED:
        client_handle_unmapped(s, ask);
        return true;
    default:
        return false;
    }
}

void efsd_export_client_receive(struct efsd_export_client *s)
{
    union packet packet;
    for (uint32_t i = 0; i < PACKETS; i++) {
        ssize_t n = recv(s->fd, &packet, sizeof(packet), MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        bool good = n > 0 && (size_t)n <= sizeof(packet) && client_handle_packet(s, &packet, (size_t)n);
        if (n > 0 && !good)
            efsd_log(EFS_LOG_WARNING, "a client of %s sent an invalid message: disconnected", s->export->socket.path);
        if (!good) {
            efsd_export_client_end(s);
            return;
        }
    }
}
