/* SPDX-License-Identifier: Apache-2.0 */
/* export_answer.c - see export_internal.h. Lock held, unless stated otherwise. */
#include "export_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct efs_export_answer answer_to(uint32_t tag)
{
    return (struct efs_export_answer){
        .head = {sizeof(struct efs_export_answer), EFS_EXPORT_VERSION, EFS_EXPORT_ANSWER, 1}, .tag = tag};
}

static errint_t client_answer_error(struct efsd_export_client *s, uint32_t tag, errint_t error)
{
    struct efs_export_answer answer = answer_to(tag);
    answer.error = error;
    return efsd_export_client_send(s, &answer.head, -1);
}

static errint_t client_answer_full(struct efsd_export_client *s, const struct efsd_export_item *item)
{
    struct efs_window window;
    errint_t rc = efs_request_window(item->request, item->index, &window);
    if (rc)
        return rc;
    bool new = window.once || !efsd_export_client_has_window(s, window.number);
    if (new)
        rc = efs_request_open_window(item->request, item->index, window.number, &window);
    if (rc)
        return rc == -EAGAIN ? -EIO : rc;
    rc = window.once ? 0 : efsd_export_client_add_window(s, window.number);
    if (rc) {
        if (new)
            close(window.fd);
        return rc;
    }
    struct efs_export_answer answer = answer_to(item->tag);
    answer.window = window.number;
    answer.once = window.once;
    answer.window_bytes = window.bytes;
    answer.file_bytes = window.file_bytes;
    rc = efsd_export_client_send(s, &answer.head, new ? window.fd : -1);
    if (new)
        close(window.fd);
    if (rc && new && !window.once)
        s->window_map[window.number / 8] &= (uint8_t) ~(1u << (window.number % 8));
    return rc;
}

/* 0; -EAGAIN: the socket is full; -EBUSY and other errors: the expert cannot be sent. */
static errint_t client_answer_item(struct efsd_export_client *s, struct efsd_export_item *item)
{
    return efs_request_form(item->request, item->index) == EFS_FORM_CODED ? efsd_export_client_answer_coded(s, item)
                                                                          : client_answer_full(s, item);
}

void efsd_export_client_refuse(struct efsd_export_client *s, uint32_t tag, errint_t error)
{
    assert(error < 0);
    errint_t rc = s->queued ? -EAGAIN : client_answer_error(s, tag, error);
    if (rc == -EAGAIN)
        efsd_export_client_queue(s, NULL, tag, error);
    else if (rc < 0) /* no memory for a packet: the client would wait forever */
        shutdown(s->fd, SHUT_RDWR);
}

void efsd_export_client_report_oversize(struct efsd_export_client *s, struct efsd_export_item *item)
{
    struct efs_export_answer packet = answer_to(item->tag);
    const bool more = item->own_drops && item->own_drops != item->told_own_drops;
    if ((item->oversize == item->told_oversize && !more) || item->queued_oversize)
        return;
    packet.head.kind = item->oversize ? EFS_EXPORT_OVERSIZE : EFS_EXPORT_FITS;
    packet.window = item->own_drops;
    errint_t rc = efsd_export_client_send(s, &packet.head, -1);
    if (rc == 0) {
        item->told_oversize = item->oversize;
        item->told_own_drops = item->own_drops;
    } else if (rc == -EAGAIN)
        item->queued_oversize = efsd_export_client_queue(s, item, item->tag, 0);
    else
        shutdown(s->fd, SHUT_RDWR);
}

void efsd_export_oversize(void *arg, bool oversize, uint32_t own_drops)
{
    struct efsd_export_item *item = arg;
    struct efsd_export_client *s = item->client;
    pthread_mutex_lock(&s->export->lock);
    item->oversize = oversize;
    item->own_drops = own_drops;
    if (!item->dropped && s->fd >= 0)
        efsd_export_client_report_oversize(s, item);
    pthread_mutex_unlock(&s->export->lock);
}

/* Answers for an expert that is EXPORTED. If the expert cannot be sent, frees its tag, reports the error, and returns
 * the expert for the caller to drop. */
static struct efsd_drop client_answer(struct efsd_export_client *s, struct efsd_export_item *item)
{
    uint32_t tag = item->tag;
    assert(item->client == s && item->request && !item->dropped && efsd_export_item_find(s, tag) == item);
    errint_t rc = client_answer_item(s, item);
    if (rc == 0) {
        efsd_count(&s->export->daemon->counters.handouts, 1);
        return (struct efsd_drop){NULL, 0};
    }
    if (rc == -EAGAIN) {
        item->queued_answer = efsd_export_client_queue(s, item, tag, 0);
        return (struct efsd_drop){NULL, 0};
    }
    efsd_export_item_remove(item);
    efsd_export_client_refuse(s, tag, rc == -ECANCELED ? -EIO : rc);
    return efsd_export_item_free(item);
}

void efsd_export_drop(struct efsd_drop drop)
{
    if (drop.request)
        efs_client_drop(drop.request, drop.index);
}

/* Sends a packet that was queued, or queues it again. Returns an expert that cannot be sent, for the caller to drop. */
static struct efsd_drop client_send_queued(struct efsd_export_client *s, const struct efsd_queued_packet *queued)
{
    struct efsd_export_item *item = queued->item;
    const struct efsd_drop none = {NULL, 0};
    if (queued->error)
        efsd_export_client_refuse(s, queued->tag, queued->error);
    if (!item)
        return none;
    bool answer = item->queued_answer == queued;
    *(answer ? &item->queued_answer : &item->queued_oversize) = NULL;
    if (answer)
        return client_answer(s, item);
    if (!item->request)
        efsd_export_client_report_oversize(s, item);
    return none;
}

void efsd_export_flush(struct efsd_export_client *s)
{
    pthread_mutex_lock(&s->export->lock);
    if (efsd_export_client_send_late(s) == -EAGAIN) {
        pthread_mutex_unlock(&s->export->lock);
        return;
    }
    struct efsd_queued_packet *all = efsd_export_client_take_queued(s);
    efsd_export_client_poll(s, false);
    while (all) {
        struct efsd_queued_packet *one = all;
        all = one->next;
        const struct efsd_drop drop = client_send_queued(s, one);
        free(one);
        if (drop.request) {
            pthread_mutex_unlock(&s->export->lock);
            efsd_export_drop(drop);
            pthread_mutex_lock(&s->export->lock);
        }
    }
    pthread_mutex_unlock(&s->export->lock);
}

void efsd_export_complete(void *arg, errint_t error, struct efs_client_request *request, uint32_t index)
{
    struct efsd_export_item *item = arg;
    struct efsd_export_client *s = item->client;
    struct efsd_export *export = s->export;
    struct efsd_drop drop;
    uint32_t tag = item->tag;
    pthread_mutex_lock(&export->lock);
    assert(!item->request && s->pending > 0);
    s->pending--;
    export->pending--;
    item->request = request;
    item->index = index;
    if (item->dropped) {
        drop = efsd_export_item_free(item); /* its tag was freed when the client dropped it */
    } else if (error) {
        assert(efsd_export_item_find(s, tag) == item);
        efsd_export_item_remove(item);
        efsd_export_client_refuse(s, tag, error == -EAGAIN || error == -ECANCELED ? -EIO : error);
        drop = efsd_export_item_free(item);
    } else {
        drop = client_answer(s, item);
    }
    pthread_mutex_unlock(&export->lock);
    efsd_export_drop(drop);
}
