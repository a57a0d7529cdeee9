/* SPDX-License-Identifier: Apache-2.0 */
/*
 * want.c - .expertfs/want and .expertfs/hint: requests and predictions of a runtime, written to the files as lines.
 *
 * A write(2) is one message. All lines of a request are checked before the first is submitted; lines of a hint take
 * effect up to the first invalid one. No state is kept between writes, and the offset of a write is ignored.
 */
#include "want.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "daemon.h"
#include "expertfs-private.h"
#include "expertfs-protocol.h"
#include "take_client.h"
#include "log.h"
#include "want_text.h"

bool efsd_is_writable(const struct efsd *daemon, uint32_t node)
{
    const struct efsd_node *n = &daemon->tree.nodes[node];
    return n->kind == EFSD_CONTROL &&
           (n->id == EFSD_CONTROL_want || n->id == EFSD_CONTROL_hint || n->id == EFSD_CONTROL_handout);
}

/* Counts a message; if it was refused, logs the reason and stores it in refused_last and user.expertfs.answer. */
static void message_done(struct efsd *daemon, uid_t user, struct efsd_messages *messages, errint_t rc,
                         const struct efs_error *err)
{
    char why[sizeof(err->text)];
    snprintf(why, sizeof(why), "%s", *err->text ? err->text : strerror(-rc));
    efs_join_hint(why, sizeof(why)); /* refused_last is a line of a control file */
    pthread_mutex_lock(&daemon->tuning.lock);
    messages->accepted += !rc;
    messages->refused += rc != 0;
    if (rc)
        snprintf(messages->refused_last, sizeof(messages->refused_last), "%.399s", why);
    pthread_mutex_unlock(&daemon->tuning.lock);
    if (rc) {
        efsd_log(EFS_LOG_WARNING, "invalid request of user %u: %s", (unsigned)user, why);
        efsd_answer(daemon, why);
    }
}

void efsd_want_finish(struct efsd *daemon, uid_t user, errint_t rc, const struct efs_error *err)
{
    efsd_count(&daemon->counters.wants, !rc);
    message_done(daemon, user, &daemon->tuning.wants, rc, err);
}

void efsd_hint_finish(struct efsd *daemon, uid_t user, errint_t rc, const struct efs_error *err)
{
    message_done(daemon, user, &daemon->tuning.hints, rc, err);
}

/* A parsed message: one request per line, with the experts' numbers in the store. */
struct message {
    struct efs_need *needs; /* of all requests, concatenated */
    uint32_t *counts;       /* number of experts of each request */
    uint32_t requests, experts;
};

static void message_free(struct message *m)
{
    free(m->needs);
    free(m->counts);
}

static errint_t message_add(struct efsd *daemon, struct message *m, struct efsd_want *want, struct efs_error *err)
{
    errint_t rc = efs_experts_find(daemon->fs, want->stack, want->layer, want->needs, want->count, err);
    if (rc)
        return rc;
    memcpy(m->needs + m->experts, want->needs, want->count * sizeof(want->needs[0]));
    m->experts += want->count;
    m->counts[m->requests++] = want->count;
    return 0;
}

static errint_t message_parse(struct efsd *daemon, const char *text, size_t bytes, struct message *m,
                              struct efs_error *err)
{
    struct efsd_want want;
    errint_t rc = 0;
    int got = 0;
    *m = (struct message){.needs = NULL};
    if (bytes > EFS_WANT_BYTES)
        return efs_fail(err, -EINVAL, "%zu bytes of requests at once; at most %u are taken", bytes, EFS_WANT_BYTES);
    m->needs = calloc(bytes / 2 + 1, sizeof(*m->needs));   /* an expert takes at least two bytes ("3:1 2 4"), */
    m->counts = calloc(bytes / 3 + 1, sizeof(*m->counts)); /* a line at least three */
    if (!m->needs || !m->counts)
        return efs_fail(err, -ENOMEM, "no memory for a request");
    while (rc == 0 && (got = efsd_want_next(&text, &bytes, &want, err)) > 0)
        rc = message_add(daemon, m, &want, err);
    return rc ? rc : got;
}

/* Checks all lines before it submits the first request. */
static errint_t want_submit(struct efsd *daemon, uid_t user, const char *text, size_t bytes)
{
    struct efs_error err = {.text = ""};
    struct message m;
    uint32_t at = 0;
    errint_t rc = message_parse(daemon, text, bytes, &m, &err);
    for (uint32_t i = 0; rc == 0 && i < m.requests; at += m.counts[i++])
        rc = efs_experts_want(daemon->fs, m.needs + at, m.counts[i], &err);
    message_free(&m);
    efsd_want_finish(daemon, user, rc, &err);
    return rc;
}

/* Processes line by line: lines before a refused one have taken effect. */
static errint_t hint_submit(struct efsd *daemon, uid_t user, const char *text, size_t bytes)
{
    struct efs_error err = {.text = ""};
    struct efsd_hint hint;
    errint_t rc = 0;
    int got = 0;
    if (bytes > EFS_WANT_BYTES)
        rc = efs_fail(&err, -EINVAL, "%zu bytes of hints at once; at most %u are taken", bytes, EFS_WANT_BYTES);
    while (rc == 0 && (got = efsd_hint_next(&text, &bytes, &hint, &err)) > 0) {
        const struct efs_routing routing = {.stack = hint.stack,
                                            .layer = hint.layer,
                                            .count = hint.count,
                                            .experts = hint.experts,
                                            .weights = hint.probabilities};
        rc = efs_routing_submit(daemon->fs, 0, EFS_ROUTING_PREDICTED, &routing, &err);
    }
    rc = rc ? rc : got;
    efsd_hint_finish(daemon, user, rc, &err);
    return rc;
}

void efsd_want_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t bytes, off_t offset,
                     struct fuse_file_info *file)
{
    struct efsd *daemon = fuse_req_userdata(req);
    uint32_t node;
    (void)offset;
    if (!efsd_node_of(daemon, ino, &node) || !efsd_is_writable(daemon, node) || file->writepage) {
        fuse_reply_err(req, EROFS); /* writepage: written through a mapping, without message boundaries */
        return;
    }
    unsigned uid = fuse_req_ctx(req)->uid;
    const uint32_t file_id = daemon->tree.nodes[node].id;
    errint_t rc = file_id == EFSD_CONTROL_hint   ? hint_submit(daemon, uid, data, bytes)
                  : file_id == EFSD_CONTROL_want ? want_submit(daemon, uid, data, bytes)
                                                 : efsd_take_client(daemon, req, data, bytes);
    if (rc) /* ENOENT of write(2) would mean that the file does not exist */
        fuse_reply_err(req, rc == -ENOENT ? EINVAL : -rc);
    else
        fuse_reply_write(req, bytes);
}
