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

#define EXPERTS_OF_EACH 64u /* experts that a client may always have in requests that have not ended */
#define PACKETS 16u         /* packets of a client per event, so that other clients are served in between */

/* ---- clients ----------------------------------------------------------------------------------------------- */

static bool item_is_dropped(const void *item)
{
    return ((const struct efsd_export_item *)item)->dropped;
}

/* Export thread. The budget leaves memory to what clients have mapped. */
static void export_leave(struct efsd_export *h)
{
    uint64_t least = EFS_LEAVE_HALF;
    pthread_mutex_lock(&h->lock);
    for (const struct efsd_export_client *s = h->clients; s; s = s->next)
        if (s->leaves && s->disk_bytes < least)
            least = s->disk_bytes;
    pthread_mutex_unlock(&h->lock);
    if (least != h->disk_bytes)
        efs_budget_leave_later(h->daemon->fs, least);
    h->disk_bytes = least;
}

/* Lock held. Ends the connection, which may free the client. Returns the EXPORTED experts, for the caller to drop
 * without lock. */
static struct efsd_export_item *client_end(struct efsd_export_client *s)
{
    struct efsd_export_client **at = &s->export->clients;
    struct efsd_export_item *drops = NULL;
    uint32_t list = 0;
    for (struct efsd_export_item *item; (item = efsd_export_item_pop(s, &list));) {
        item->dropped = true;
        if (item->request) {
            item->next = drops;
            drops = item;
        }
    }
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->export->client_count--;
    efsd_export_client_heard(s);
    epoll_ctl(s->export->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    efsd_export_close(s->export, s->fd);
    s->fd = -1;
    efsd_export_client_unref(s);
    return drops;
}

/* The next packet of this client begins a request. */
static void client_begin_request(struct efsd_export_client *s)
{
    pthread_mutex_lock(&s->export->lock);
    efsd_export_charge_unref(s->ask->charge);
    pthread_mutex_unlock(&s->export->lock);
    s->ask->charge = NULL;
    s->ask->count = 0;
}

void efsd_export_client_end_request(struct efsd_export_client *s, errint_t error)
{
    struct efsd_export_ask *ask = s->ask;
    for (uint32_t i = 0; ask && i < ask->count; i++)
        efsd_export_complete(ask->args[i], error, NULL, 0);
    if (ask)
        client_begin_request(s);
}

void efsd_export_client_end(struct efsd_export_client *s)
{
    struct efsd_export *h = s->export; /* client_end() may free s */
    uint32_t observer = s->observer;
    const bool left = s->leaves;
    efsd_export_client_end_request(s, -ECANCELED);
    pthread_mutex_lock(&h->lock);
    const bool pending = s->pending > 0;
    struct efsd_export_item *drops = client_end(s);
    pthread_mutex_unlock(&h->lock);
    if (observer)
        efs_routing_observer_end(h->daemon->fs, observer);
    if (left)
        export_leave(h);
    if (pending) /* before the drops, which would admit them */
        efs_requests_cancel(h->daemon->fs, item_is_dropped);
    while (drops) {
        struct efsd_export_item *item = drops;
        drops = item->next;
        pthread_mutex_lock(&h->lock);
        const struct efsd_drop drop = efsd_export_item_free(item);
        pthread_mutex_unlock(&h->lock);
        efsd_export_drop(drop);
    }
}

/* ---- requests ----------------------------------------------------------------------------------------------- */

/* Lock held. NULL: the tag is in use or out of range, too many experts are PENDING, or no memory. */
static struct efsd_export_item *client_alloc_tag(struct efsd_export_client *s, uint32_t asked)
{
    uint32_t tag = asked & ~EFS_EXPORT_WITH_LAYOUT;
    /* experts dropped while PENDING count, too, to limit a client that requests and drops in a loop */
    bool good = tag < EFS_EXPORT_TAGS && !efsd_export_item_find(s, tag) && s->pending < EFS_EXPORT_TAGS;
    struct efsd_export_item *item = good ? calloc(1, sizeof(*item)) : NULL;
    if (!item)
        return NULL;
    *item = (struct efsd_export_item){
        .client = s, .charge = s->ask->charge, .tag = tag, .with_layout = asked & EFS_EXPORT_WITH_LAYOUT};
    if (efsd_export_item_add(item)) {
        free(item);
        return NULL;
    }
    item->charge->references++;
    s->requested++;
    s->pending++;
    s->export->pending++;
    return item;
}

/* Takes the tags of a packet of a request. false: a tag is not available; the caller disconnects the client. */
static bool client_alloc_tags(struct efsd_export_client *s, const struct efs_export_ask *ask,
                              struct efsd_export_item *pending[EFS_EXPORT_ITEMS])
{
    uint32_t taken = 0;
    pthread_mutex_lock(&s->export->lock);
    s->ask->charge = efsd_export_charge_add(s, s->ask->charge, ask->head.count);
    for (; s->ask->charge && taken < ask->head.count; taken++) {
        uint32_t tag = ask->item[taken].tag;
        if (!(pending[taken] = client_alloc_tag(s, tag)))
            break;
    }
    bool good = taken == ask->head.count;
    while (!good && taken-- > 0) {
        efsd_export_item_remove(pending[taken]);
        efsd_export_item_free(pending[taken]);
        s->pending--;
        s->export->pending--;
    }
    pthread_mutex_unlock(&s->export->lock);
    return good;
}

/* Removes experts whose tags were dropped or cancelled between the packets of the request. */
static void client_remove_dropped(struct efsd_export_ask *ask)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ask->count; i++) {
        if (item_is_dropped(ask->args[i])) {
            efsd_export_complete(ask->args[i], -ECANCELED, NULL, 0);
            continue;
        }
        ask->needs[count] = ask->needs[i];
        ask->args[count++] = ask->args[i];
    }
    ask->count = count;
}

