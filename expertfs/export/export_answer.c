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

static errint_t session_answer_error(const struct efsd_session *s, uint32_t tag, errint_t error)
{
    struct efs_export_answer answer = answer_to(tag);
    answer.error = error;
    return efsd_session_send(s, &answer.head, -1);
}

static errint_t session_answer_full(struct efsd_session *s, const struct efsd_held *held)
{
    struct efs_window window;
    errint_t rc = efs_request_window(held->request, held->index, &window);
    if (rc)
        return rc;
    bool new = !efsd_session_has(s, window.number);
    if (new)
        rc = efs_request_open_window(held->request, held->index, window.number, &window);
    if (rc)
        return rc == -EAGAIN ? -EIO : rc;
    rc = efsd_session_have(s, window.number);
    if (rc) {
        if (new)
            close(window.fd);
        return rc;
    }
    struct efs_export_answer answer = answer_to(held->tag);
    answer.window = window.number;
    answer.window_bytes = window.bytes;
    answer.file_bytes = window.file_bytes;
    rc = efsd_session_send(s, &answer.head, new ? window.fd : -1);
    if (new)
        close(window.fd);
    if (rc && new)
        s->has[window.number / 8] &= (uint8_t) ~(1u << (window.number % 8));
    return rc;
}

/* 0; -EAGAIN: the socket is full; -EBUSY and other errors: the expert cannot be sent. */
static errint_t session_answer_held(struct efsd_session *s, struct efsd_held *held)
{
    return efs_request_form(held->request, held->index) == EFS_FORM_CODED ? efsd_session_answer_coded(s, held)
                                                                          : session_answer_full(s, held);
}

static void session_put_late(struct efsd_session *s, uint32_t tag, errint_t error)
{
    struct efsd_late *late = s->late_count < EFS_EXPORT_TAGS ? calloc(1, sizeof(*late)) : NULL;
    if (!late) { /* the client does not read its answers, or no memory: disconnect it, it would wait forever */
        shutdown(s->fd, SHUT_RDWR);
        return;
    }
    *late = (struct efsd_late){.tag = tag, .error = error};
    *s->late_end = late;
    s->late_end = &late->next;
    s->late_count++;
    efsd_session_watch(s, true);
}

/* Reports that a tag is free. Does not look up the tag: the client may have used it for another request before this
 * error could be sent. */
static void session_refuse(struct efsd_session *s, uint32_t tag, errint_t error)
{
    assert(error < 0);
    errint_t rc = session_answer_error(s, tag, error);
    if (rc == -EAGAIN)
        session_put_late(s, tag, error);
    else if (rc < 0) /* no memory for a packet: the client would wait forever */
        shutdown(s->fd, SHUT_RDWR);
}

/* Answers for an expert that is HELD. If the expert cannot be sent, frees its tag, reports the error, and returns the
 * expert for the caller to drop. */
static struct efsd_drop session_answer(struct efsd_session *s, struct efsd_held *held)
{
    uint32_t tag = held->tag;
    assert(held->session == s && held->request && !held->dropped && s->held[tag] == held);
    errint_t rc = session_answer_held(s, held);
    if (rc == 0) {
        efsd_count(&s->export->daemon->counters.handouts, 1);
        return (struct efsd_drop){NULL, 0};
    }
    if (rc == -EAGAIN) {
        session_put_late(s, tag, 0);
        return (struct efsd_drop){NULL, 0};
    }
    s->held[tag] = NULL;
    session_refuse(s, tag, rc);
    return efsd_held_free(held);
}

void efsd_export_drop(struct efsd_drop drop)
{
    if (drop.request)
        efs_request_drop(drop.request, drop.index);
}

void efsd_export_flush(struct efsd_session *s)
{
    pthread_mutex_lock(&s->export->lock);
    struct efsd_late *all = s->late;
    s->late = NULL;
    s->late_end = &s->late;
    s->late_count = 0;
    efsd_session_watch(s, false);
    while (all) {
        struct efsd_late *one = all;
        struct efsd_drop drop = {NULL, 0};
        all = one->next;
        struct efsd_held *held = efsd_held_of(s, one->tag);
        if (one->error)
            session_refuse(s, one->tag, one->error);
        else if (held && held->request) /* else the client has dropped it meanwhile */
            drop = session_answer(s, held);
        free(one);
        if (drop.request) {
            pthread_mutex_unlock(&s->export->lock);
            efsd_export_drop(drop);
            pthread_mutex_lock(&s->export->lock);
        }
    }
    pthread_mutex_unlock(&s->export->lock);
    efsd_export_list_on(s);
}

void efsd_export_arrived(void *arg, errint_t error, struct efs_request *request, uint32_t index)
{
    struct efsd_held *held = arg;
    struct efsd_session *s = held->session;
    struct efsd_export *export = s->export;
    struct efsd_drop drop;
    uint32_t tag = held->tag;
    pthread_mutex_lock(&export->lock);
    assert(!held->request && s->references > 0);
    held->request = request;
    held->index = index;
    if (held->dropped) {
        drop = efsd_held_free(held); /* its tag was freed when the client dropped it */
    } else if (error) {
        assert(s->held[tag] == held);
        s->held[tag] = NULL;
        drop = efsd_held_free(held);
        session_refuse(s, tag, error == -EAGAIN ? -EIO : error);
    } else {
        drop = session_answer(s, held);
    }
    efsd_session_unref(s);
    pthread_mutex_unlock(&export->lock);
    efsd_export_drop(drop);
}
