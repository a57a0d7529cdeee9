/* SPDX-License-Identifier: Apache-2.0 */
/* export_receive.c - see export_internal.h. The experts of a session are dropped when it ends, also if the client was
 * killed. */
#include "export_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "want.h"

#define PACKETS 16u /* packets of a session per event, so that other sessions are served in between */

/* ---- sessions ----------------------------------------------------------------------------------------------- */

/* Lock held. Ends the session, which may free it. Returns the HELD experts, for the caller to drop without lock. */
static struct efsd_held *session_end(struct efsd_session *s)
{
    struct efsd_session **at = &s->export->sessions;
    struct efsd_held *drops = NULL;
    for (uint32_t tag = 0; tag < s->tags; tag++) {
        struct efsd_held *held = s->held[tag];
        s->held[tag] = NULL;
        if (held && !held->request) {
            held->dropped = true;
        } else if (held) {
            held->next_drop = drops;
            drops = held;
        }
    }
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->export->session_count--;
    epoll_ctl(s->export->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    close(s->fd);
    s->fd = -1;
    efsd_session_unref(s);
    return drops;
}

void efsd_export_end(struct efsd_session *s)
{
    struct efsd_export *h = s->export; /* session_end() may free s */
    uint32_t observer = s->observer;
    pthread_mutex_lock(&h->lock);
    struct efsd_held *drops = session_end(s);
    pthread_mutex_unlock(&h->lock);
    if (observer)
        efs_routing_observer_end(h->daemon->fs, observer);
    while (drops) {
        struct efsd_held *held = drops;
        drops = held->next_drop;
        efsd_export_drop(efsd_held_free(held));
    }
}

/* ---- requests ----------------------------------------------------------------------------------------------- */

/* Lock held. NULL: the tag is in use or out of range, too many experts are COMING, or no memory. */
static struct efsd_held *session_take_tag(struct efsd_session *s, uint32_t asked)
{
    uint32_t tag = asked & ~EFS_EXPORT_WITH_LAYOUT;
    /* experts dropped while COMING count, too, to limit a client that requests and drops in a loop */
    bool good = tag < EFS_EXPORT_TAGS && !efsd_held_of(s, tag) && s->references <= EFS_EXPORT_TAGS;
    struct efsd_held **all = good ? efsd_export_grow(s->held, &s->tags, tag, sizeof(*s->held)) : NULL;
    if (all)
        s->held = all;
    struct efsd_held *held = all ? calloc(1, sizeof(*held)) : NULL;
    if (held) {
        *held = (struct efsd_held){.session = s, .tag = tag, .with_layout = asked & EFS_EXPORT_WITH_LAYOUT};
        s->held[tag] = held;
        s->references++;
    }
    return held;
}

/* Takes the tags of a request. false: a tag is not available; the caller disconnects the client. */
static bool session_take_tags(struct efsd_session *s, const struct efs_export_ask *ask,
                              struct efsd_held *coming[EFS_EXPORT_ITEMS])
{
    uint32_t taken = 0;
    pthread_mutex_lock(&s->export->lock);
    for (; taken < ask->head.count; taken++) {
        uint32_t tag = ask->item[taken].tag;
        coming[taken] = tag == EFS_EXPORT_NOTIFY ? NULL : session_take_tag(s, tag);
        if (tag != EFS_EXPORT_NOTIFY && !coming[taken])
            break;
    }
    bool good = taken == ask->head.count;
    while (!good && taken-- > 0) {
        if (coming[taken]) {
            s->held[coming[taken]->tag] = NULL;
            free(coming[taken]);
            s->references--;
        }
    }
    pthread_mutex_unlock(&s->export->lock);
    return good;
}

static errint_t session_submit(struct efsd_session *s, const struct efs_export_ask *ask, struct efsd_held **coming)
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
        args[i] = coming[i]; /* NULL for EFS_EXPORT_NOTIFY: the client holds the expert already and gets no answer */
    const bool may = efs_hands_out_coded(daemon->fs);
    const struct efs_request_how how = {
        .form = may ? (enum efs_form)ask->form : EFS_FORM_FULL, .arrived = efsd_export_arrived, .args = args};
    if (rc == 0 && !may && ask->form == EFS_FORM_CODED)
        rc = efs_fail(&err, -EOPNOTSUPP, "coded experts cannot be handed out here");
    if (rc == 0)
        rc = efs_request_submit(daemon->fs, needs, ask->head.count, &how, &none, &err);
    return efsd_want_told(daemon, s->user, rc, &err);
}