static errint_t client_submit(struct efsd_export_client *s, struct efsd_export_ask *ask)
{
    struct efsd *daemon = s->export->daemon;
    struct efs_error err = {.text = ""};
    struct efs_client_request *none;
    client_remove_dropped(ask);
    if (ask->count == 0)
        return 0;
    errint_t rc = efs_experts_find(daemon->fs, ask->stack, ask->layer, ask->needs, ask->count, &err);
    const struct efs_request_how how = {.form = (enum efs_form)(ask->form & ~EFS_EXPORT_COUNTED),
                                        .counted = ask->form & EFS_EXPORT_COUNTED,
                                        .arrived = efsd_export_complete,
                                        .args = ask->args,
                                        .holder = s->holder,
                                        .oversize = efsd_export_oversize};
    if (rc == 0)
        rc = efs_request_submit(daemon->fs, ask->needs, ask->count, &how, &none, &err);
    efsd_want_finish(daemon, s->user, rc, &err);
    return rc;
}

/* Whether it may have as many experts as it has now, with those just requested: up to EXPERTS_OF_EACH always, more
 * while those of all clients together are within the limit. The same for those that are PENDING. */
static bool client_may_request(struct efsd_export_client *s)
{
    const struct efsd_export *h = s->export;
    pthread_mutex_lock(&s->export->lock);
    const bool may = (s->pending <= EXPERTS_OF_EACH || h->pending <= h->pending_max) &&
                     (s->experts <= EXPERTS_OF_EACH || h->experts <= h->experts_max);
    const uint32_t pending = s->pending, experts = s->experts;
    pthread_mutex_unlock(&s->export->lock);
    if (!may && !s->refused)
        efsd_log(EFS_LOG_WARNING,
                 "a client has %u experts in its requests, of which %u were not sent yet: more are refused", experts,
                 pending);
    s->refused |= !may;
    return may;
}

/* Adds the experts of a packet to the client's request. false: the packet is malformed. */
static bool client_add_to_request(struct efsd_export_client *s, const struct efs_export_ask *packet, uint32_t form)
{
    struct efsd_export_ask *ask = s->ask;
    struct efsd_export_item *pending[EFS_EXPORT_ITEMS];
    if (ask->count == 0) {
        ask->layer = packet->layer;
        ask->form = form;
        memcpy(ask->stack, packet->stack, sizeof(ask->stack));
    }
    if (packet->layer != ask->layer || form != ask->form || strcmp(packet->stack, ask->stack) != 0 ||
        packet->head.count > EFS_EXPORT_ROUTED - ask->count || !client_alloc_tags(s, packet, pending))
        return false;
    for (uint32_t i = 0; i < packet->head.count; i++) {
        ask->needs[ask->count] = (struct efs_need){packet->item[i].expert, packet->item[i].tokens};
        ask->args[ask->count++] = pending[i];
    }
    return true;
}

