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

static errint_t client_answer_error(const struct efsd_export_client *s, uint32_t tag, errint_t error)
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
    bool new = !efsd_export_client_has_window(s, window.number);
    if (new)
        rc = efs_request_open_window(item->request, item->index, window.number, &window);
    if (rc)
        return rc == -EAGAIN ? -EIO : rc;
    rc = efsd_export_client_add_window(s, window.number);
    if (rc) {
        if (new)
            close(window.fd);
        return rc;
    }
    struct efs_export_answer answer = answer_to(item->tag);
    answer.window = window.number;
    answer.window_bytes = window.bytes;
    answer.file_bytes = window.file_bytes;
    rc = efsd_export_client_send(s, &answer.head, new ? window.fd : -1);
    if (new)
        close(window.fd);
    if (rc && new)
        s->window_map[window.number / 8] &= (uint8_t) ~(1u << (window.number % 8));
    return rc;
}

/* 0; -EAGAIN: the socket is full; -EBUSY and other errors: the expert cannot be sent. */
static errint_t client_answer_item(struct efsd_export_client *s, struct efsd_export_item *item)
{
    return efs_request_form(item->request, item->index) == EFS_FORM_CODED ? efsd_export_client_answer_coded(s, item)
                                                                          : client_answer_full(s, item);
}

static void client_queue_answer(struct efsd_export_client *s, uint32_t tag, errint_t error)
{
    struct efsd_queued_answer *queued = s->queued_count < EFS_EXPORT_TAGS ? calloc(1, sizeof(*queued)) : NULL;
    if (!queued) { /* the client does not read its answers, or no memory: disconnect it, it would wait forever */
        shutdown(s->fd, SHUT_RDWR);
        return;
    }
    *queued = (struct efsd_queued_answer){.tag = tag, .error = error};
    *s->queued_end = queued;
    s->queued_end = &queued->next;
    s->queued_count++;
    efsd_export_client_poll(s, true);
}

/* Reports that a tag is free. Does not look up the tag: the client may have used it for another request before this
 * error could be sent. */
static void client_refuse(struct efsd_export_client *s, uint32_t tag, errint_t error)
{
    assert(error < 0);
    errint_t rc = client_answer_error(s, tag, error);
    if (rc == -EAGAIN)
        client_queue_answer(s, tag, error);
    else if (rc < 0) /* no memory for a packet: the client would wait forever */
        shutdown(s->fd, SHUT_RDWR);
}

/* Reports to the client that the experts of the request with this tag do not fit into memory at once. */
static void client_tell_oversize(struct efsd_export_client *s, uint32_t tag)
{
    struct efs_export_answer packet = answer_to(tag);
    packet.head.kind = EFS_EXPORT_OVERSIZE;
    errint_t rc = efsd_export_client_send(s, &packet.head, -1);
    if (rc == -EAGAIN)
        client_queue_answer(s, tag, -EDEADLK);
    else if (rc < 0)
        shutdown(s->fd, SHUT_RDWR);
}

void efsd_export_oversize(void *arg, bool oversize)
{
    (void)oversize;
    const struct efsd_export_item *item = arg;
    struct efsd_export_client *s = item->client;
    pthread_mutex_lock(&s->export->lock);
    if (!item->dropped && s->fd >= 0)
        client_tell_oversize(s, item->tag);
    pthread_mutex_unlock(&s->export->lock);
}

/* Answers for an expert that is EXPORTED. If the expert cannot be sent, frees its tag, reports the error, and returns
 * the expert for the caller to drop. */
static struct efsd_drop client_answer(struct efsd_export_client *s, struct efsd_export_item *item)
{
    uint32_t tag = item->tag;
    assert(item->client == s && item->request && !item->dropped && s->items[tag] == item);
    errint_t rc = client_answer_item(s, item);
    if (rc == 0) {
        efsd_count(&s->export->daemon->counters.handouts, 1);
        return (struct efsd_drop){NULL, 0};
    }
    if (rc == -EAGAIN) {
        client_queue_answer(s, tag, 0);
        return (struct efsd_drop){NULL, 0};
    }
    s->items[tag] = NULL;
    client_refuse(s, tag, rc);
    return efsd_export_item_free(item);
}

void efsd_export_drop(struct efsd_drop drop)
{
    if (drop.request)
        efs_request_drop(drop.request, drop.index);
}

void efsd_export_flush(struct efsd_export_client *s)
{
    pthread_mutex_lock(&s->export->lock);
    struct efsd_queued_answer *all = s->queued;
    s->queued = NULL;
    s->queued_end = &s->queued;
    s->queued_count = 0;
    efsd_export_client_poll(s, false);
    while (all) {
        struct efsd_queued_answer *one = all;
        struct efsd_drop drop = {NULL, 0};
        all = one->next;
        struct efsd_export_item *item = efsd_export_item_find(s, one->tag);
        if (one->error == -EDEADLK && item && !item->request)
            client_tell_oversize(s, one->tag);
        else if (one->error && one->error != -EDEADLK)
            client_refuse(s, one->tag, one->error);
        else if (!one->error && item && item->request) /* else the client has dropped it meanwhile */
            drop = client_answer(s, item);
        free(one);
        if (drop.request) {
            pthread_mutex_unlock(&s->export->lock);
            efsd_export_drop(drop);
            pthread_mutex_lock(&s->export->lock);
        }
    }
    pthread_mutex_unlock(&s->export->lock);
    efsd_export_list_continue(s);
}

void efsd_export_complete(void *arg, errint_t error, struct efs_request *request, uint32_t index)
{
    struct efsd_export_item *item = arg;
    struct efsd_export_client *s = item->client;
    struct efsd_export *export = s->export;
    struct efsd_drop drop;
    uint32_t tag = item->tag;
    pthread_mutex_lock(&export->lock);
    assert(!item->request && s->references > 0);
    export->pending--;
    item->request = request;
    item->index = index;
    if (item->dropped) {
        drop = efsd_export_item_free(item); /* its tag was freed when the client dropped it */
    } else if (error) {
        assert(s->items[tag] == item);
        s->items[tag] = NULL;
        drop = efsd_export_item_free(item);
        client_refuse(s, tag, error == -EAGAIN ? -EIO : error);
    } else {
        drop = client_answer(s, item);
    }
    efsd_export_client_unref(s);
    pthread_mutex_unlock(&export->lock);
    efsd_export_drop(drop);
}