static bool session_take_ask(struct efsd_session *s, const struct efs_export_ask *ask)
{
    struct efsd_held *coming[EFS_EXPORT_ITEMS];
    if (ask->head.count == 0 || ask->form > EFS_FORM_ANY || !memchr(ask->stack, '\0', sizeof(ask->stack)) ||
        !session_take_tags(s, ask, coming))
        return false;
    efsd_shrink_leased(s->export->daemon);
    errint_t rc = session_submit(s, ask, coming);
    for (uint32_t i = 0; rc < 0 && i < ask->head.count; i++)
        if (coming[i])
            efsd_export_arrived(coming[i], rc, NULL, 0);
    return true;
}

static void session_take_drop(struct efsd_session *s, const struct efs_export_ask *ask)
{
    for (uint32_t i = 0; i < ask->head.count; i++) {
        uint32_t tag = ask->item[i].tag;
        struct efsd_drop drop = {NULL, 0};
        pthread_mutex_lock(&s->export->lock);
        struct efsd_held *held = efsd_held_of(s, tag);
        if (held) {
            s->held[tag] = NULL;
            held->dropped = true;
            if (held->request)
                drop = efsd_held_free(held);
        }
        pthread_mutex_unlock(&s->export->lock);
        efsd_export_drop(drop);
    }
}

/* A thread of the client waits for all of these tags. A tag that is free has failed, and its error is sent
 * separately. */
static bool session_take_wait(struct efsd_session *s, const struct efs_export_wait *wait, size_t bytes)
{
    struct efs_request_held all[EFS_EXPORT_ROUTED];
    uint32_t count = 0;
    if (wait->head.count == 0 || wait->head.count > EFS_EXPORT_ROUTED ||
        bytes != offsetof(struct efs_export_wait, tag) + wait->head.count * sizeof(wait->tag[0]))
        return false;
    pthread_mutex_lock(&s->export->lock);
    for (uint32_t i = 0; i < wait->head.count; i++) {
        const struct efsd_held *held = efsd_held_of(s, wait->tag[i]);
        if (held)
            all[count++] = (struct efs_request_held){held->request, held->index, held};
    }
    pthread_mutex_unlock(&s->export->lock);
    const struct efs_export_wait stuck = {
        .head = {offsetof(struct efs_export_wait, tag), EFS_EXPORT_VERSION, EFS_EXPORT_STUCK, 0},
        .number = wait->number};
    if (efs_requests_are_stuck(s->export->daemon->fs, all, count)) /* only this thread drops HELD experts */
        efsd_session_send(s, &stuck.head, -1); /* if the socket is full, the client sends the request again */
    return true;
}

static void session_take_unmapped(struct efsd_session *s, const struct efs_export_ask *ask)
{
    pthread_mutex_lock(&s->export->lock);
    for (uint32_t i = 0; i < ask->head.count; i++) {
        uint32_t window = ask->item[i].tag;
        if (window / 8 < s->windows)
            s->has[window / 8] &= (uint8_t) ~(1u << (window % 8));
    }
    pthread_mutex_unlock(&s->export->lock);
}

/* Observed or predicted routing of a layer. false: the packet is malformed. An unknown layer or expert is logged as a
 * refused hint. */
static bool session_take_routing(struct efsd_session *s, const struct efs_export_routing *r, size_t bytes)
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
    errint_t rc = efs_routing_take(daemon->fs, s->observer, r->head.kind == EFS_EXPORT_HINT, &routing, &err);
    efsd_hint_told(daemon, s->user, rc, &err);
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
static bool session_take(struct efsd_session *s, const union packet *packet, size_t bytes)
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
        return session_take_routing(s, &packet->routing, bytes);
    if (head->kind == EFS_EXPORT_WAIT)
        return session_take_wait(s, &packet->wait, bytes);
    if (head->count > EFS_EXPORT_ITEMS ||
        bytes != offsetof(struct efs_export_ask, item) + head->count * sizeof(ask->item[0]))
        return false;
    switch (head->kind) {
    case EFS_EXPORT_ASK:
        return session_take_ask(s, ask);
    case EFS_EXPORT_DROP:
        session_take_drop(s, ask);
        return true;
    case EFS_EXPORT_UNMAPPED:
        session_take_unmapped(s, ask);
        return true;
    default:
        return false;
    }
}

void efsd_export_receive(struct efsd_session *s)
{
    union packet packet;
    for (uint32_t i = 0; i < PACKETS; i++) {
        ssize_t n = recv(s->fd, &packet, sizeof(packet), MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        bool good = n > 0 && (size_t)n <= sizeof(packet) && session_take(s, &packet, (size_t)n);
        if (n > 0 && !good)
            efsd_log(EFS_LOG_WARNING, "a client of %s sent an invalid message: disconnected", s->export->socket.path);
        if (!good) {
            efsd_export_end(s);
            return;
        }
    }
}