static bool client_handle_request(struct efsd_export_client *s, const union efsd_export_packet *any)
{
    const struct efs_export_ask *packet = &any->ask;
    uint32_t form = packet->form & ~EFS_EXPORT_MORE;
    if (packet->head.count == 0 || (form & ~EFS_EXPORT_COUNTED) > EFS_FORM_ANY ||
        !memchr(packet->stack, '\0', sizeof(packet->stack)))
        return false;
    if (!s->ask && !(s->ask = calloc(1, sizeof(*s->ask))))
        return false;
    if (!client_add_to_request(s, packet, form))
        return false;
    if (packet->form & EFS_EXPORT_MORE)
        return true;
    efsd_export_client_cork(s); /* experts in memory are answered at once */
    errint_t rc = client_may_request(s) ? client_submit(s, s->ask) : -EBUSY;
    if (rc < 0)
        efsd_export_client_end_request(s, rc);
    else
        client_begin_request(s);
    efsd_export_client_uncork(s);
    return true;
}

/* Drops experts, or cancels them. Cancels those that wait for memory first: a drop would admit them. false: a tag
 * is out of range. */
static bool client_handle_drop(struct efsd_export_client *s, const union efsd_export_packet *packet)
{
    const struct efs_export_ask *ask = &packet->ask;
    const bool cancel = ask->head.kind == EFS_EXPORT_CANCEL;
    struct efsd_drop drops[EFS_EXPORT_ITEMS];
    uint32_t count = 0;
    bool pending = false, good = true;
    pthread_mutex_lock(&s->export->lock);
    for (uint32_t i = 0; i < ask->head.count; i++) {
        uint32_t tag = ask->item[i].tag;
        struct efsd_export_item *item = efsd_export_item_find(s, tag);
        if (item) {
            efsd_export_item_remove(item);
            item->dropped = true;
            if (item->request)
                drops[count++] = efsd_export_item_free(item);
            else
                pending = true;
        }
        good = good && (!cancel || tag < EFS_EXPORT_TAGS);
        if (cancel && good)
            efsd_export_client_refuse(s, tag, -ECANCELED);
    }
    pthread_mutex_unlock(&s->export->lock);
    if (pending)
        efs_requests_cancel(s->export->daemon->fs, item_is_dropped);
    while (count > 0)
        efsd_export_drop(drops[--count]);
    return good;
}

/* Reports whether the requests of these experts are oversize. */
static bool client_handle_refresh(struct efsd_export_client *s, const union efsd_export_packet *packet)
{
    const struct efs_export_ask *ask = &packet->ask;
    pthread_mutex_lock(&s->export->lock);
    for (uint32_t i = 0; i < ask->head.count; i++) {
        struct efsd_export_item *item = efsd_export_item_find(s, ask->item[i].tag);
        if (!item || item->request)
            continue;
        item->told_oversize = !item->oversize;
        efsd_export_client_report_oversize(s, item);
    }
    pthread_mutex_unlock(&s->export->lock);
    return true;
}

static bool client_handle_unmapped(struct efsd_export_client *s, const union efsd_export_packet *packet)
{
    const struct efs_export_ask *ask = &packet->ask;
    pthread_mutex_lock(&s->export->lock);
    for (uint32_t i = 0; i < ask->head.count; i++) {
        uint32_t window = ask->item[i].tag;
        if (window / 8 < s->window_map_bytes)
            s->window_map[window / 8] &= (uint8_t) ~(1u << (window % 8));
    }
    pthread_mutex_unlock(&s->export->lock);
    return true;
}

/* Observed, predicted or counted routing of a layer. false: the packet is malformed. An unknown layer or expert is
 * logged as a refused hint. */
static bool client_handle_routing(struct efsd_export_client *s, const union efsd_export_packet *packet)
{
    const struct efs_export_routing *r = &packet->routing;
    struct efsd *daemon = s->export->daemon;
    uint32_t experts[EFS_EXPORT_ROUTED];
    float weights[EFS_EXPORT_ROUTED];
    struct efs_error err = {.text = ""};
    if (!memchr(r->stack, '\0', sizeof(r->stack)))
        return false;
    for (uint32_t i = 0; i < r->head.count; i++) {
        experts[i] = r->item[i].expert;
        weights[i] = r->item[i].weight;
    }
    const struct efs_routing routing = {.sequence = r->sequence,
                                        .stack = r->stack,
                                        .layer = r->layer,
                                        .count = r->head.count,
                                        .experts = experts,
                                        .weights = r->weighed ? weights : NULL};
    const enum efs_routing_kind kind = r->head.kind == EFS_EXPORT_HINT    ? EFS_ROUTING_PREDICTED
                                       : r->head.kind == EFS_EXPORT_COUNT ? EFS_ROUTING_COUNTED
                                                                          : EFS_ROUTING_CHOSEN;
    if (!s->observer)
        s->observer = efs_routing_observer(daemon->fs);
    errint_t rc = efs_routing_submit(daemon->fs, s->observer, kind, &routing, &err);
    efsd_hint_finish(daemon, s->user, rc, &err);
    return true;
}

/* false: a number that no client sends. */
static bool client_handle_leave(struct efsd_export_client *s, const union efsd_export_packet *packet)
{
    const uint64_t bytes = packet->leave.disk_bytes;
    if (bytes >= EFS_LEAVE_MOST)
        return false;
    s->leaves = true;
    s->disk_bytes = bytes;
    export_leave(s->export);
    return true;
}

static bool client_handle_device(struct efsd_export_client *s, const union efsd_export_packet *packet)
{
    const struct efs_export_device *d = &packet->device;
    const uint64_t counts[] = {d->hits, d->copied, d->computed, d->copied_bytes, d->wait_ns};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (counts[i] > EFS_EXPORT_COUNT_MAX)
            return false;
    if (d->slots > UINT32_MAX)
        return false;
    pthread_mutex_lock(&s->export->lock);
    s->device = *d;
    pthread_mutex_unlock(&s->export->lock);
    return true;
}

#define HANDLED_CLIENT(number, handler, ...) [number] = {client_handle_##handler, __VA_ARGS__},
#define HANDLED_MOUNT(number, handler, ...)
#define HANDLED(number, name, sender, handler, ...) HANDLED_##sender(number, handler, __VA_ARGS__)

/* Says why a client is disconnected that has sent this. */
static void client_log_malformed(const struct efsd_export_client *s, const struct efs_export_head *head, size_t bytes)
{
    const char *path = s->export->socket.path;
    if (bytes >= sizeof(*head) && head->bytes == bytes && head->version != EFS_EXPORT_VERSION)
        efsd_log(EFS_LOG_WARNING,
                 "a client of %s speaks version %u of the socket's protocol, this mount version %u: disconnected\n"
                 "hint: the %s is of an older expertfs: %s",
                 path, head->version, EFS_EXPORT_VERSION, head->version < EFS_EXPORT_VERSION ? "program" : "mount",
                 head->version < EFS_EXPORT_VERSION ? "install or build it again"
                                                    : "`expertctl down` and `up` make it again");
    else
        efsd_log(EFS_LOG_WARNING, "a client of %s sent an invalid message: disconnected", path);
}

/* Processes a packet. false: it is malformed; the caller disconnects the client. */
static bool client_handle_packet(struct efsd_export_client *s, const union efsd_export_packet *packet, size_t bytes)
{
    static const struct {
        bool (*handle)(struct efsd_export_client *s, const union efsd_export_packet *packet);
        struct efs_export_shape shape;
    } all[EFS_EXPORT_KINDS] = {EFS_EXPORT_PACKETS(HANDLED)};
    const struct efs_export_head *head = &packet->head;
    return bytes >= sizeof(*head) && head->bytes == bytes && head->version == EFS_EXPORT_VERSION &&
           head->kind < EFS_EXPORT_KINDS && all[head->kind].handle &&
           efs_export_has_shape(head, bytes, all[head->kind].shape) && all[head->kind].handle(s, packet);
}

void efsd_export_client_receive(struct efsd_export_client *s)
{
    union efsd_export_packet packet;
    for (uint32_t i = 0; i < PACKETS; i++) {
        if (efsd_export_client_sends_descriptors(s)) {
            efsd_log(EFS_LOG_WARNING, "a client of %s sent descriptors: disconnected", s->export->socket.path);
            efsd_export_client_end(s);
            return;
        }
        ssize_t n = recv(s->fd, &packet, sizeof(packet), MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        pthread_mutex_lock(&s->export->lock);
        efsd_export_client_heard(s);
        pthread_mutex_unlock(&s->export->lock);
        bool good = n > 0 && (size_t)n <= sizeof(packet) && client_handle_packet(s, &packet, (size_t)n);
        if (n > 0 && !good)
            client_log_malformed(s, &packet.head, (size_t)n);
        if (!good) {
            efsd_export_client_end(s);
            return;
        }
    }
}
